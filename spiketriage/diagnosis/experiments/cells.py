"""The cells of the 2×2: suspect or clean batches, on the suspect state or on an older good one.

Together they tell batch from state; no cell does so by itself. The older state is never advanced:
the generation is used as it was saved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.experiment import Arm, Experiment, anomaly, not_testable, off, scales
from spiketriage.diagnosis.role import TESTS_CAUSES
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding, Outcome, Role, Where

WORDS = {
    "agrees": "behaves like the steps before",
    "differs": "is anomalous",
    "nonfinite": "is not finite",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(Experiment):
    """A batch on a state; the control has the other batch, or the other state, as `factor` says.

    `subject` names the cell in a sentence, and `num_batches` is how many clean batches are asked;
    their median counts.
    """

    batch: Literal["suspect", "clean"]
    state: Literal["suspect", "older"]
    subject: str
    num_batches: int = 1
    role: Role = TESTS_CAUSES
    two_by_two: bool = True

    def arms(self, setting: Setting) -> tuple[Arm, ...]:
        """The cell's batches, each against its control."""
        older = self.state == "older"
        if older and setting.older_good is None:
            return ()
        batches: tuple[int, ...] = (setting.suspect,)
        others = setting.clean[:1]
        if self.batch == "clean":
            batches, others = setting.clean[: self.num_batches], batches
        arms: list[Arm] = []
        for batch in batches:
            variant = setting.probe(batch=batch, older=older)
            if self.factor == "state":
                arms.append(Arm(control=setting.probe(batch=batch), variant=variant))
            else:
                arms += [Arm(control=setting.probe(batch=n), variant=variant) for n in others]
        return tuple(arms)

    def read(self, setting: Setting, answers: Mapping[str, Answer]) -> Finding:
        """Anomalous, not finite, or like production before the incident."""
        trials = [arm.variant for arm in self.arms(setting)]
        if not trials:
            return not_testable(self.name, self.missing)
        scores = sorted(anomaly(answers[t.key], t.first_step, setting.band) for t in trials)
        if any(math.isnan(score) for score in scores):
            return not_testable(self.name, f"{self.subject}: no answer")
        score = scores[len(scores) // 2]
        outcome = _outcome(score, setting.threshold)
        return Finding(
            name=self.name,
            outcome=outcome,
            source="experiment",
            summary=f"{self.subject} {WORDS[outcome]}{off(score)}",
            where=Where(step=setting.suspect),
            expected=f"within {setting.threshold:.1f} scales of loss {setting.band.loss:.3f}",
            seen=scales(score),
            magnitude=score,
            trials=tuple(trial.key for trial in trials),
        )


def _outcome(score: float, threshold: float) -> Outcome:
    if math.isinf(score):
        return "nonfinite"
    if score > threshold:
        return "differs"
    return "agrees"


CELLS = (
    # The cell that should reproduce the incident.
    Cell(
        name="suspect-batch/suspect-state",
        factor="batch",
        about="the suspect batch on the suspect state, against a clean batch on the same state",
        batch="suspect",
        state="suspect",
        subject="the suspect batch on the suspect state",
        missing="no clean batch is on record",
    ),
    # Anomalous here means that the state is bad.
    Cell(
        name="clean-batch/suspect-state",
        factor="batch",
        about="clean batches on the suspect state, against the suspect batch on the same state",
        batch="clean",
        state="suspect",
        subject="a clean batch on the suspect state",
        missing="no clean batch is on record",
        num_batches=3,
    ),
    # Anomalous here means that the batch carries the incident.
    Cell(
        name="suspect-batch/older-state",
        factor="state",
        about="the suspect batch on an older good state, against the same batch on the suspect "
        "state",
        batch="suspect",
        state="older",
        subject="the suspect batch on the older state",
        missing="no older good generation is left",
    ),
    # The clean control, without the suspect step: anomalous here means to stop blaming data.
    Cell(
        name="clean-batch/older-state",
        factor="state",
        about="clean batches on an older good state, against the same batches on the suspect state",
        batch="clean",
        state="older",
        subject="a clean batch on the older state",
        missing="no older good generation or no clean batch is left",
    ),
)
