"""Series of other people's logs as tables of one row a step, for `telemetry_table.write_parquet`.

This module never drops a point: a step that a source gives twice has two rows, and what a log hides
stays NaN.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spiketriage.evidence.telemetry_table import BUCKET_STEPS, FEW_ROWS, Table, column_names
from spiketriage.nouns.series import Floats, Integers, Series

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One metric of one origin, by step; `times_s` is NaN where there is none."""

    steps: Integers
    values: Floats
    times_s: Floats

    def part(self, start: int, end: int | None) -> _Line:
        """Its points from the step `start` up to `end`."""
        first = int(np.searchsorted(self.steps, start))
        last = self.steps.size
        if end is not None:
            last = int(np.searchsorted(self.steps, end))
        return _Line(
            steps=self.steps[first:last],
            values=self.values[first:last],
            times_s=self.times_s[first:last],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Whose rows they are."""

    source: str
    attempt: int
    rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Rows of one origin, by step; a column is null where its flag is not set."""

    origin: _Origin
    steps: Integers
    times_s: Floats
    values: Mapping[str, Floats]
    present: Mapping[str, Flags]


def tables(series: Iterable[Series]) -> Iterator[Table]:
    """The points of all series, bucket after bucket.

    `production` marks the latest attempt that has the step.
    """
    origins = _origins(series)
    metrics: set[str] = set()
    lines: list[_Line] = []
    for by_metric in origins.values():
        metrics.update(by_metric)
        lines += by_metric.values()
    columns = column_names(sorted(metrics))
    sources = sorted({origin.source for origin in origins})
    starts = _starts(lines)
    for start, end in zip(starts, [*starts[1:], None], strict=False):
        parts = []
        for origin, by_metric in origins.items():
            own = {columns[name]: line.part(start, end) for name, line in by_metric.items()}
            rows = _rows(origin, own)
            if rows.steps.size:
                parts.append(rows)
        yield _table(parts, list(columns.values()), sources)


def _origins(series: Iterable[Series]) -> dict[_Origin, dict[str, _Line]]:
    by_origin: dict[_Origin, dict[str, list[Series]]] = defaultdict(lambda: defaultdict(list))
    for part in series:
        if part.steps.size:
            origin = _Origin(source=part.source, attempt=part.attempt, rank=part.rank)
            by_origin[origin][part.name].append(part)
    lines: dict[_Origin, dict[str, _Line]] = {}
    for origin, parts in by_origin.items():
        lines[origin] = {name: _line(same) for name, same in parts.items()}
    return lines


def _line(series: Sequence[Series]) -> _Line:
    steps = _joined([part.steps for part in series])
    values = _joined([part.values for part in series])
    times_s = _joined([_times(part) for part in series])
    if (steps[1:] < steps[:-1]).any():
        order = np.argsort(steps, kind="stable")
        steps, values, times_s = steps[order], values[order], times_s[order]
    return _Line(steps=steps, values=values, times_s=times_s)


def _times(series: Series) -> Floats:
    """The times of a series; where it has none, NaN that takes no memory."""
    if series.times_s is not None:
        return series.times_s
    return np.broadcast_to(np.float64(np.nan), series.steps.size)


def _joined(arrays: Sequence[Any]) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays)


def _starts(lines: Sequence[_Line]) -> list[int]:
    """The steps at which tables begin.

    Each holds whole buckets, and few only if its one bucket is large.
    """
    if not lines:
        return []
    buckets, firsts, counts = [], [], []
    for line in lines:
        ids, index, count = np.unique(
            line.steps // BUCKET_STEPS, return_index=True, return_counts=True
        )
        buckets.append(ids)
        firsts.append(line.steps[index])
        counts.append(count)
    order = np.lexsort((np.concatenate(firsts), np.concatenate(buckets)))
    bucket, first, count = (np.concatenate(arrays)[order] for arrays in (buckets, firsts, counts))
    edges = np.flatnonzero(np.append(True, bucket[1:] != bucket[:-1]))
    starts: list[int] = []
    num_points = FEW_ROWS
    for step, added in zip(
        first[edges].tolist(), np.add.reduceat(count, edges).tolist(), strict=True
    ):
        if num_points >= FEW_ROWS:
            starts.append(step)
            num_points = 0
        num_points += added
    return starts


