"""The suspect window on the code that made the older generations, instead of the deployed one (a rollback branch).

It means nothing unless the incident reproduces on the deployed code.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.compare import by_step, compare
from spiketriage.diagnosis.experiment import Arm, not_testable, read_difference
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding

NAME = "reference-code"
FACTOR = "code"
ABOUT = "the code of the older generations instead of the deployed one, over the suspect window"
EMITS = {NAME: Emission(role=TESTS_CAUSES)}


def arms(setting: Setting) -> tuple[Arm, ...]:
    """The replay on each code."""
    if setting.reference_code is None:
        return ()
    return (Arm(control=setting.replay(), variant=setting.replay(code="reference")),)


def read(setting: Setting, answers: Mapping[str, Answer]) -> Finding:
    """The first link in which the two codes' results differ."""
    found = arms(setting)
    if not found:
        return not_testable(NAME, "no older code is on disk, or it is the deployed one")
    arm = found[0]
    comparison = compare(
        by_step(answers[arm.control.key].steps), by_step(answers[arm.variant.key].steps)
    )
    where = comparison.where
    return read_difference(
        NAME,
        where,
        same=f"both codes agree bit for bit over {comparison.num_steps} steps",
        apart=f"the codes part at step {where.step if where else 0},",
        trials=(arm.control, arm.variant),
    )
