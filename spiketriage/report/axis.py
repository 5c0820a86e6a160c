"""Axes of a plot: from data to picture units, and where round ticks fall.

Pure arithmetic; it never draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Gradient norms do reach the end of a double's range; beyond these the arithmetic of ticks would
# overflow.
SMALLEST, LARGEST = 1e-290, 1e290


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A mapping of `low..high` (data) onto `start..end` (picture units), linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Picture coordinate of a value; one that lies outside is put on the edge."""
        value = min(max(value, self.low), self.high)
        if self.log:
            part = (math.log10(value) - math.log10(self.low)) / (
                math.log10(self.high) - math.log10(self.low)
            )
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self, wanted: int) -> tuple[float, ...]:
        """Round values inside the axis, about `wanted` of them."""
        if self.log:
            return _log_ticks(self.low, self.high, wanted)
        return _linear_ticks(self.low, self.high, wanted)


def step_axis(first: int, last: int, start: float, end: float) -> Axis:
    """Axis of steps; a single step stands in the middle."""
    if first == last:
        return Axis(low=first - 1, high=last + 1, start=start, end=end)
    return Axis(low=first, high=last, start=start, end=end)


def value_axis(values: list[float], start: float, end: float, *, log: bool) -> Axis:
    """Axis around finite values with some air; a logarithmic one ignores what is not positive."""
    if log:
        low, high = _range([value for value in values if value > 0], floor=SMALLEST)
        air = min(max(0.04 * (math.log10(high) - math.log10(low)), 0.05), 2.0)
        return Axis(low=low / 10**air, high=high * 10**air, start=start, end=end, log=True)
    low, high = _range(values, floor=-LARGEST)
    if low == high:
        air = abs(high) * 0.1 or 1.0
    else:
        air = max(0.06 * (high - low), 1e-6 * max(abs(low), abs(high)), 1e-12)
    return Axis(low=low - air, high=high + air, start=start, end=end)


def _range(values: list[float], *, floor: float) -> tuple[float, float]:
    """The least and the greatest value, inside what the arithmetic of ticks can carry."""
    if not values:
        return 1.0, 10.0
    usable = [min(max(value, floor), LARGEST) for value in values]
    return min(usable), max(usable)


def _linear_ticks(low: float, high: float, wanted: int) -> tuple[float, ...]:
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    gap = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.ceil(low / gap - 1e-9), math.floor(high / gap + 1e-9)
    return tuple(round(index * gap, 12) for index in range(first, last + 1))


def _log_ticks(low: float, high: float, wanted: int) -> tuple[float, ...]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = [10.0**power for power in range(first, last + 1) if low <= 10.0**power <= high]
    if len(decades) > wanted:
        return tuple(decades[:: math.ceil(len(decades) / wanted)])
    if len(decades) >= 3:
        return tuple(decades)
    inside = []
    for power in range(first, last + 1):
        for factor in (1, 2, 5):
            if low <= factor * 10.0**power <= high:
                inside.append(factor * 10.0**power)
    if len(inside) >= 2:
        return tuple(inside)
    return _linear_ticks(low, high, wanted)
