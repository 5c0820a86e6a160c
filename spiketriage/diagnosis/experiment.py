"""The shape of an experiment.

A control, trials that differ from it in one factor, and a reading of the answers.

Nothing here starts a trial; the lint refuses two factors at once before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.band import Band, distance
from spiketriage.diagnosis.compare import relative
from spiketriage.diagnosis.role import Emissions
from spiketriage.diagnosis.setting import Setting
from spiketriage.errors import RefusedError
from spiketriage.nouns.incident import Finding, Outcome, Where
from spiketriage.wire.trial import Trial

REFERENCE_BAND = 4.0  # times the largest effect among the controls (prototype.md §7)
REFERENCE_RATIO = 20.0  # a reference counts only beyond this many bands
# What a reference computes by: a run that deploys this already is its own reference.
REFERENCES = {"precision": {"fp32"}, "kernel": {"math", "eager"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One trial and the control that it is compared with."""

    control: Trial
    variant: Trial


class Experiment(Protocol):
    """A module under `experiments/`."""

    NAME: str
    FACTOR: str
    ABOUT: str

    @property
    def EMITS(self) -> Emissions:
        """What its finding, which bears its name, may do to a verdict."""
        ...

    def arms(self, setting: Setting) -> tuple[Arm, ...]:
        """Control and variants; empty when the setting does not allow the experiment."""
        ...

    def read(self, setting: Setting, answers: Mapping[str, Answer]) -> Finding:
        """The finding that the answers support."""
        ...


def lint(experiment: Experiment, arms: tuple[Arm, ...]) -> None:
    """Refuse a plan in which a variant does not differ from its control in exactly the experiment's factor.

    Raises:
        RefusedError: zero factors differ, or two, or another one than was said.
    """
    for arm in arms:
        differing = arm.variant.factors.differing(arm.control.factors)
        if differing != (experiment.FACTOR,):
            raise RefusedError(
                f"experiment {experiment.NAME} must change the factor {experiment.FACTOR!r} alone; "
                f"this plan changes {', '.join(differing) or 'nothing'}"
            )


def anomaly(answer: Answer, step: int, band: Band) -> float:
    """How far a trial's step lies outside production's band, in robust scales.

    NaN when it was not executed.
    """
    record = answer.at(min((r.rank for r in answer.steps), default=0), step)
    if record is None:
        return math.nan
    return distance(record, band)


def scales(score: float) -> str:
    """A distance for people."""
    if math.isfinite(score):
        return f"{score:.1f} scales"
    return "not finite"


