"""Points of one telemetry source gathered by metric, and cut into attempts where a metric goes back in steps.

This module never sorts, averages or drops a point: a second value for a step stays as a fact.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from spiketriage.nouns.series import Floats, Integers, Rollback, Series
from spiketriage.readers.telemetry.series.names import Names

FROM_ZERO = (
    "the log numbers a step from 0; here it is one more, the number of optimizer steps "
    "that are done when it ends, "
    "as checkpoints count"
)
MAX_ATTEMPTS = 1000  # a source that goes back more often was written by several processes at once
UNKNOWN_TIME = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Points of one metric; `rows` increase and say which points were written together."""

    rows: Integers
    steps: Integers
    values: Floats
    times_s: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The series of one source and rank, where it went back, and what remains to be said."""

    series: tuple[Series, ...]
    rollbacks: tuple[Rollback, ...]
    num_attempts: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where points come from and how far they can be trusted.

    `may_split` is False where the attempt is known.
    """

    source: str
    rank: int | None = None
    first_attempt: int = 0
    may_split: bool = True
    trusted: bool = True
    trust: str = ""


@dataclass(slots=True)
class _Pending:
    rows: array[int] = field(default_factory=lambda: array("q"))
    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    times_s: array[float] = field(default_factory=lambda: array("d"))

    def block(self) -> Block:
        return Block(
            rows=np.array(self.rows, dtype=np.int64),
            steps=np.array(self.steps, dtype=np.int64),
            values=np.array(self.values, dtype=np.float64),
            times_s=np.array(self.times_s, dtype=np.float64),
        )


