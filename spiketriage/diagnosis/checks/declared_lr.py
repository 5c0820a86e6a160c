"""Check: the learning rate that a log shows is the one that the run's own settings declare.

It knows the formulas of common trainers, and is silent about every schedule that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.logged import Logged, logged
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.schedule import declared, scheduled_lr
from spiketriage.diagnosis.view import View
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted
from spiketriage.nouns.series import LogFacts

NAME = "declared-lr"
EMITS = {NAME: Emission(role=AGAINST_THE_RUN, dates_onset=True)}
# Logs print three digits, and one that is off by less than two percent is no fault worth a page.
TOLERANCE = 0.02
NEAR_ZERO = 1e-3  # of the peak: the ends of a schedule, where a share of the rate is nothing
# A schedule does not count steps that loss scaling skipped, and few logs count those: a scale that
# begins at 2**32 skips some forty until it fits, and later overflows stay below one step in twenty.
FIRST_SKIPS, SHARE_OF_SKIPS = 40, 0.05
MIN_ROWS = 3  # fewer rows off the schedule are a garbled line


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first step from which a logged rate is not the declared one."""
    if not view.telemetry.logs:
        return ()  # the schedule of our own runs is in their manifests
    num_rows = 0
    for log in view.telemetry.logs:
        schedule = declared(log.identity) or declared(view.config)
        if schedule is None:
            continue
        for rate in _newest_rates(log):
            place = _departure(rate, schedule, _num_skipped(log))
            if place is not None:
                return (_differs(rate, schedule, place),)
            num_rows += len(rate.steps)
    if not num_rows:
        return (
            untestable(
                NAME,
                "no learning rate is logged whose schedule a log or the configuration declares",
            ),
        )
    return (agrees(NAME, f"the learning rate of {counted(num_rows, 'row')} is the declared one"),)


def _newest_rates(log: LogFacts) -> tuple[Logged, ...]:
    """The rates of the newest attempt: an earlier one may have been started with other settings."""
    newest = max((series.attempt for series in log.series), default=0)
    return logged((series for series in log.series if series.attempt == newest), ("lr",))


def _num_skipped(log: LogFacts) -> int:
    """How many steps the log itself counts as skipped."""
    skipped = logged(log.series, ("loss_scale/skipped",))
    return int(max((float(counter.values.sum()) for counter in skipped), default=0.0))


def _departure(rate: Logged, schedule: Mapping[str, Any], num_skipped: int) -> int | None:
    """The place of the first of several rows in a row that the schedule does not give."""
    num_apart = 0
    for place, (step, value) in enumerate(zip(rate.steps, rate.values, strict=True)):
        lag = num_skipped + FIRST_SKIPS + int(SHARE_OF_SKIPS * step)
        if _is_given(schedule, int(step) - lag, int(step) + 1, float(value)):
            num_apart = 0
        else:
            num_apart += 1
        if num_apart == MIN_ROWS:
            return place - MIN_ROWS + 1
    return None


def _is_given(schedule: Mapping[str, Any], first: int, last: int, value: float) -> bool:
    """Whether the schedule has this rate between two of its steps; it turns at most once there."""
    turn = min(max(first, int(schedule["warmup_steps"])), last)
    rates = [scheduled_lr(schedule, max(0, step)) or 0.0 for step in (first, turn, last)]
    slack = NEAR_ZERO * float(schedule["peak"])
    lowest, highest = min(rates) * (1 - TOLERANCE), max(rates) * (1 + TOLERANCE)
    return lowest - slack <= value <= highest + slack


def _differs(rate: Logged, schedule: Mapping[str, Any], place: int) -> Finding:
    step, value = int(rate.steps[place]), float(rate.values[place])
    expected = scheduled_lr(schedule, step) or 0.0
    was_followed = place >= MIN_ROWS
    if was_followed:
        meaning = "it had followed that until then"
    else:
        meaning = "it never followed that, or steps are counted otherwise"
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"step {step}: the learning rate is {value:.4g}, and {expected:.4g} by the "
        f"schedule that the run's settings declare ({_in_words(schedule)}): {meaning}",
        where=Where(step=step, stage="clip_lr", key=rate.written_as, path=rate.source),
        expected=f"{expected:.4g}",
        seen=f"{value:.4g}",
        magnitude=value / expected if expected else None,
        judged=was_followed,
    )


def _in_words(schedule: Mapping[str, Any]) -> str:
    text = f"{schedule['kind']} to {schedule['peak']:.4g}"
    if schedule["kind"] != "constant":
        text = f"{text}, {schedule['warmup_steps']} steps of warm-up"
    if schedule["total_steps"]:
        text = f"{text}, {schedule['total_steps']} in all"
    return text
