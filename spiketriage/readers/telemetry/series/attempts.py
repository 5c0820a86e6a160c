"""Cuts the points of one source and rank into attempts, where a metric goes back or repeats a step.

This module never drops or reorders a point, and never cuts where a reader knows the attempts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from spiketriage.nouns.series import Floats, Integers, Rollback, Series
from spiketriage.readers.telemetry.series.names import Names

MAX_ATTEMPTS = 1000  # a source that goes back more often was written by several processes at once
# A job that dies right behind a checkpoint logs one step twice. A log that repeats steps more often
# has several rows a step: ranks, splits, or an evaluation beside the training.
MAX_REPEATED_STEPS = 3
REPEATING = ("loss/mean", "grad/norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Points of one metric; `rows` increase and say which points were written together."""

    rows: Integers
    steps: Integers
    values: Floats
    times_s: Floats | None = None

    def part(self, where: slice | Integers | NDArray[np.bool_]) -> Block:
        """Some of its points, by place or by mask."""
        return Block(
            rows=self.rows[where],
            steps=self.steps[where],
            values=self.values[where],
            times_s=None if self.times_s is None else self.times_s[where],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where points come from and how far they can be trusted.

    `may_split` is False where the attempts are known.
    """

    source: str
    rank: int | None = None
    first_attempt: int = 0
    may_split: bool = True
    trusted: bool = True
    trust: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The series of one source and rank, where it went back, and what remains to be said."""

    series: tuple[Series, ...]
    rollbacks: tuple[Rollback, ...]
    num_attempts: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """All points of one metric, and by row why a value is not the one that was written."""

    written_as: str
    points: Block
    reasons: Mapping[int, str]


def cut(columns: Sequence[Column], begun: Sequence[int], origin: Origin, names: Names) -> Traced:
    """Every metric as one series an attempt; at the rows `begun` a reader saw one begin."""
    blocks = [column.points for column in columns]
    starts, notes = list(begun), list[str]()
    if origin.may_split:
        trained = set()
        for column in columns:
            if names.canonical(column.written_as) in REPEATING:
                trained.add(id(column.points.steps))
        starts, notes = _starts(blocks, trained)
    series: list[Series] = []
    for column in columns:
        series += _series(column, starts, origin, names)
    rollbacks = []
    for number, row in enumerate(starts, start=1):
        rollbacks.append(_rollback(blocks, row, origin.first_attempt + number))
    return Traced(
        series=tuple(series),
        rollbacks=tuple(rollbacks),
        num_attempts=len(starts) + 1,
        notes=tuple(notes),
    )


def _starts(blocks: Iterable[Block], trained: Collection[int]) -> tuple[list[int], list[str]]:
    """The rows at which an attempt begins: a metric goes back behind a step that this one has.

    Where one of `trained`, by the identity of its steps, takes a step again and goes on, too.
    """
    back: list[Integers] = []
    repeated: list[Integers] = []
    seen: set[int] = set()  # columns of one table share their arrays
    for block in blocks:
        if id(block.steps) in seen:
            continue
        seen.add(id(block.steps))
        falls = np.flatnonzero(block.steps[1:] < block.steps[:-1])
        repeats = np.flatnonzero(block.steps[1:] == block.steps[:-1])
        back.append(_edges(block, falls))
        if id(block.steps) in trained:
            back.append(_edges(block, _taken_again(block, repeats)))
        repeated.append(block.rows[repeats + 1])
    starts: list[int] = []
    for row, previous in np.unique(np.concatenate(back), axis=0).tolist() if back else []:
        if not starts or previous >= starts[-1]:
            starts.append(row)
    notes = list(_of_repeats(repeated, starts))
    if len(starts) > MAX_ATTEMPTS:
        notes.append(
            f"steps go back {len(starts)} times, as where several processes write at once: "
            "not cut in attempts"
        )
        return [], notes
    return starts, notes


def _of_repeats(repeated: Iterable[Integers], starts: Sequence[int]) -> Iterator[str]:
    """What is said of repeated steps that begin no attempt."""
    num_kept = 0
    for rows in repeated:
        num_kept = max(num_kept, int(np.count_nonzero(~np.isin(rows, starts))))
    if num_kept:
        yield f"up to {num_kept} points of a metric repeat the step before them; all kept"


def _edges(block: Block, places: Integers) -> Integers:
    """The rows behind and before each of these places."""
    return np.stack([block.rows[places + 1], block.rows[places]], axis=1)


def _taken_again(block: Block, repeats: Integers) -> Integers:
    """Of the places before a repeated step those at which a run went on from a checkpoint."""
    if len(repeats) > MAX_REPEATED_STEPS:
        return repeats[:0]
    # The first row may be an evaluation before the training, the last that of a trainer that ends.
    return repeats[(repeats > 0) & (repeats + 2 < len(block.steps))]


def _series(
    column: Column, starts: Sequence[int], origin: Origin, names: Names
) -> Iterator[Series]:
    points, size = column.points, len(column.points.rows)
    cuts = np.searchsorted(points.rows, np.array(starts, dtype=np.int64)).tolist()
    reasons = _by_position(column)
    for number, (start, end) in enumerate(pairwise([0, *cuts, size])):
        if start == end:
            continue
        part = points
        if end - start < size:
            part = points.part(slice(start, end))
        times_s = part.times_s
        if times_s is not None and bool(np.isnan(times_s).all()):
            times_s = None
        yield Series(
            source=origin.source,
            name=names.canonical(column.written_as),
            written_as=column.written_as,
            attempt=origin.first_attempt + number,
            rank=origin.rank,
            steps=part.steps,
            values=part.values,
            times_s=times_s,
            reasons={at - start: text for at, text in reasons.items() if start <= at < end},
            trusted=origin.trusted,
            trust=origin.trust,
        )


def _by_position(column: Column) -> dict[int, str]:
    """The reasons by position among the points instead of by row."""
    rows = sorted(column.reasons)
    positions = np.searchsorted(column.points.rows, np.array(rows, dtype=np.int64)).tolist()
    return {at: column.reasons[row] for at, row in zip(positions, rows, strict=True)}


def _rollback(blocks: Iterable[Block], row: int, attempt: int) -> Rollback:
    last = first = (-1, 0)
    for block in blocks:
        place = int(np.searchsorted(block.rows, row))
        if place:
            last = max(last, (int(block.rows[place - 1]), int(block.steps[place - 1])))
        if place < len(block.rows) and int(block.rows[place]) == row:
            first = (row, int(block.steps[place]))
    return Rollback(attempt=attempt, last_step=last[1], first_step=first[1])


def between(earlier: Sequence[Series], later: Sequence[Series]) -> Rollback | None:
    """The rollback from the last attempt of `earlier` to the first of `later`.

    None where that goes on.
    """
    if not earlier or not later:
        return None
    ended = max(series.attempt for series in earlier)
    begun = min(series.attempt for series in later)
    last = max(int(series.steps[-1]) for series in earlier if series.attempt == ended)
    first = min(int(series.steps[0]) for series in later if series.attempt == begun)
    if first <= last and begun > ended:
        return Rollback(attempt=begun, last_step=last, first_step=first)
    return None
