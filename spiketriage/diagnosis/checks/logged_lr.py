"""Check: the learning rate that a log shows goes on where a restart took over.

It knows no schedule: it holds the rate against its own past, and only at restarts.
"""

from __future__ import annotations

import numpy as np

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.logged import Logged, logged
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted

NAME = "logged-lr"
EMITS = {NAME: Emission(role=AGAINST_THE_RUN, dates_onset=True)}
WINDOW_STEPS = 20
# Warm-up is the steepest part of any schedule in use and moves by far less between two logged
# steps that follow each other; a schedule that began anew, or was forgotten, moves by more.
JUMP = 1.5


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first restart at which the rate jumps beyond what it did before."""
    series = view.logged_series
    if not series:
        return ()  # the schedule of our own runs is known and recomputed
    rates = logged(series, ("lr",))
    num_restarts = 0
    for rate in rates:
        for place in np.flatnonzero(np.diff(rate.attempts)).tolist():
            num_restarts += 1
            if _jumps(rate, place):
                return (_jumped(rate, place),)
    if not num_restarts:
        return (untestable(NAME, "no log shows a learning rate on both sides of a restart"),)
    return (agrees(NAME, f"the learning rate goes on over {counted(num_restarts, 'restart')}"),)


def _jumps(rate: Logged, place: int) -> bool:
    before, after = float(rate.values[place]), float(rate.values[place + 1])
    if min(before, after) <= 0:
        return False  # the first step of a warm-up, and the last of a decay
    gap = float(rate.steps[place + 1] - rate.steps[place])
    past = np.diff(rate.values[: place + 1][-WINDOW_STEPS:])
    past_gaps = np.diff(rate.steps[: place + 1][-WINDOW_STEPS:])
    usual = float(np.max(np.abs(past / past_gaps), initial=0.0)) * gap
    ratio = max(before, after) / min(before, after)
    return ratio > JUMP and abs(after - before) > JUMP * usual


def _jumped(rate: Logged, place: int) -> Finding:
    before, after = float(rate.values[place]), float(rate.values[place + 1])
    last, step = int(rate.steps[place]), int(rate.steps[place + 1])
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"step {step}: the learning rate jumps at a restart from {before:.4g} (step "
        f"{last}) to {after:.4g}: the scheduler did not go on where it was",
        where=Where(step=step, stage="clip_lr", key=rate.written_as, path=rate.source),
        expected=f"about {before:.4g}",
        seen=f"{after:.4g}",
        magnitude=after / before,
    )
