"""The metrics of a segment by column: from the series of a log, and back to records where asked.

This module never makes a record before somebody wants one, and never fills in a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

import numpy as np

from spiketriage.nouns.series import Integers, Series
from spiketriage.nouns.telemetry import MetricColumn, Segment, StepColumns, StepRecord

Reading = Callable[[StepRecord], float | None]  # a value of one record; None where it has none


class RecordsOfColumns(Sequence[StepRecord]):
    """The records of a segment that is kept as columns, all made when the first is asked for."""

    def __init__(self, columns: StepColumns, *, attempt: int, rank: int) -> None:
        self._columns = columns
        self._attempt = attempt
        self._rank = rank
        self._records: tuple[StepRecord, ...] | None = None

    def __len__(self) -> int:
        return len(self._columns.steps)

    @overload
    def __getitem__(self, at: int) -> StepRecord: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[StepRecord]: ...

    def __getitem__(self, at: int | slice) -> StepRecord | Sequence[StepRecord]:
        return self._made()[at]

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self._made())

    def _made(self) -> tuple[StepRecord, ...]:
        if self._records is None:
            self._records = tuple(self._make())
        return self._records

    def _make(self) -> Iterator[StepRecord]:
        columns = self._columns
        metrics: list[dict[str, float]] = [{} for _ in columns.steps]
        for name, column in columns.metrics.items():
            where = np.flatnonzero(column.is_logged)
            for at, value in zip(where.tolist(), column.values[where].tolist(), strict=True):
                metrics[at][name] = value
        steps, times_s = columns.steps.tolist(), columns.times_s.tolist()
        for step, values, time_s in zip(steps, metrics, times_s, strict=True):
            yield StepRecord(
                attempt=self._attempt,
                rank=self._rank,
                step=step,
                metrics=values,
                digests={},
                nonfinite=(),
                ids=None,
                content={},
                series={},
                wall_time_s=time_s,
            )


def columns_of(series: Sequence[Series]) -> StepColumns:
    """The points of all series by step; of a step that a series repeats, the last word counts."""
    steps = _union([metric_series.steps for metric_series in series])
    metrics: dict[str, MetricColumn] = {}
    times_s = np.full(len(steps), np.nan)
    for metric_series in series:
        where = places_of(metric_series.steps, steps)
        column = metrics.get(metric_series.name)
        if column is None:
            column = metrics[metric_series.name] = _empty_column(len(steps))
        column.values[where] = metric_series.values
        column.is_logged[where] = True
        if metric_series.times_s is not None:
            times_s[where] = metric_series.times_s
    return StepColumns(steps=steps, metrics=metrics, times_s=times_s)


def _union(arrays: Sequence[Integers]) -> Integers:
    """Every step once, in order; the columns of one table have the same steps already."""
    first = arrays[0]
    if bool((first[1:] > first[:-1]).all()) and all(np.array_equal(first, a) for a in arrays):
        return first
    return np.unique(np.concatenate(arrays))


def places_of(wanted: Integers, steps: Integers) -> Integers:
    """Where each of the wanted steps stands among `steps`, which grow and hold them all."""
    if np.array_equal(wanted, steps):
        return np.arange(len(steps))
    return np.searchsorted(steps, wanted)


def _empty_column(size: int) -> MetricColumn:
    return MetricColumn(values=np.full(size, np.nan), is_logged=np.zeros(size, dtype=np.bool_))


def steps_of(segment: Segment) -> Integers:
    """The steps of a segment, in the order of its records."""
    if segment.columns is not None:
        return segment.columns.steps
    return np.array([record.step for record in segment.steps], dtype=np.int64)


def column_of(segment: Segment, metric: str) -> MetricColumn:
    """One metric of a segment; nothing is logged where the segment does not know it."""
    if segment.columns is None:
        return column_of_records(segment.steps, lambda record: record.metrics.get(metric))
    column = segment.columns.metrics.get(metric)
    if column is None:
        return _empty_column(len(segment.columns.steps))
    return column


def column_of_records(records: Iterable[StepRecord], reading: Reading) -> MetricColumn:
    """What `reading` gives of each record."""
    values = [reading(record) for record in records]
    return MetricColumn(
        values=np.array([np.nan if value is None else value for value in values], dtype=np.float64),
        is_logged=np.array([value is not None for value in values], dtype=np.bool_),
    )
