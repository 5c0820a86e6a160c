"""References: what the run computes by, against a slower way of computing the same that is trusted.

They never count an effect that clean batches show too, since every other way of computing differs a
little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.compare import relative
from spiketriage.diagnosis.experiment import Arm, Experiment, trials_of, vary
from spiketriage.diagnosis.role import TESTS_CAUSES
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding, Outcome, Role, Where

# The band is 4 times the largest effect on the clean batches. Measured: healthy runs stayed within
# 0.77 of it, and real faults lay at least 39 times beyond it, so that one counts beyond 20 times.
REFERENCE_BAND, REFERENCE_RATIO = 4.0, 20.0
EFFECT_METRICS = ("loss/sum", "grad/norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference(Experiment):
    """Suspect and clean batches on the suspect state, each with and without the reference."""

    value: str
    role: Role = TESTS_CAUSES
    shares_controls: bool = True

    def arms(self, setting: Setting) -> tuple[Arm, ...]:
        """The suspect batch first, then the clean ones."""
        batches = (setting.suspect, *setting.clean)
        return tuple(vary(setting.probe(batch=n), self.factor, self.value) for n in batches)

    def read(self, setting: Setting, answers: Mapping[str, Answer]) -> Finding:
        """The effect on the suspect batch in units of the effect on clean ones."""
        arms = self.arms(setting)
        suspect, *clean = (_effect(answers, arm) for arm in arms)
        band = REFERENCE_BAND * max((e for e in clean if math.isfinite(e)), default=0.0)
        ratio = _ratio(suspect, band)
        healed = _is_finite(answers[arms[0].variant.key])
        healed = healed and not _is_finite(answers[arms[0].control.key])
        if healed:
            seen = "finite with the reference, not without"
        else:
            seen = f"{suspect:.3g} relative, {ratio:.3g} bands"
        outcome: Outcome = "agrees"
        degree = "as little as"
        if healed or ratio > REFERENCE_RATIO:
            outcome, degree = "differs", "far more than"
        return Finding(
            name=self.name,
            outcome=outcome,
            source="experiment",
            summary=f"the reference changes the suspect batch {degree} clean batches: {seen}",
            where=Where(step=setting.suspect),
            expected=f"at most {REFERENCE_RATIO:g} bands of {band:.3g}",
            seen=seen,
            magnitude=ratio,
            trials=tuple(trial.key for trial in trials_of(arms)),
        )


def _ratio(suspect: float, band: float) -> float:
    """The effect in bands; without a band any effect is beyond all of them."""
    if band > 0:
        return suspect / band
    if suspect > 0:
        return math.inf
    return 0.0


def _effect(answers: Mapping[str, Answer], arm: Arm) -> float:
    """Largest relative change of loss and gradient norm on any rank."""
    worst = 0.0
    for record in answers[arm.control.key].steps:
        other = answers[arm.variant.key].at(record.rank, record.step)
        if other is None:
            continue
        for metric in EFFECT_METRICS:
            worst = max(worst, relative(record.metrics[metric], other.metrics[metric]))
    return worst


def _is_finite(answer: Answer) -> bool:
    return not any(record.nonfinite for record in answer.steps)


KERNEL = Reference(
    name="reference-kernel",
    factor="kernel",
    value="math",
    about="the written-out attention instead of the deployed kernel, on the suspect batch and on "
    "clean ones",
)
PRECISION = Reference(
    name="reference-precision",
    factor="precision",
    value="fp32",
    about="fp32 instead of the deployed precision, on the suspect batch and on clean ones",
)