def read_cell(
    name: str, setting: Setting, answers: Mapping[str, Answer], trials: tuple[Trial, ...], what: str
) -> Finding:
    """One cell of the 2×2.

    Anomalous (`differs`), `nonfinite`, or like production before the incident (`agrees`).
    """
    scores = sorted(anomaly(answers[trial.key], trial.first_step, setting.band) for trial in trials)
    if not scores or any(math.isnan(score) for score in scores):
        return not_testable(name, f"{what}: no answer")
    score = scores[len(scores) // 2]
    outcome = (
        "nonfinite" if math.isinf(score) else ("differs" if score > setting.threshold else "agrees")
    )
    words = {
        "agrees": "behaves like the steps before",
        "differs": "is anomalous",
        "nonfinite": "is not finite",
    }
    return Finding(
        name=name,
        outcome=outcome,  # type: ignore[arg-type]
        source="experiment",
        summary=f"{what} {words[outcome]}"
        + (f" ({score:.1f} scales off)" if math.isfinite(score) else ""),
        where=Where(step=setting.suspect),
        expected=f"within {setting.threshold:.1f} scales of loss {setting.band.loss:.3f}",
        seen=scales(score),
        magnitude=score,
        trials=tuple(trial.key for trial in trials),
    )


def reference_arms(
    setting: Setting, *, kernel: str = "deployed", precision: str = "deployed"
) -> tuple[Arm, ...]:
    """Suspect and clean batches on the suspect state, each with and without the reference."""
    result: list[Arm] = []
    for batch in (setting.suspect, *setting.clean):
        result.append(
            Arm(
                control=setting.probe(batch=batch),
                variant=setting.probe(batch=batch, kernel=kernel, precision=precision),
            )
        )
    return tuple(result)


def read_reference(
    name: str, setting: Setting, answers: Mapping[str, Answer], arms: tuple[Arm, ...]
) -> Finding:
    """Effect of a reference on the suspect batch, against its effect on clean batches in the run's own mode."""
    effects = [_effect(answers, arm) for arm in arms]
    suspect, clean = effects[0], effects[1:]
    healed = _finite(answers, arms[0].variant) and not _finite(answers, arms[0].control)
    band = REFERENCE_BAND * max([effect for effect in clean if math.isfinite(effect)], default=0.0)
    ratio = suspect / band if band > 0 else (math.inf if suspect > 0 else 0.0)
    if healed or ratio > REFERENCE_RATIO:
        outcome = "differs"
    else:
        outcome = "agrees"
    if outcome == "differs":
        degree = "far more than"
    else:
        degree = "as little as"
    if healed:
        seen = "finite with the reference, not without"
    else:
        seen = f"{suspect:.3g} relative, {ratio:.3g} bands"
    return Finding(
        name=name,
        outcome=outcome,  # type: ignore[arg-type]
        source="experiment",
        summary=f"the reference changes the suspect batch {degree} clean batches: {seen}",
        where=Where(step=setting.suspect),
        expected=f"at most {REFERENCE_RATIO:g} bands of {band:.3g}",
        seen=seen,
        magnitude=ratio,
        trials=tuple(trial.key for arm in arms for trial in (arm.control, arm.variant)),
    )


def not_testable(name: str, reason: str) -> Finding:
    """The experiment could not be done; `reason` says why."""
    return Finding(name=name, outcome="not testable", source="experiment", summary=reason)


def read_heals(
    name: str, setting: Setting, answers: Mapping[str, Answer], arm: Arm, what: str
) -> Finding:
    """Whether the suspect step is ordinary (`agrees`) once the factor is changed, or still anomalous (`differs`)."""
    answer = answers[arm.variant.key]
    if answer.not_testable:
        return not_testable(name, answer.not_testable)
    score = anomaly(answer, setting.suspect, setting.band)
    if math.isnan(score):
        return not_testable(name, f"{what}: the suspect step was not executed")
    if score <= setting.threshold:
        outcome = "agrees"
    else:
        outcome = "differs"
    if math.isfinite(score):
        off = f" ({score:.1f} scales off)"
    else:
        off = ""
    return Finding(
        name=name,
        outcome=outcome,  # type: ignore[arg-type]
        source="experiment",
        summary=f"{what}, step {setting.suspect} is "
        f"{'ordinary' if outcome == 'agrees' else 'still anomalous'}{off}",
        where=Where(step=setting.suspect),
        expected=f"within {setting.threshold:.1f} scales",
        seen=scales(score),
        magnitude=score,
        trials=(arm.variant.key,),
    )


def read_difference(
    name: str, where: Where | None, *, same: str, apart: str, trials: tuple[Trial, ...]
) -> Finding:
    """Two chains compared link by link: `where` they part first, or None.

    One sentence for each case.
    """
    if where is None:
        outcome: Outcome = "agrees"
    else:
        outcome = "differs"
    return Finding(
        name=name,
        outcome=outcome,
        source="experiment",
        summary=same if where is None else f"{apart} {where.stage} {where.key}",
        where=where or Where(),
        expected="identical digests",
        seen=outcome,
        trials=tuple(trial.key for trial in trials),
    )


def without_effect(experiment: Experiment, setting: Setting, answers: Mapping[str, Answer]) -> str:
    """Why the experiment's factor is not proven to have changed alone.

    Empty when every digest says it did.

    Real teams were misled by interventions that silently did not happen (diagnosis.md §0.9).
    """
    complaints = [_complaint(experiment.FACTOR, answers, arm) for arm in experiment.arms(setting)]
    # A reference may leave a single batch untouched; it must have touched one of them.
    if experiment.FACTOR in ("kernel", "precision"):
        if not all(complaints):
            return ""
        return complaints[0]
    return next((complaint for complaint in complaints if complaint), "")


def _complaint(factor: str, answers: Mapping[str, Answer], arm: Arm) -> str:
    control, variant = answers[arm.control.key], answers[arm.variant.key]
    if variant.not_testable:
        return variant.not_testable
    if factor == "code":
        ours, theirs = (
            [one.code_digest for one in answer.identities] for answer in (control, variant)
        )
        return "both trials ran the same code" if ours == theirs else ""
    if arm.variant.kind != "probe":
        # a skip proves itself by the step that it lacks, a loader by the state that it leaves
        return ""
    same_batch, same_state = (
        _same(control, variant, "batch"),
        _same(control, variant, "params_before"),
    )
    if factor == "batch":
        return "" if same_state and not same_batch else "batch and state did not change as asked"
    if factor == "state":
        return "" if same_batch and not same_state else "batch and state did not change as asked"
    if not (same_batch and same_state):
        return "batch or state changed along with the reference"
    if _changed(answers, arm) or _is_reference(factor, control):
        return ""
    return (
        "the reference changed no digest, and the run does not say that it already computes "
        "this way"
    )


def _is_reference(factor: str, control: Answer) -> bool:
    """Whether every rank says that what it deploys is the reference.

    Then nothing may change, and nothing is wrong.
    """
    deployed = {str(getattr(identity, factor)) for identity in control.identities}
    return bool(deployed) and deployed <= REFERENCES[factor]


def _same(left: Answer, right: Answer, stage: str) -> bool:
    """Whether two probes saw the same `stage` on every rank."""

    def links(answer: Answer) -> dict[tuple[int, str], bytes]:
        result: dict[tuple[int, str], bytes] = {}
        for r in answer.steps:
            for link, d in r.digests.items():
                if link.stage == stage:
                    result[(r.rank, link.key)] = d
        return result

    return links(left) == links(right)


def _effect(answers: Mapping[str, Answer], arm: Arm) -> float:
    """Largest relative change of loss and gradient norm on any rank."""
    worst = 0.0
    for record in answers[arm.control.key].steps:
        other = answers[arm.variant.key].at(record.rank, record.step)
        if other is not None:
            for metric in ("loss/sum", "grad/norm"):
                worst = max(worst, relative(record.metrics[metric], other.metrics[metric]))
    return worst


def _finite(answers: Mapping[str, Answer], trial: Trial) -> bool:
    return not any(record.nonfinite for record in answers[trial.key].steps)


def _changed(answers: Mapping[str, Answer], arm: Arm) -> bool:
    """Proof by digest that the factor took effect."""
    for record in answers[arm.control.key].steps:
        other = answers[arm.variant.key].at(record.rank, record.step)
        if other is not None and any(
            other.digests.get(link) != digest for link, digest in record.digests.items()
        ):
            return True
    return False
