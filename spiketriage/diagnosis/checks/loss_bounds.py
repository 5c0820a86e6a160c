"""Check: the logged loss of a language model is one that a model which learns can have.

It is never below zero and does not stay at one value; it never judges the size of a healthy loss.
"""

from __future__ import annotations

import numpy as np

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.logged import Logged, logged
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted

NAME = "loss-bounds"
EMITS = {NAME: Emission(role=AGAINST_THE_RUN)}
# Names that only a cross entropy has: a policy's loss may be negative, and a bare `loss` anything.
CROSS_ENTROPIES = (
    *("lm loss", "lm_loss", "lm-loss", "train/lm_loss", "lm-loss-training/lm loss"),
    *("ce_loss", "train/ce_loss", "train/crossentropyloss", "cross_entropy", "nll_loss"),
    *("loss/train/language_cross_entropy", "metrics/train/languagecrossentropy"),
)
LOSSES = (*CROSS_ENTROPIES, "loss/mean")
MIN_CONSTANT_STEPS = 200
# A loss that was summed over thousands of tokens and printed in full never repeats; one that is
# printed with two digits may, for some steps, but not within a thousandth over hundreds.
CONSTANT_SPREAD = 1e-3
MIN_UNIFORM_LOSS = 4.6  # ln 100: below it a loss that stays has been learned, and no vocabulary is


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first loss below zero, else the first long stretch without any change."""
    series = view.logged_series
    if not series:
        return ()
    for loss in logged(series, CROSS_ENTROPIES):
        below = np.flatnonzero(loss.values < 0)
        if len(below):
            return (_negative(loss, int(below[0]), len(below)),)
    losses = logged(series, LOSSES)
    for loss in losses:
        start = _constant_from(loss)
        if start is not None:
            return (_constant(loss, start),)
    if not losses:
        return (untestable(NAME, "no loss is on record"),)
    return (agrees(NAME, f"no loss of {counted(len(losses[0].steps), 'step')} is out of bounds"),)


def _negative(loss: Logged, place: int, num_below: int) -> Finding:
    step, value = int(loss.steps[place]), float(loss.values[place])
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"step {step}: {loss.written_as} is {value:.4g}, and no cross entropy is below "
        f"zero ({counted(num_below, 'step')} in all): the loss is not what it is called",
        where=Where(step=step, stage="loss", key=loss.written_as, path=loss.source),
        expected="at least 0",
        seen=f"{value:.4g}",
    )


def _constant_from(loss: Logged) -> int | None:
    """The place from which the loss stays where it is to its end, long enough to tell."""
    final = float(np.median(loss.values[-MIN_CONSTANT_STEPS:]))
    moved = np.flatnonzero(np.abs(loss.values - final) > CONSTANT_SPREAD * abs(final))
    start = int(moved[-1]) + 1 if len(moved) else 0
    if final < MIN_UNIFORM_LOSS or len(loss.values) - start < MIN_CONSTANT_STEPS:
        return None
    return start


def _constant(loss: Logged, start: int) -> Finding:
    step, value = int(loss.steps[start]), float(np.median(loss.values[start:]))
    num_steps = len(loss.values) - start
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"from step {step} on {loss.written_as} stays at {value:.5g} over "
        f"{counted(num_steps, 'logged step')}: nothing is learned (it is what a uniform guess over "
        f"{np.exp(min(value, 30.0)):.0f} tokens has)",
        where=Where(step=step, stage="loss", key=loss.written_as, path=loss.source),
        expected="a loss that moves from step to step",
        seen=f"{value:.5g}",
        magnitude=float(num_steps),
    )
