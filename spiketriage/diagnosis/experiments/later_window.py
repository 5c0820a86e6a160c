"""A step replayed from a generation after the incident, against what production did there.

It tells what happened once from what goes on, and never touches the suspect window.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.compare import by_step, compare
from spiketriage.diagnosis.experiment import Arm, Experiment, not_testable, read_difference
from spiketriage.diagnosis.role import TESTS_CAUSES
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding


class LaterWindow(Experiment):
    """A later step, with the suspect window's replay as the control that differs."""

    def arms(self, setting: Setting) -> tuple[Arm, ...]:
        """The later step, if a generation after the incident is on disk."""
        later = setting.later_replay()
        if later is None:
            return ()
        return (Arm(control=setting.replay(), variant=later),)

    def read(self, setting: Setting, answers: Mapping[str, Answer]) -> Finding:
        """Whether production repeats there bit for bit."""
        arms = self.arms(setting)
        if not arms:
            return not_testable(self.name, self.missing)
        trial = arms[0].variant
        comparison = compare(setting.production, by_step(answers[trial.key].steps))
        if comparison.num_links == 0:
            return not_testable(
                self.name, f"production recorded no link of step {trial.first_step}"
            )
        begun = f"step {trial.first_step}, from {trial.factors.generation},"
        return read_difference(
            self.name,
            comparison.where,
            same=f"{begun} repeats bit for bit: what happened, happened once",
            apart=f"{begun} differs from its replay too, first at",
            trials=(trial,),
        )


EXPERIMENT = LaterWindow(
    name="later-window",
    role=TESTS_CAUSES,
    factor="state",
    about="one step from a generation after the incident, against what production did there",
    needs_spike=False,
    means_something="not reproduced",
    missing="no generation after the incident is on disk",
)
