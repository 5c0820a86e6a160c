"""Steps that two attempts of a run took: what both logged at the first of them.

This module never says which attempt is right, and never looks beyond the first rows behind a
restart: later ones part by rounding alone where kernels are not exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spiketriage.diagnosis.logged import CONSUMED
from spiketriage.nouns.series import Floats, Integers
from spiketriage.nouns.telemetry import Segment
from spiketriage.readers.telemetry.run.columns import column_of, steps_of
from spiketriage.readers.telemetry.run.lineage import Telemetry

FIRST_ROWS = 4
WINDOW_ROWS = 50  # on both sides, from which it is known how far one row lies from the next
MIN_WINDOW_ROWS = 8
# Other data moves the loss by about as much as the next step does; the same data from the same
# state by rounding alone, which stays far below. Half of the first rows may be averages over
# intervals that the restart cut.
DRIFT = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One metric over the first rows that an attempt took again, 1-D and equally long.

    `near` is how far apart the same data and state may leave them; `counters` are what both
    attempts say that the run had consumed by the first of these steps.
    """

    source: Path
    metric: str
    attempt: int
    steps: Integers
    before: Floats
    after: Floats
    near: float
    counters: tuple[float, float] | None

    @property
    def differs(self) -> bool:
        """Whether more than half of the rows lie farther apart than `near`."""
        return int(np.count_nonzero(self.is_apart)) > len(self.steps) / 2

    @property
    def is_apart(self) -> NDArray[np.bool_]:
        """By row, whether the two attempts lie farther apart than `near`."""
        return np.abs(self.after - self.before) > self.near

    @property
    def is_same_data(self) -> bool:
        """Whether the run's own counter says that both attempts had read as much."""
        return self.counters is not None and self.counters[0] == self.counters[1]


def repeats_of(telemetry: Telemetry, metrics: Sequence[str]) -> Iterator[Repeat]:
    """Every metric at every restart that went back, but for one that started the run over."""
    segments = [segment for segment in telemetry.segments if len(steps_of(segment))]
    first_of_run = min((int(steps_of(segment)[0]) for segment in segments), default=0)
    for later in segments:
        if int(steps_of(later)[0]) <= first_of_run:
            continue
        earlier = _before(segments, later)
        if earlier is None:
            continue
        for metric in metrics:
            repeat = _repeat(earlier, later, metric)
            if repeat is not None:
                yield repeat


def _before(segments: list[Segment], later: Segment) -> Segment | None:
    """The last earlier attempt of this rank that had taken the step with which `later` begins."""
    last = None
    for segment in segments:
        is_earlier = segment.rank == later.rank and segment.attempt < later.attempt
        if is_earlier and int(steps_of(segment)[-1]) >= int(steps_of(later)[0]):
            last = segment
    return last


def _repeat(earlier: Segment, later: Segment, metric: str) -> Repeat | None:
    old_steps, old = _finite(earlier, metric)
    new_steps, new = _finite(later, metric)
    steps, old_places, new_places = np.intersect1d(old_steps, new_steps, return_indices=True)
    if not len(steps):
        return None
    first = int(old_places[0])
    window = old[max(0, first - WINDOW_ROWS) : first + WINDOW_ROWS]
    if len(window) < MIN_WINDOW_ROWS:
        return None
    from_step_to_step = float(np.median(np.abs(np.diff(window))))
    return Repeat(
        source=later.path,
        metric=metric,
        attempt=later.attempt,
        steps=steps[:FIRST_ROWS],
        before=old[old_places][:FIRST_ROWS],
        after=new[new_places][:FIRST_ROWS],
        near=max(DRIFT * from_step_to_step, _last_digit(window)),
        counters=_counters(earlier, later, int(steps[0])),
    )


def _finite(segment: Segment, metric: str) -> tuple[Integers, Floats]:
    values = column_of(segment, metric).values
    kept = np.isfinite(values)
    return steps_of(segment)[kept], values[kept]


def _last_digit(values: Floats) -> float:
    """One unit of the last place that a log prints."""
    decimals = 0
    for value in values.tolist():
        decimals = max(decimals, len(f"{value:.9f}".rstrip("0").partition(".")[2]))
    return 1.001 * 10.0**-decimals


def _counters(earlier: Segment, later: Segment, step: int) -> tuple[float, float] | None:
    """What both attempts say that the run had consumed by `step`."""
    if earlier.columns is None or later.columns is None:
        return None
    for name in earlier.columns.metrics:
        if name.strip().lower() in CONSUMED and name in later.columns.metrics:
            before = column_of(earlier, name).values[steps_of(earlier) == step]
            after = column_of(later, name).values[steps_of(later) == step]
            if np.isfinite(before).all() and np.isfinite(after).all():
                return float(before[0]), float(after[0])
    return None
