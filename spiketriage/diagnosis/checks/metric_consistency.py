"""Check: a metric is NaN or infinite only when something in the chain is.

A NaN in a log line that no tensor shares is an artefact of telemetry; it never excuses a nonfinite
link.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spiketriage.diagnosis.findings import agrees, counted, untestable
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.view import History, View
from spiketriage.nouns.incident import Finding, Where
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
    odd = [found for step, records in history.items() for found in _unexplained(step, records)]
    consumed = next((found for found in odd if _is_consumed(found, history)), None)
    if consumed is not None:
        reason = (
            f"step {consumed.step}: {consumed.metric} is {consumed.value} and scales the "
            "update: no mere number"
        )
        return (
            untestable(
                NAME,
                reason,
                where=Where(step=consumed.step, key=consumed.metric, rank=consumed.rank),
            ),
        )
    decided = [found for found in odd if _continues_finite(history, found.step)]
    if decided:
        return (_differs(decided),)
    if odd:
        first = odd[0]
        reason = (
            f"{first.metric} is {first.value} at step {first.step}, and no record shows what "
            "followed"
        )
        return (
            untestable(
                NAME, reason, where=Where(step=first.step, key=first.metric, rank=first.rank)
            ),
        )
    if not any(
        name in r.metrics
        for records in history.values()
        for r in records.values()
        for name in WATCHED
    ):
        return (untestable(NAME, "no step recorded a loss or a norm"),)
    if not any(record.digests for records in history.values() for record in records.values()):
        return (
            untestable(NAME, "no step recorded a link of the chain to hold the numbers against"),
        )
    return (
        agrees(NAME, "every nonfinite metric, if any, goes with a nonfinite link of the chain"),
    )


def _unexplained(step: int, records: Mapping[int, StepRecord]) -> list[_Artefact]:
    if any(record.nonfinite for record in records.values()):
        return []  # global metrics are nonfinite on every rank, whichever rank is at fault
    return [
        _Artefact(step=step, rank=rank, metric=name, value=record.metrics[name])
        for name in WATCHED
        for rank, record in sorted(records.items())
        if name in record.metrics and not math.isfinite(record.metrics[name])
    ]


def _is_consumed(found: _Artefact, history: History) -> bool:
    """Whether the number went into the update: finite gradients can have an infinite norm."""
    if found.metric not in FEEDS_THE_UPDATE:
        return False
    coefficient = history[found.step][found.rank].metrics.get("clip/coefficient", 1.0)
    return not math.isfinite(coefficient) or coefficient == 0


def _continues_finite(history: History, step: int) -> bool:
    # Only a recorded chain can say that the tensors are finite; a log of metrics alone cannot.
    own, later = history[step], history.get(step + 1)
    if later is None or not all(record.digests for record in (*own.values(), *later.values())):
        return False
    return not any(record.nonfinite for record in later.values())


def _differs(found: list[_Artefact]) -> Finding:
    first = found[0]
    steps = len({item.step for item in found})
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"step {first.step}: {first.metric} reads {first.value} on rank {first.rank}, but "
        "every "
        f"link of that step and of the next one is finite: the number is wrong, not the run "
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
