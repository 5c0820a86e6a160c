"""The shape of an experiment: a control, trials that differ from it in one factor, and a reading.

Nothing here starts a trial; the lint refuses two factors at once before anything runs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.band import Band, distance
from spiketriage.diagnosis.role import Emission, Emissions
from spiketriage.diagnosis.setting import Setting
from spiketriage.errors import RefusedError
from spiketriage.nouns.incident import Finding, Outcome, Role, Where
from spiketriage.wire.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One trial and the control that it is compared with."""

    control: Trial
    variant: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(ABC):
    """One experiment: what its finding may do to a verdict, what it changes, when it says anything.

    `factor` is the one thing in which its trials differ from their control. `needs_spike` is set
    where the answer is read off loss and gradient norm. `means_something` is what the replay must
    have shown of production before the answer can say anything. `missing` is what the run lacks
    where there are no arms. `two_by_two` experiments are run together before anything dearer is
    tried; so are those with `shares_controls`, whose control passes are the same.
    """

    name: str
    role: Role
    factor: str
    about: str
    needs_spike: bool = True
    means_something: Literal["reproduced", "not reproduced"] = "reproduced"
    missing: str = "what the change needs is not on disk"
    two_by_two: bool = False
    shares_controls: bool = False

    @property
    def emits(self) -> Emissions:
        """What its finding, which bears its name, may do to a verdict."""
        return {self.name: Emission(role=self.role)}

    @abstractmethod
    def arms(self, setting: Setting) -> tuple[Arm, ...]:
        """Controls and variants; empty when the setting does not allow the experiment."""

    @abstractmethod
    def read(self, setting: Setting, answers: Mapping[str, Answer]) -> Finding:
        """The finding that the answers support."""

    def is_meaningful(self, *, reproduced: bool, spiked: bool) -> bool:
        """Whether the answer could mean anything, given what the replay and production showed."""
        if self.means_something == "not reproduced":
            return not reproduced
        return reproduced and (spiked or not self.needs_spike)


def vary(control: Trial, factor: str, value: str) -> Arm:
    """`control`, and the same trial with one factor at another value."""
    factors = replace(control.factors, **{factor: value})
    return Arm(control=control, variant=replace(control, factors=factors))


def trials_of(arms: Iterable[Arm]) -> tuple[Trial, ...]:
    """Every trial of `arms` once, in the order in which it is first asked for."""
    trials: dict[str, Trial] = {}
    for arm in arms:
        for trial in (arm.control, arm.variant):
            trials.setdefault(trial.key, trial)
    return tuple(trials.values())


def lint(experiment: Experiment, arms: tuple[Arm, ...]) -> None:
    """Refuse a plan in which a variant differs from its control in more, or less, than one factor.

    Raises:
        RefusedError: no factor differs, or two, or another one than the experiment's.
    """
    for arm in arms:
        differing = arm.variant.factors.differing(arm.control.factors)
        if differing != (experiment.factor,):
            raise RefusedError(
                f"experiment {experiment.name} must change the factor {experiment.factor!r} alone; "
                f"this plan changes {', '.join(differing) or 'nothing'}"
            )


def anomaly(answer: Answer, step: int, band: Band) -> float:
    """How far a trial's step lies outside production's band, in robust scales.

    NaN when the step was not executed.
    """
    first_rank = min((record.rank for record in answer.steps), default=0)
    record = answer.at(first_rank, step)
    if record is None:
        return math.nan
    return distance(record, band)


def scales(score: float) -> str:
    """A distance for people."""
    if math.isfinite(score):
        return f"{score:.1f} scales"
    return "not finite"


def off(score: float) -> str:
    """A distance as an addition to a sentence; nothing where the step is not finite."""
    if math.isfinite(score):
        return f" ({score:.1f} scales off)"
    return ""


def not_testable(name: str, reason: str) -> Finding:
    """The experiment could not be done; `reason` says why."""
    return Finding(name=name, outcome="not testable", source="experiment", summary=reason)


def read_difference(
    name: str, where: Where | None, *, same: str, apart: str, trials: tuple[Trial, ...]
) -> Finding:
    """The finding of two chains compared link by link, which part at `where`, or nowhere.

    `same` and `apart` are the sentences for the two cases; the second is completed by the place.
    """
    outcome: Outcome = "agrees"
    summary = same
    if where is not None:
        outcome = "differs"
        summary = f"{apart} {where.stage} {where.key}"
    return Finding(
        name=name,
        outcome=outcome,
        source="experiment",
        summary=summary,
        where=where or Where(),
        expected="identical digests",
        seen=outcome,
        trials=tuple(trial.key for trial in trials),
    )
