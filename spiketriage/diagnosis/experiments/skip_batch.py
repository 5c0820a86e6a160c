"""Leave the suspect batch out and go on.

If the steps after it are ordinary, this batch carried the incident; it never says why the batch
did.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.experiment import Arm, Experiment, anomaly, not_testable, scales, vary
from spiketriage.diagnosis.role import TESTS_CAUSES
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding, Outcome, Where


class SkipBatch(Experiment):
    """The replay of the suspect window, with and without the suspect step."""

    def arms(self, setting: Setting) -> tuple[Arm, ...]:
        """The replay without the suspect step, if production recorded a step after it."""
        if setting.last_step <= setting.suspect:
            return ()
        return (vary(setting.replay(), "batch", f"skip {setting.suspect}"),)

    def read(self, setting: Setting, answers: Mapping[str, Answer]) -> Finding:
        """Ordinary or still anomalous in the steps after the one left out."""
        arms = self.arms(setting)
        if not arms:
            return not_testable(self.name, self.missing)
        trial = arms[0].variant
        answer = answers[trial.key]
        if answer.at(0, setting.suspect) is not None:
            return not_testable(
                self.name, f"step {setting.suspect} was executed although it was to be left out"
            )
        steps = range(setting.suspect + 1, trial.last_step + 1)
        worst = max(anomaly(answer, step, setting.band) for step in steps)
        outcome: Outcome = "differs"
        state = "still anomalous"
        if worst <= setting.threshold:
            outcome, state = "agrees", "ordinary"
        return Finding(
            name=self.name,
            outcome=outcome,
            source="experiment",
            summary=f"without step {setting.suspect}'s batch the next {len(steps)} steps are "
            f"{state} ({scales(worst)} off at most)",
            where=Where(step=setting.suspect),
            expected=f"within {setting.threshold:.1f} scales",
            seen=scales(worst),
            magnitude=worst,
            trials=(trial.key,),
        )


EXPERIMENT = SkipBatch(
    name="skip-batch",
    role=TESTS_CAUSES,
    factor="batch",
    about="the suspect window without the suspect batch, against the replay with it",
    two_by_two=True,
    missing="no step after the suspect one is recorded",
)
