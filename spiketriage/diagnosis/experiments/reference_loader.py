"""The first step after the known-good generation, loaded through the verified loader instead of the deployed one.

Replaying through a faulty loader reproduces bitwise and would clear the restart; this is the
experiment that does not.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.compare import by_step, compare, compare_loads
from spiketriage.diagnosis.experiment import Arm, read_difference
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding

NAME = "reference-loader"
FACTOR = "loader"
ABOUT = "the verified loader instead of the deployed one, for one step"
EMITS = {NAME: Emission(role=TESTS_CAUSES)}


def arms(setting: Setting) -> tuple[Arm, ...]:
    """One step through each loader."""
    last = setting.known_good_step + 1
    return (
        Arm(
            control=setting.replay(last=last), variant=setting.replay(last=last, loader="verified")
        ),
    )


def read(setting: Setting, answers: Mapping[str, Answer]) -> Finding:
    """The first link in which the loaders' results differ."""
    arm = arms(setting)[0]
    control, variant = answers[arm.control.key], answers[arm.variant.key]
    where = compare_loads(control.loads, variant.loads)
    if where is None:
        where = compare(by_step(control.steps), by_step(variant.steps)).where
    return read_difference(
        NAME,
        where,
        same="both loaders leave the same state and the same first step",
        apart="the deployed loader and the verified one differ, first in",
        trials=(arm.control, arm.variant),
    )
