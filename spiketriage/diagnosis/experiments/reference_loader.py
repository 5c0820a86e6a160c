"""The first step after the known-good generation, through the verified loader and the deployed one.

A replay through a faulty loader repeats bit for bit and would clear the restart; this experiment
never trusts the deployed loader.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.compare import by_step, compare, compare_loads
from spiketriage.diagnosis.experiment import Arm, Experiment, read_difference, vary
from spiketriage.diagnosis.role import TESTS_CAUSES
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding


class ReferenceLoader(Experiment):
    """One step through each loader, compared from the loaded state on."""

    def arms(self, setting: Setting) -> tuple[Arm, ...]:
        """One step through each loader."""
        control = setting.replay(last=setting.known_good_step + 1)
        return (vary(control, "loader", "verified"),)

    def read(self, setting: Setting, answers: Mapping[str, Answer]) -> Finding:
        """The first link in which the loaders' results differ."""
        arm = self.arms(setting)[0]
        deployed, verified = answers[arm.control.key], answers[arm.variant.key]
        where = compare_loads(deployed.loads, verified.loads)
        if where is None:
            where = compare(by_step(deployed.steps), by_step(verified.steps)).where
        return read_difference(
            self.name,
            where,
            same="both loaders leave the same state and the same first step",
            apart="the deployed loader and the verified one differ, first in",
            trials=(arm.control, arm.variant),
        )


EXPERIMENT = ReferenceLoader(
    name="reference-loader",
    role=TESTS_CAUSES,
    factor="loader",
    about="the verified loader instead of the deployed one, for one step",
    needs_spike=False,
)
