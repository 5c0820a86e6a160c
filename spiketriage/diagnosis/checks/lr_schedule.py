"""Check: the learning rate as applied is the one that the manifest's schedule gives.

It recomputes the schedule from its formula and never asks the deployed scheduler.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.schedule import WARMUP_KINDS, scheduled_lr
from spiketriage.diagnosis.view import View
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted

NAME = "lr-schedule"
EMITS = {NAME: Emission(role=TESTS_CAUSES, dates_onset=True)}
# a schedule in float32 is good to 6e-8; the smallest fault worth a page moves lr by a percent
RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-15


@dataclass(frozen=True, slots=True, kw_only=True)
class _Applied:
    step: int
    # the step's number as the schedule counts: among all steps, or among the updates that were
    # taken
    taken: int
    rank: int
    seen: float
    expected: float
    schedule: Mapping[str, Any]


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first step whose learning rate is not the scheduled one."""
    schedules = _schedules(view)
    applied = _applied(view, schedules)
    wrong = [item for item in applied if not _close(item.seen, item.expected)]
    if wrong:
        return (_differs(wrong),)
    if applied:
        steps, kind = {item.step for item in applied}, applied[0].schedule["kind"]
        text = f"the learning rate of {counted(len(steps), 'step')} is that of the {kind} schedule"
        return (agrees(NAME, text),)
    return (untestable(NAME, _untestable_because(schedules)),)


def _untestable_because(schedules: Mapping[int, Mapping[str, Any]]) -> str:
    if not schedules:
        return "no manifest states a schedule"
    if any(scheduled_lr(schedule, 1) is not None for schedule in schedules.values()):
        return "no step recorded its learning rate"
    kinds = {str(schedule.get("kind")) for schedule in schedules.values()}
    return f"schedule of unknown kind {', '.join(sorted(kinds))}"


def _schedules(view: View) -> dict[int, Mapping[str, Any]]:
    schedules: dict[int, Mapping[str, Any]] = {}
    for attempt in view.telemetry.attempts:
        manifest = view.reference(attempt)
        if manifest is not None and manifest.schedule:
            schedules[attempt] = manifest.schedule
    return schedules


def _applied(view: View, schedules: Mapping[int, Mapping[str, Any]]) -> list[_Applied]:
    applied_rates: list[_Applied] = []
    num_left_out: Counter[int] = Counter()  # updates that the guard skipped
    for step, records in view.history().items():
        for rank, record in sorted(records.items()):
            schedule = schedules.get(record.attempt, {})
            # A schedule stepped with the optimizer does not count what was skipped; one of the
            # step's number does.
            if schedule.get("counts") == "updates":
                taken = step - num_left_out[rank]
            else:
                taken = step
            expected = scheduled_lr(schedule, taken)
            if expected is not None and "lr" in record.metrics:
                seen = record.metrics["lr"]
                applied_rates.append(
                    _Applied(
                        step=step,
                        taken=taken,
                        rank=rank,
                        seen=seen,
                        expected=expected,
                        schedule=schedule,
                    )
                )
            num_left_out[rank] += record.metrics.get("guard/skipped", 0.0) == 1.0
    return applied_rates


def _close(seen: float, expected: float) -> bool:
    return math.isclose(seen, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)


def _differs(wrong: list[_Applied]) -> Finding:
    first = wrong[0]
    ranks = {item.rank for item in wrong}
    if len(ranks) == 1:
        on_rank = wrong
    else:
        on_rank = [item for item in wrong if item.rank == first.rank]
    if first.expected:
        ratio = first.seen / first.expected
    else:
        ratio = math.inf
    alike = _looks_like(on_rank)
    if alike is not None:
        as_if = f", as if the counter stood at step {alike}"
    else:
        as_if = ""
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"step {first.step}: the learning rate is {first.seen:.6g}, {ratio:.4g} times the "
        "scheduled "
        f"{first.expected:.6g}{as_if} (at "
        f"{counted(len({item.step for item in wrong}), 'step')} in all)",
        where=Where(
            step=first.step, stage="clip_lr", key="lr", rank=first.rank if len(ranks) == 1 else None
        ),
        expected=f"{first.expected!r}",
        seen=f"{first.seen!r}",
        magnitude=ratio if math.isfinite(ratio) else None,
    )


def _looks_like(wrong: list[_Applied]) -> int | None:
    """The step whose scheduled rate this is; of several, the one that the next steps follow."""
    first, schedule = wrong[0], wrong[0].schedule
    if schedule.get("kind") not in WARMUP_KINDS or "total_steps" not in schedule:
        return None
    candidates = [
        step
        for step in range(1, int(schedule["total_steps"]) + 1)
        if _close(first.seen, scheduled_lr(schedule, step) or 0.0)
    ]
    if not candidates:
        return None
    return max(candidates, key=lambda step: _num_following(wrong, step - first.taken))


def _num_following(wrong: list[_Applied], shift: int) -> int:
    expected = ((item.seen, scheduled_lr(item.schedule, item.taken + shift)) for item in wrong)
    return sum(1 for seen, value in expected if value is not None and _close(seen, value))