def _rows(origin: _Origin, lines: Mapping[str, _Line]) -> _Rows:
    """The points of all metrics side by side: the n-th of a step is in the step's n-th row."""
    occurrences = {name: _occurrences(line.steps) for name, line in lines.items()}
    all_steps, all_steps_of = np.unique(
        np.concatenate([line.steps for line in lines.values()]), return_inverse=True
    )
    nth = np.concatenate(list(occurrences.values()))
    width = int(nth.max(initial=0)) + 1
    keys, positions = np.unique(all_steps_of * width + nth, return_inverse=True)
    times_s = np.full(keys.size, np.nan)
    values = {name: np.full(keys.size, np.nan) for name in lines}
    present = {name: np.zeros(keys.size, np.bool_) for name in lines}
    start = 0
    for name, line in lines.items():
        place = positions[start : start + line.steps.size]
        start += line.steps.size
        values[name][place] = line.values
        present[name][place] = True
        timed = ~np.isnan(line.times_s)
        times_s[place[timed]] = line.times_s[timed]
    return _Rows(
        origin=origin,
        steps=all_steps[keys // width],
        times_s=times_s,
        values=values,
        present=present,
    )


def _occurrences(steps: Integers) -> Integers:
    """How many times each of these ordered steps came before."""
    places: Integers = np.arange(steps.size)
    repeats = np.append(False, steps[1:] == steps[:-1])[: steps.size]
    first: Integers = np.maximum.accumulate(np.where(repeats, 0, places))
    return places - first


def _table(parts: Sequence[_Rows], columns: Sequence[str], sources: Sequence[str]) -> Table:
    import pyarrow as pa

    sizes = [part.steps.size for part in parts]
    steps = np.concatenate([part.steps for part in parts])
    source = np.repeat([sources.index(part.origin.source) for part in parts], sizes)
    attempt = np.repeat([part.origin.attempt for part in parts], sizes)
    rank = np.repeat([part.origin.rank or 0 for part in parts], sizes)
    unranked = np.repeat([part.origin.rank is None for part in parts], sizes)
    times_s = np.concatenate([part.times_s for part in parts])
    names = pa.array([_spelled(name) for name in sources], pa.string())
    table = {
        "source": pa.DictionaryArray.from_arrays(pa.array(source, pa.int32()), names),
        "attempt": pa.array(attempt, pa.int64()),
        "rank": pa.array(rank, pa.int64(), mask=unranked),
        "step": pa.array(steps, pa.int64()),
        "production": pa.array(attempt == _latest(source, steps, attempt), pa.bool_()),
        "wall_time_s": pa.array(times_s, pa.float64(), mask=np.isnan(times_s)),
    }
    for column in columns:
        values = [part.values.get(column, np.full(part.steps.size, np.nan)) for part in parts]
        present = [part.present.get(column, np.zeros(part.steps.size, np.bool_)) for part in parts]
        table[column] = pa.array(
            np.concatenate(values), pa.float64(), mask=~np.concatenate(present)
        )
    return pa.table(table)


def _latest(source: Integers, steps: Integers, attempt: Integers) -> Integers:
    """The latest attempt, row by row, in which any rank of the same source has the step."""
    _, step_of = np.unique(steps, return_inverse=True)
    group = step_of * (int(source.max()) + 1) + source
    latest: Integers = np.full(int(group.max()) + 1, attempt.min())
    np.maximum.at(latest, group, attempt)
    by_row: Integers = latest[group]
    return by_row


def _spelled(name: str) -> str:
    """A file's name as text that Parquet can hold: bytes that are not UTF-8 are spelled out."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
