"""Spike rules on arrays: a nonfinite value, a value outside a robust band on either side, a lasting shift.

This module needs numpy only, never learns from an outlier, and never alarms before it has seen enough values.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CENTRE_WINDOW = 64  # accepted values behind the median, and the warm-up before the first alarm
SCALE_WINDOWS = (64, 256)  # deviations behind the scale; the smaller of the two, see _Band.scale
FIRST_DEVIATION = 16  # accepted values before a deviation from their median means anything
SHIFT_STEPS, SHIFT_COUNT, SHIFT_SCALES = 10, 8, 2.5  # eight of the last ten beyond 2.5 scales on one side
NEW_NORMAL = 40  # more outliers than this in a row are the new normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Global values of production by step, 1-D and of equal length; NaN where nonfinite or missing.

    `not_logged` names, by field, the positions at which a log never meant to hold a value: those are passed over.
    """

    steps: Array
    loss: Array
    grad_norm: Array
    update_norm: Array
    lr: Array
    not_logged: Mapping[str, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One anomaly: `score` is the distance from `expected` in scales, infinite for a nonfinite value."""

    step: int
    signal: str
    value: float
    expected: float
    score: float
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signal:
    """A judged series: `floor` is the smallest scale that is believed, `width` the band in scales.

    `shifts` says whether a lasting shift within the band is an alarm; the update norm drifts with the schedule.
    """

    name: str
    logarithmic: bool
    floor: float
    width: float
    shifts: bool


_LOSS = _Signal(name="loss", logarithmic=False, floor=0.03, width=6.0, shifts=True)
# The floor makes the band of the heavy-tailed gradient norm at least three times its median (prototype.md §3).
_GRAD_NORM = _Signal(name="grad_norm", logarithmic=True, floor=0.18, width=6.0, shifts=True)
_UPDATE = _Signal(name="update_norm / lr", logarithmic=True, floor=0.05, width=6.0, shifts=False)


def scan(trace: Trace) -> tuple[Alarm, ...]:
    """Every alarm of the trace, by step; the first one's step is the onset."""
    steps = np.asarray(trace.steps)
    with np.errstate(all="ignore"):
        update = np.where(trace.lr > 0, trace.update_norm / trace.lr, np.nan)
    alarms = [
        *_scan(_LOSS, *_logged(trace, "loss", trace.loss), nonfinite=True),
        *_scan(_GRAD_NORM, *_logged(trace, "grad_norm", trace.grad_norm), nonfinite=True),
        *_scan(_UPDATE, steps, update, nonfinite=False),
    ]
    return tuple(sorted(alarms, key=lambda alarm: (alarm.step, -alarm.score, alarm.signal)))


def _logged(trace: Trace, name: str, values: Array) -> tuple[Array, Array]:
    """Steps and values of a signal where the log meant to hold one."""
    skipped = trace.not_logged.get(name, frozenset())
    kept = [position for position in range(len(values)) if position not in skipped]
    return np.asarray(trace.steps)[kept], np.asarray(values)[kept]


class _Sorted:
    """The last `size` values, kept sorted so that a quantile is a look-up."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._queue: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._queue)

    def append(self, value: float) -> None:
        if len(self._queue) == self._size:
            del self._sorted[bisect_left(self._sorted, self._queue.popleft())]
        self._queue.append(value)
        insort(self._sorted, value)

    def quantile(self, q: float) -> float:
        at = q * (len(self._sorted) - 1)
        low = math.floor(at)
        high = min(low + 1, len(self._sorted) - 1)
        return self._sorted[low] + (at - low) * (self._sorted[high] - self._sorted[low])


class _Band:
    """Running centre and scale of one signal, in the space in which it is judged."""

    def __init__(self, signal: _Signal) -> None:
        self.signal = signal
        self._reset()

    def _reset(self) -> None:
        self._values = _Sorted(CENTRE_WINDOW)
        self._deviations = tuple(_Sorted(size) for size in SCALE_WINDOWS)
        self._rejected: list[float] = []
        self._scales: deque[float] = deque(maxlen=SHIFT_STEPS)

    @property
    def ready(self) -> bool:
        return len(self._values) >= CENTRE_WINDOW

    @property
    def centre(self) -> float:
        return self._values.quantile(0.5)

    @property
    def scale(self) -> float:
        # The 95th percentile of recent deviations, which for a normal distribution is 1.96 scales. The shorter
        # window is there because the steep start of a run would otherwise hide a spike for 256 steps.
        return max(self.signal.floor, min(d.quantile(0.95) for d in self._deviations) / 1.96)

    @property
    def scale_before(self) -> float:
        # The smallest of the last ten: a lasting shift within the band widens the scale that it is judged by.
        return min(self._scales, default=self.scale)

    def learn(self, value: float, *, outlier: bool) -> None:
        if outlier:
            self._rejected.append(value)
            if len(self._rejected) > NEW_NORMAL:
                recent = self._rejected
                self._reset()
                for one in recent:
                    self.learn(one, outlier=False)
            return
        self._rejected = []
        if len(self._values) >= FIRST_DEVIATION:
            deviation = abs(value - self.centre)
            for window in self._deviations:
                window.append(deviation)
        self._values.append(value)
        if self.ready:
            self._scales.append(self.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """One recent value and how far out it was, in present scales and in those before a possible shift."""

    step: int
    value: float
    score: float
    shift: float


def _scan(signal: _Signal, steps: Array, values: Array, *, nonfinite: bool) -> list[Alarm]:
    band = _Band(signal)
    alarms: list[Alarm] = []
    recent: deque[_Judged] = deque(maxlen=SHIFT_STEPS)
    shifted = False
    for step, value in zip(steps.tolist(), np.asarray(values, dtype=np.float64).tolist(), strict=True):
        if not math.isfinite(value):
            if nonfinite:
                alarms.append(_nonfinite(signal, int(step), value))
            continue
        if signal.logarithmic and value <= 0:
            continue
        inner = math.log(value) if signal.logarithmic else value
        score = (inner - band.centre) / band.scale if band.ready else 0.0
        outlier = abs(score) > signal.width
        shift = (inner - band.centre) / band.scale_before if band.ready else 0.0
        recent.append(_Judged(step=int(step), value=value, score=score, shift=shift))
        if outlier:
            alarms.append(_outside(band, recent[-1]))
        first = _shift(recent) if signal.shifts else None
        if first is not None and not shifted and not outlier:
            alarms.append(_lasting(band, first))
        shifted = first is not None
        band.learn(inner, outlier=outlier)
    return alarms


def _shift(recent: deque[_Judged]) -> _Judged | None:
    for side in (1, -1):
        beyond = [one for one in recent if side * one.shift > SHIFT_SCALES]
        if len(beyond) >= SHIFT_COUNT:
            return beyond[0]
    return None


def _expected(band: _Band) -> float:
    return math.exp(band.centre) if band.signal.logarithmic else band.centre


def _nonfinite(signal: _Signal, step: int, value: float) -> Alarm:
    return Alarm(
        step=step,
        signal=signal.name,
        value=value,
        expected=math.nan,
        score=math.inf,
        sentence=f"step {step}: {signal.name} is not a finite number",
    )


def _outside(band: _Band, seen: _Judged) -> Alarm:
    expected = _expected(band)
    side = "above" if seen.score > 0 else "below"
    return Alarm(
        step=seen.step,
        signal=band.signal.name,
        value=seen.value,
        expected=expected,
        score=abs(seen.score),
        sentence=f"step {seen.step}: {band.signal.name} {seen.value:.4g} is"
        f" {abs(seen.score):.1f} scales {side} the running median {expected:.4g}",
    )


def _lasting(band: _Band, first: _Judged) -> Alarm:
    expected = _expected(band)
    side = "above" if first.shift > 0 else "below"
    return Alarm(
        step=first.step,
        signal=band.signal.name,
        value=first.value,
        expected=expected,
        score=abs(first.shift),
        sentence=f"step {first.step}: {band.signal.name} stays {side} the running median {expected:.4g}:"
        f" {SHIFT_COUNT} of {SHIFT_STEPS} steps beyond {SHIFT_SCALES} scales",
    )
