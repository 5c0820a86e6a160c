"""The running centre and scale of one signal: robust, incremental, restorable from plain JSON.

This module judges nothing and never learns a value that its caller calls an outlier.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

CENTRE_WINDOW = 64  # accepted values behind the median
SCALE_WINDOWS = (64, 256)  # deviations behind the scale; the smaller of the two, see Band.scale
FIRST_DEVIATION = 16  # accepted values before a deviation from their median means anything
BEFORE_ROWS = 10  # accepted rows behind Band.scale_before
NEW_NORMAL = 40  # more outliers than this in a row are the new normal
NEW_NORMAL_AT_START = 10  # before a band stands, the coarse rule is surer of itself than it may be


class Sorted:
    """The last `size` values, kept sorted so that a quantile is a look-up."""

    def __init__(self, size: int, values: Iterable[float] = ()) -> None:
        self._queue: deque[float] = deque(values, maxlen=size)
        self._sorted = sorted(self._queue)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def values(self) -> list[float]:
        """The values in order of arrival."""
        return list(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether the next value displaces one."""
        return len(self._queue) == self._queue.maxlen

    def last(self, count: int) -> list[float]:
        """The newest `count` values or fewer, in order of arrival."""
        size = len(self._queue)
        return [self._queue[at] for at in range(max(0, size - count), size)]

    def append(self, value: float) -> None:
        """Take a value in, and the oldest out."""
        if self.is_full:
            del self._sorted[bisect_left(self._sorted, self._queue[0])]
        self._queue.append(value)
        insort(self._sorted, value)

    def quantile(self, q: float) -> float:
        """The q-quantile, interpolated between neighbours; NaN of nothing."""
        if not self._sorted:
            return math.nan
        at = q * (len(self._sorted) - 1)
        low = math.floor(at)
        high = min(low + 1, len(self._sorted) - 1)
        return self._sorted[low] + (at - low) * (self._sorted[high] - self._sorted[low])


class Band:
    """Running centre and scale of one signal, in the space in which it is judged.

    `floor` is the least scale.

    With `trend` the centre is the median carried down to the present row: a median lags behind a
    falling loss by half its window, which would hide an upward spike and widen the band by as much.
    It is never carried up.
    """

    def __init__(self, floor: float, *, trend: bool = False) -> None:
        self._floor = floor
        self._trend = trend
        self._centre: float | None = None
        self._reset()

    def _reset(self) -> None:
        self._values = Sorted(CENTRE_WINDOW)
        self._deviations = tuple(Sorted(size) for size in SCALE_WINDOWS)
        self._rejected: list[float] = []
        self._scales: deque[float] = deque(maxlen=BEFORE_ROWS)
        self._centre = None

    @property
    def is_ready(self) -> bool:
        """Whether enough values were accepted for the band to mean something."""
        return self._values.is_full

    @property
    def centre(self) -> float:
        """The running median, carried down to the present where there is a trend."""
        if self._centre is None:
            self._centre = self._values.quantile(0.5) + (self._carried() if self._trend else 0.0)
        return self._centre

    def _carried(self) -> float:
        """From the window's middle to its end, along the medians of its first and last quarter."""
        values = self._values.values
        if len(values) < CENTRE_WINDOW:
            return 0.0
        quarter = CENTRE_WINDOW // 4
        slope = (median(values[-quarter:]) - median(values[:quarter])) / (CENTRE_WINDOW - quarter)
        return min(0.0, slope * (CENTRE_WINDOW + 1) / 2)

    @property
    def scale(self) -> float:
        """The 95th percentile of recent deviations: 1.96 scales of a normal distribution."""
        # A median of deviations (MAD) would double the false alarms of bench_detection.py: it knows
        # nothing of tails. The shorter window is there because the steep start of a run would
        # otherwise hide a spike for 256 steps.
        return max(self._floor, min(window.quantile(0.95) for window in self._deviations) / 1.96)

    @property
    def scale_before(self) -> float:
        """The smallest scale of the last ten rows.

        A lasting shift within the band widens the scale it is judged by.
        """
        return min(self._scales, default=self.scale)

    def last(self, count: int) -> list[float]:
        """The newest `count` accepted values or fewer."""
        return self._values.last(count)

    def learn(self, value: float, *, is_outlier: bool) -> None:
        """Take a judged value in.

        Outliers stay out until so many came in a row that they are the new normal.
        """
        if is_outlier:
            self._rejected.append(value)
            if len(self._rejected) > (NEW_NORMAL if self.is_ready else NEW_NORMAL_AT_START):
                recent = self._rejected
                self._reset()
                for earlier in recent:
                    self.learn(earlier, is_outlier=False)
            return
        self._rejected = []
        if len(self._values) >= FIRST_DEVIATION:
            deviation = abs(value - self.centre)
            for window in self._deviations:
                window.append(deviation)
        self._values.append(value)
        self._centre = None
        if self.is_ready:
            self._scales.append(self.scale)

    def state(self) -> dict[str, Any]:
        """All that later judgements rest on, as plain JSON: at most 370 numbers."""
        return {
            "values": self._values.values,
            "deviations": self._deviations[-1].values,  # the shorter windows are its newest part
            "rejected": list(self._rejected),
            "scales": list(self._scales),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self._values = Sorted(CENTRE_WINDOW, state["values"])
        self._centre = None
        self._deviations = tuple(Sorted(size, state["deviations"]) for size in SCALE_WINDOWS)
        self._rejected = list(state["rejected"])
        self._scales = deque(state["scales"], maxlen=BEFORE_ROWS)
