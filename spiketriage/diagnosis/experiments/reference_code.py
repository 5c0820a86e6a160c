"""The suspect window on the code that made the older generations, instead of the deployed one.

This rollback branch never means anything unless the incident reproduces on the deployed code.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.compare import by_step, compare
from spiketriage.diagnosis.experiment import Arm, Experiment, not_testable, read_difference, vary
from spiketriage.diagnosis.role import TESTS_CAUSES
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding


class ReferenceCode(Experiment):
    """The replay on each code, compared link by link."""

    def arms(self, setting: Setting) -> tuple[Arm, ...]:
        """The replay on each code, if an older one is on disk."""
        if setting.reference_code is None:
            return ()
        return (vary(setting.replay(), "code", "reference"),)

    def read(self, setting: Setting, answers: Mapping[str, Answer]) -> Finding:
        """The first link in which the two codes' results differ."""
        arms = self.arms(setting)
        if not arms:
            return not_testable(self.name, self.missing)
        arm = arms[0]
        deployed, older = answers[arm.control.key], answers[arm.variant.key]
        comparison = compare(by_step(deployed.steps), by_step(older.steps))
        where = comparison.where
        return read_difference(
            self.name,
            where,
            same=f"both codes agree bit for bit over {comparison.num_steps} steps",
            apart=f"the codes part at step {where.step if where else 0},",
            trials=(arm.control, arm.variant),
        )


EXPERIMENT = ReferenceCode(
    name="reference-code",
    role=TESTS_CAUSES,
    factor="code",
    about="the code of the older generations instead of the deployed one, over the suspect window",
    needs_spike=False,
    missing="no older code is on disk, or it is the deployed one",
)
