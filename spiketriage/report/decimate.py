"""Fewer points with the same picture: the least and the greatest of every pixel column are kept.

It never averages and never strides, so that a spike of one step survives; nonfinite values are its
caller's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of a curve: its step, and where that step stands on the picture."""

    step: int
    x: float
    value: float


def runs(samples: Sequence[Sample], max_gap: int) -> Iterator[list[Sample]]:
    """Stretches of finite values without a hole of more than `max_gap` steps."""
    stretch: list[Sample] = []
    for sample in samples:
        hole = bool(stretch) and sample.step - stretch[-1].step > max_gap
        if stretch and (hole or not math.isfinite(sample.value)):
            yield stretch
            stretch = []
        if math.isfinite(sample.value):
            stretch.append(sample)
    if stretch:
        yield stretch


def thin(stretch: Sequence[Sample]) -> list[Sample]:
    """At most four samples a pixel column, in step order: first, least, greatest, last."""
    kept: list[Sample] = []
    for _, column in groupby(stretch, key=lambda sample: math.floor(sample.x)):
        members = list(column)
        chosen = {members[0], members[-1], min(members, key=_value), max(members, key=_value)}
        kept.extend(sorted(chosen, key=lambda sample: sample.step))
    return kept


def _value(sample: Sample) -> float:
    return sample.value