@dataclass(slots=True)
class Points:
    """Points by the name that the source gives a metric, one by one or in blocks."""

    _pending: dict[str, _Pending] = field(default_factory=dict)
    _blocks: dict[str, list[Block]] = field(default_factory=dict)
    _reasons: dict[str, dict[int, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._pending or self._blocks)

    def add(
        self,
        written: str,
        *,
        row: int,
        step: int,
        value: float,
        time_s: float = UNKNOWN_TIME,
        reason: str = "",
    ) -> None:
        """One point; `reason` says why the value is not the one that was written."""
        pending = self._pending.get(written)
        if pending is None:
            pending = self._pending[written] = _Pending()
        pending.rows.append(row)
        pending.steps.append(step)
        pending.values.append(value)
        pending.times_s.append(time_s)
        if reason:
            self._reasons.setdefault(written, {})[row] = reason

    def extend(self, written: str, block: Block) -> None:
        """Many points of one metric."""
        if len(block.rows):
            self._blocks.setdefault(written, []).append(block)

    def trace(self, origin: Origin, names: Names) -> Traced:
        """Every metric as one series an attempt."""
        columns = {written: self._column(written) for written in {**self._blocks, **self._pending}}
        starts, notes = _starts(columns.values()) if origin.may_split else ([], [])
        series = [
            one
            for written, column in columns.items()
            for one in _series(
                written, column, starts, origin, names, self._reasons.get(written, {})
            )
        ]
        return Traced(
            series=tuple(series),
            rollbacks=tuple(
                _rollback(columns.values(), row, origin.first_attempt + number)
                for number, row in enumerate(starts, start=1)
            ),
            num_attempts=len(starts) + 1,
            notes=tuple(notes),
        )

    def _column(self, written: str) -> Block:
        blocks = list(self._blocks.get(written, ()))
        if written in self._pending:
            blocks.append(self._pending[written].block())
        if len(blocks) == 1:
            joined = blocks[0]
        else:
            joined = Block(
                rows=np.concatenate([block.rows for block in blocks]),
                steps=np.concatenate([block.steps for block in blocks]),
                values=np.concatenate([block.values for block in blocks]),
                times_s=_joined_times(blocks),
            )
        if np.all(joined.rows[1:] >= joined.rows[:-1]):
            return joined
        return _select(joined, np.argsort(joined.rows, kind="stable"))


def _joined_times(blocks: Sequence[Block]) -> Floats | None:
    if all(block.times_s is None for block in blocks):
        return None
    return np.concatenate(
        [
            np.full(len(block.rows), UNKNOWN_TIME) if block.times_s is None else block.times_s
            for block in blocks
        ]
    )


def _select(block: Block, where: slice | Integers) -> Block:
    return Block(
        rows=block.rows[where],
        steps=block.steps[where],
        values=block.values[where],
        times_s=None if block.times_s is None else block.times_s[where],
    )


def _starts(columns: Iterable[Block]) -> tuple[list[int], list[str]]:
    """The rows at which an attempt begins.

    A metric goes back, of which this attempt has a later step already.
    """
    back: list[Integers] = []
    num_repeated = 0
    seen: set[int] = set()  # columns of one table share their arrays
    for column in columns:
        if id(column.steps) in seen:
            continue
        seen.add(id(column.steps))
        falls = np.flatnonzero(column.steps[1:] < column.steps[:-1])
        back.append(np.stack([column.rows[falls + 1], column.rows[falls]], axis=1))
        num_repeated = max(
            num_repeated, int(np.count_nonzero(column.steps[1:] == column.steps[:-1]))
        )
    if num_repeated:
        notes = [f"up to {num_repeated} points of a metric repeat the step before them; all kept"]
    else:
        notes = []
    starts: list[int] = []
    for row, previous in np.unique(np.concatenate(back), axis=0).tolist() if back else []:
        if not starts or previous >= starts[-1]:
            starts.append(row)
    if len(starts) > MAX_ATTEMPTS:
        notes.append(
            f"steps go back {len(starts)} times, as where several processes write at once: "
            "not cut in attempts"
        )
        return [], notes
    return starts, notes


def _series(
    written: str,
    column: Block,
    starts: Sequence[int],
    origin: Origin,
    names: Names,
    reasons: Mapping[int, str],
) -> Iterable[Series]:
    cuts = [
        0,
        *np.searchsorted(column.rows, np.array(starts, dtype=np.int64)).tolist(),
        len(column.rows),
    ]
    explained = sorted(reasons)
    positions = np.searchsorted(column.rows, np.array(explained, dtype=np.int64)).tolist()
    by_position = dict(zip(positions, (reasons[row] for row in explained), strict=True))
    for number, (start, end) in enumerate(pairwise(cuts)):
        if start == end:
            continue
        if end - start == len(column.rows):
            part = column
        else:
            part = _select(column, slice(start, end))
        times_s = part.times_s
        yield Series(
            source=origin.source,
            name=names.canonical(written),
            written_as=written,
            attempt=origin.first_attempt + number,
            rank=origin.rank,
            steps=part.steps,
            values=part.values,
            times_s=None if times_s is None or bool(np.isnan(times_s).all()) else times_s,
            reasons={
                place - start: text for place, text in by_position.items() if start <= place < end
            },
            trusted=origin.trusted,
            trust=origin.trust,
        )


def _rollback(columns: Iterable[Block], row: int, attempt: int) -> Rollback:
    last = first = (-1, 0)
    for column in columns:
        place = int(np.searchsorted(column.rows, row))
        if place:
            last = max(last, (int(column.rows[place - 1]), int(column.steps[place - 1])))
        if place < len(column.rows) and int(column.rows[place]) == row:
            first = (row, int(column.steps[place]))
    return Rollback(attempt=attempt, last_step=last[1], first_step=first[1])


def between(earlier: Sequence[Series], later: Sequence[Series]) -> Rollback | None:
    """The rollback from the last attempt of `earlier` to the first of `later`.

    None where that goes on.
    """
    if not earlier or not later:
        return None
    ended, begun = max(one.attempt for one in earlier), min(one.attempt for one in later)
    last = max(int(one.steps[-1]) for one in earlier if one.attempt == ended)
    first = min(int(one.steps[0]) for one in later if one.attempt == begun)
    if first <= last and begun > ended:
        return Rollback(attempt=begun, last_step=last, first_step=first)
    return None
