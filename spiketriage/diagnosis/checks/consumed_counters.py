"""Check: what the log counts as consumed grows with the steps, also across a restart.

It never knows which samples were read: it holds the run's own counter against its own steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.logged import CONSUMED, Logged, logged
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted
from spiketriage.nouns.series import Series

NAME = "consumed-counters"
EMITS = {NAME: Emission(role=AGAINST_THE_RUN, dates_onset=True)}
LOSSES = ("loss/mean",)
WINDOW_STEPS = 50  # on each side of a step at which the level of the loss is compared
MIN_WINDOW_STEPS = 8
SHIFT_IN_SPREADS = 5.0  # of the median absolute deviation: far beyond what noise gives a median
# A batch that grows by its ramp raises the count a step, and doubling is the steepest ramp in use.
JUMP = 4.0


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first step at which a counter goes back, or jumps at a restart."""
    series = view.logged_series
    if not series:
        return ()  # our recorder's cursor is compared by the checks on restored state
    counters = logged(series, CONSUMED)
    for counter in counters:
        back = np.flatnonzero(np.diff(counter.values) < 0)
        if len(back):
            return (_went_back(counter, int(back[0]), series),)
    for counter in counters:
        ahead = _jumps_at_a_restart(counter)
        if ahead is not None:
            return (_jumped(counter, ahead),)
    if not counters:
        return (untestable(NAME, "no log counts what was consumed"),)
    num_steps = sum(len(counter.steps) for counter in counters)
    return (agrees(NAME, f"what was consumed grows over {counted(num_steps, 'step')}"),)


def _went_back(counter: Logged, place: int, series: Sequence[Series]) -> Finding:
    before, after = counter.values[place], counter.values[place + 1]
    last, step = int(counter.steps[place]), int(counter.steps[place + 1])
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"step {step}: the data cursor went back: {counter.written_as} go from "
        f"{before:.0f} (step {last}) to {after:.0f}, so data is read again"
        f"{_loss_shift(series, step)}",
        where=Where(step=step, key=counter.written_as, path=counter.source),
        expected=f"more than {before:.0f}",
        seen=f"{after:.0f}",
        magnitude=float(before - after),
    )


def _jumps_at_a_restart(counter: Logged) -> int | None:
    """The place before a restart over which a step consumes several times what it did before."""
    rates = np.diff(counter.values) / np.diff(counter.steps)
    for place in np.flatnonzero(np.diff(counter.attempts)).tolist():
        usual = float(np.median(rates[max(0, place - WINDOW_STEPS) : place])) if place else 0.0
        if usual > 0 and rates[place] > JUMP * usual:
            return int(place)
    return None


def _jumped(counter: Logged, place: int) -> Finding:
    before, after = counter.values[place], counter.values[place + 1]
    step = int(counter.steps[place + 1])
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"step {step}: the data cursor jumped ahead at a restart: {counter.written_as} go "
        f"from {before:.0f} to {after:.0f}, so data is left out",
        where=Where(step=step, key=counter.written_as, path=counter.source),
        expected="as much a step as before the restart",
        seen=f"{after - before:.0f} more",
        magnitude=float(after - before),
    )


def _loss_shift(series: Sequence[Series], step: int) -> str:
    """How the level of the loss changed at `step`, if it did."""
    for loss in logged(series, LOSSES):
        before = loss.values[loss.steps < step][-WINDOW_STEPS:]
        after = loss.values[loss.steps >= step][:WINDOW_STEPS]
        if min(len(before), len(after)) < MIN_WINDOW_STEPS:
            continue
        was, now = float(np.median(before)), float(np.median(after))
        spread = float(np.median(np.abs(before - was)))
        if abs(now - was) > SHIFT_IN_SPREADS * spread:
            return f"; the loss shifts there from {was:.4g} to {now:.4g}"
    return ""
