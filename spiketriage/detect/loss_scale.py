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
UNSCALED = 1.0  # at a loss scale of 1 and below there is nothing left to back off to


class Scaling:
    """Which rows are normal overflow skips of fp16 loss scaling, and when they end to be normal."""

    def __init__(self) -> None:
        self._scales = Sorted(SCALE_ROWS)  # log2 of the loss scale in rows that were not skipped
        self._num_taken = 0  # rows of which an update was taken, up to SCALE_ROWS
        self._previous: float | None = None
        self._previous_step: int | None = None
        self._num_skips = 0  # updates in a row that were left out
        self._is_low = False

    def is_skip(self, scale: float | None, *, num_skipped: float | None) -> bool:
        """Whether an overflow made the trainer skip: it counts so, or it lowered its loss scale."""
        is_counted = num_skipped is not None and num_skipped > 0
        if scale is None or not scale > 0:  # a log with the counter alone
            return is_counted
        if max(scale, self._previous or scale) <= UNSCALED:
            return False
        return is_counted or (self._previous is not None and scale < self._previous)

    def feed(
        self, step: int, scale: float | None, *, is_skip: bool, num_skipped: float | None
    ) -> list[Alarm]:
        """Judge a row's loss scale and learn from it; None and -1 are no scale."""
        is_scaled = scale is not None and 0 < scale < math.inf
        if not is_scaled and num_skipped is None:
            return []
        before = self._num_skips
        is_whole = self._count(step, is_skip=is_skip, num_skipped=num_skipped)
        alarms = self._skipping(step, scale, before)
        if scale is None or not is_scaled:
            return alarms
        alarms += self._sinking(step, scale)
        self._previous = scale
        if not is_whole:
            self._scales.append(math.log2(scale))
        return alarms

    def state(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "scales": self._scales.values,
            "num_taken": self._num_taken,
            "previous": self._previous,
            "previous_step": self._previous_step,
            "num_skips": self._num_skips,
            "is_low": self._is_low,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self._scales = Sorted(SCALE_ROWS, state["scales"])
        self._num_taken = state["num_taken"]
        self._previous, self._previous_step = state["previous"], state["previous_step"]
        self._num_skips, self._is_low = state["num_skips"], state["is_low"]

    def _count(self, step: int, *, is_skip: bool, num_skipped: float | None) -> bool:
        """Count skips in a row; whether the row holds nothing else.

        A row stands for all steps since the row before, of which some may have been taken.
        """
        num_steps = 1
        if self._previous_step is not None:
            num_steps = max(1, step - self._previous_step)
        self._previous_step = step
        count = 1
        if num_skipped is not None and num_skipped > 1:
            count = int(min(num_skipped, MAX_SKIPS_AT_START + 1))
        is_whole = is_skip and count >= num_steps
        if is_whole:
            self._num_skips += count
        else:
            self._num_skips = 0
            self._num_taken = min(self._num_taken + 1, SCALE_ROWS)
        return is_whole

    def _skipping(self, step: int, scale: float | None, before: int) -> list[Alarm]:
        most = MAX_SKIPS if self._num_taken == SCALE_ROWS else MAX_SKIPS_AT_START
        if not before <= most < self._num_skips:
            return []
        at_scale = "" if scale is None else f"loss_scale {scale:.4g}: "
        sentence = (
            f"step {step}: {at_scale}{self._num_skips} steps in a row overflowed and were skipped"
        )
        return [
            alarm(
                "loss_scale",
                "loss-scale",
                step,
                sentence,
                value=math.nan if scale is None else scale,
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
