"""The loss scale of fp16: which overflow skips are normal, and when they are no more.

This module never looks at the loss or at a gradient; `detector` puts the rules together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from spiketriage.detect.alarms import Alarm, alarm
from spiketriage.detect.bands import Sorted

# overflow skips in a row: a loss scale that starts at 2^32 needs twenty
MAX_SKIPS, MAX_SKIPS_AT_START = 6, 40
SCALE_ROWS, SCALE_HALVINGS = 64, 5.0  # halvings below the median of recent loss scales


class Scaling:
    """Which rows are normal overflow skips of fp16 loss scaling, and when they end to be normal."""

    def __init__(self) -> None:
        self._scales = Sorted(SCALE_ROWS)  # log2 of the loss scale in rows that were not skipped
        self._previous: float | None = None
        self._num_skips = 0
        self._is_low = False

    def is_skip(self, scale: float | None, *, is_skipped: bool) -> bool:
        """Whether an overflow made the trainer skip: it says so, or it lowered its loss scale."""
        if scale is None or not scale > 0:
            return False
        return is_skipped or (self._previous is not None and scale < self._previous)

    def feed(self, step: int, scale: float | None, *, is_skip: bool) -> list[Alarm]:
        """Judge a row's loss scale and learn from it; None and -1 are no scale."""
        if scale is None or not 0 < scale < math.inf:
            return []
        self._num_skips = self._num_skips + 1 if is_skip else 0
        alarms = [*self._skipping(step, scale), *self._sinking(step, scale)]
        self._previous = scale
        if not is_skip:
            self._scales.append(math.log2(scale))
        return alarms

    def state(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "scales": self._scales.values,
            "previous": self._previous,
            "num_skips": self._num_skips,
            "is_low": self._is_low,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self._scales = Sorted(SCALE_ROWS, state["scales"])
        self._previous = state["previous"]
        self._num_skips, self._is_low = state["num_skips"], state["is_low"]

    def _skipping(self, step: int, scale: float) -> list[Alarm]:
        most = MAX_SKIPS if self._scales.is_full else MAX_SKIPS_AT_START
        if self._num_skips != most + 1:
            return []
        sentence = (
            f"step {step}: loss_scale {scale:.4g}: {self._num_skips} steps in a row overflowed "
            "and were skipped"
        )
        return [
            alarm(
                "loss_scale",
                "loss-scale",
                step,
                sentence,
                value=scale,
                score=float(self._num_skips),
            )
        ]

    def _sinking(self, step: int, scale: float) -> list[Alarm]:
        if not self._scales.is_full:
            return []
        usual = self._scales.quantile(0.5)
        was_low, self._is_low = self._is_low, usual - math.log2(scale) >= SCALE_HALVINGS
        if was_low or not self._is_low:
            return []
        expected, score = 2.0**usual, usual - math.log2(scale)
        sentence = (
            f"step {step}: loss_scale fell to {scale:.4g}; its running median is {expected:.4g}"
        )
        return [
            alarm(
                "loss_scale",
                "loss-scale",
                step,
                sentence,
                value=scale,
                expected=expected,
                score=score,
            )
        ]
