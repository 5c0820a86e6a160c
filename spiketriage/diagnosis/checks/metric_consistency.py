"""Check: a metric is NaN or infinite only when something in the chain is.

A NaN in a log line that no tensor shares is an artefact of telemetry; it never excuses a nonfinite
link.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.view import History, View
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted
from spiketriage.nouns.telemetry import StepRecord

NAME = "metric-consistency"
EMITS = {NAME: Emission(role=TESTS_CAUSES, dates_onset=True)}
# Not every metric: rms_t is legitimately infinite while a second moment is still zero.
WATCHED = (
    "loss/sum",
    "loss/mean",
    "grad/norm_local",
    "grad/norm",
    "clip/coefficient",
    "update/norm",
    "logz/mean",
)
FEEDS_THE_UPDATE = ("grad/norm_local", "grad/norm", "clip/coefficient")
STAGE_OF = {
    "grad/norm_local": "local_gradient",
    "grad/norm": "reduced_gradient",
    "clip/coefficient": "clip_lr",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Artefact:
    step: int
    rank: int
    metric: str
    value: float


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first nonfinite metric that nothing in the chain explains."""
    history = view.history()
    odd: list[_Artefact] = []
    for step, records in history.items():
        odd.extend(_unexplained(step, records))
    consumed = [artefact for artefact in odd if _is_consumed(artefact, history)]
    if consumed:
        first = consumed[0]
        reason = (
            f"step {first.step}: {first.metric} is {first.value} and scales the update: no mere "
            "number"
        )
        return (_undecided(first, reason),)
    decided = [artefact for artefact in odd if _continues_finite(history, artefact.step)]
    if decided:
        return (_differs(decided),)
    if odd:
        first = odd[0]
        reason = (
            f"{first.metric} is {first.value} at step {first.step}, and no record shows what "
            "followed"
        )
        return (_undecided(first, reason),)
    return (_nothing_odd(history),)


def _undecided(artefact: _Artefact, reason: str) -> Finding:
    where = Where(step=artefact.step, key=artefact.metric, rank=artefact.rank)
    return untestable(NAME, reason, where=where)


def _nothing_odd(history: History) -> Finding:
    """Agreement, if both numbers and links to hold them against were recorded."""
    metrics: set[str] = set()
    has_links = False
    for records in history.values():
        for record in records.values():
            metrics.update(record.metrics)
            has_links = has_links or bool(record.digests)
    if metrics.isdisjoint(WATCHED):
        return untestable(NAME, "no step recorded a loss or a norm")
    if not has_links:
        reason = "no step recorded a link of the chain to hold the numbers against"
        return untestable(NAME, reason)
    return agrees(NAME, "every nonfinite metric, if any, goes with a nonfinite link of the chain")


def _unexplained(step: int, records: Mapping[int, StepRecord]) -> list[_Artefact]:
    if any(record.nonfinite for record in records.values()):
        return []  # global metrics are nonfinite on every rank, whichever rank is at fault
    artefacts: list[_Artefact] = []
    for metric in WATCHED:
        for rank, record in sorted(records.items()):
            value = record.metrics.get(metric, 0.0)
            if not math.isfinite(value):
                artefacts.append(_Artefact(step=step, rank=rank, metric=metric, value=value))
    return artefacts


def _is_consumed(artefact: _Artefact, history: History) -> bool:
    """Whether the number went into the update: finite gradients can have an infinite norm."""
    if artefact.metric not in FEEDS_THE_UPDATE:
        return False
    coefficient = history[artefact.step][artefact.rank].metrics.get("clip/coefficient", 1.0)
    return not math.isfinite(coefficient) or coefficient == 0


def _continues_finite(history: History, step: int) -> bool:
    # Only a recorded chain can say that the tensors are finite; a log of metrics alone cannot.
    own, later = history[step], history.get(step + 1)
    if later is None or not all(record.digests for record in (*own.values(), *later.values())):
        return False
    return not any(record.nonfinite for record in later.values())


def _differs(artefacts: list[_Artefact]) -> Finding:
    first = artefacts[0]
    steps = len({artefact.step for artefact in artefacts})
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"step {first.step}: {first.metric} reads {first.value} on rank {first.rank}, but "
        f"every link of that step and of the next one is finite: the number is wrong, not the run "
        f"({counted(steps, 'step')})",
        where=Where(
            step=first.step,
            stage=STAGE_OF.get(first.metric, "loss"),
            key=first.metric,
            rank=first.rank,
        ),
        expected="finite, as the chain is",
        seen=f"{first.value}",
        magnitude=float(steps),
    )
