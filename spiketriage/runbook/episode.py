"""How long an anomaly lasts: a jump that stays is one anomaly, from its first step to its last.

This module never looks for an anomaly; it follows one that was found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from spiketriage.nouns.incident import StepPoint

BEFORE_ROWS = 64  # finite rows before the anomaly that say what was usual, as the detector's band
OUT_SPREADS = 6.0  # median deviations from which a signal takes part in the anomaly
STILL_OUT = 0.5  # of the first distance: less has come back


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """One signal: what was usual before, and the value with which the anomaly began."""

    usual: float
    begin: float

    def holds(self, value: float) -> bool:
        """Whether a value is still as far out as half of what the first was."""
        if not math.isfinite(self.begin):
            return not math.isfinite(value)
        return (value - self.usual) / (self.begin - self.usual) > STILL_OUT


def last_step(points: Sequence[StepPoint], first: int) -> int:
    """The last step of the episode that begins at step `first`.

    It lasts while the loss or the gradient norm, whichever was out at its beginning, is no number,
    or still more than half as far from what was usual.
    """
    before = [point for point in points if point.step < first]
    rest = [point for point in points if point.step >= first]
    if not rest or rest[0].step != first:
        return first
    losses = _level([point.loss for point in before], rest[0].loss)
    norms = _level([point.grad_norm for point in before], rest[0].grad_norm)
    last = first
    for point in rest[1:]:
        stays = (losses is not None and losses.holds(point.loss)) or (
            norms is not None and norms.holds(point.grad_norm)
        )
        if not stays:
            break
        last = point.step
    return last


def _level(before: Sequence[float], begin: float) -> _Level | None:
    """The level of a signal that is out at the beginning; None for one that is not."""
    usual = [value for value in before if math.isfinite(value)][-BEFORE_ROWS:]
    if not usual:
        return None
    centre = median(usual)
    spread = median(abs(value - centre) for value in usual)
    if math.isfinite(begin) and abs(begin - centre) <= OUT_SPREADS * spread:
        return None
    if math.isnan(begin) and len(usual) < len(before) / 2:
        return None  # a signal that is mostly absent says nothing by its absence
    if begin == centre:
        return None
    return _Level(usual=centre, begin=begin)
