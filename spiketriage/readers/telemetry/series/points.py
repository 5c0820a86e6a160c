"""Points of one telemetry source and rank, gathered by metric, one by one or in blocks.

This module never sorts, averages or drops a point: a second value for a step stays as a fact.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from spiketriage.nouns.series import Floats
from spiketriage.readers.telemetry.series.attempts import Block, Column, Origin, Traced, cut
from spiketriage.readers.telemetry.series.names import Names

FROM_ZERO = (
    "the log numbers a step from 0; here it is one more, the number of optimizer steps "
    "that are done when it ends, "
    "as checkpoints count"
)
UNKNOWN_TIME = float("nan")


@dataclass(slots=True)
class _Pending:
    """Points that came one by one; half the memory of lists, and NumPy reads it as it is."""

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
    """Points by the name that the source gives a metric."""

    _pending: dict[str, _Pending] = field(default_factory=dict)
    _blocks: dict[str, list[Block]] = field(default_factory=dict)
    _reasons: dict[str, dict[int, str]] = field(default_factory=dict)
    _begun: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._pending or self._blocks)

    def __contains__(self, written: str) -> bool:
        return written in self._pending or written in self._blocks

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics so far, as written."""
        return tuple({**self._blocks, **self._pending})

    @property
    def num_begun(self) -> int:
        """Attempts that a reader saw begin."""
        return len(self._begun)

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

    def begin_attempt(self, row: int) -> None:
        """The points from this row on are of a new attempt."""
        self._begun.append(row)

    def drop(self, written: str) -> None:
        """Forget a metric that turned out not to be in the source."""
        for kept in (self._pending, self._blocks, self._reasons):
            kept.pop(written, None)

    def of_first_attempt(self, written: str) -> Block | None:
        """The points of a metric up to where a second attempt begins."""
        points = self.of(written)
        if points is None or not self._begun:
            return points
        return points.part(slice(0, int(np.searchsorted(points.rows, self._begun[0]))))

    def of(self, written: str) -> Block | None:
        """Every point of a metric, in the order of rows."""
        blocks = list(self._blocks.get(written, ()))
        if written in self._pending:
            blocks.append(self._pending[written].block())
        if not blocks:
            return None
        joined = blocks[0]
        if len(blocks) > 1:
            joined = Block(
                rows=np.concatenate([block.rows for block in blocks]),
                steps=np.concatenate([block.steps for block in blocks]),
                values=np.concatenate([block.values for block in blocks]),
                times_s=_joined_times(blocks),
            )
        if np.all(joined.rows[1:] >= joined.rows[:-1]):
            return joined
        return joined.part(np.argsort(joined.rows, kind="stable"))

    def trace(self, origin: Origin, names: Names) -> Traced:
        """Every metric as one series an attempt."""
        return cut(list(self._columns()), self._begun, origin, names)

    def _columns(self) -> Iterator[Column]:
        for written in self.names:
            points = self.of(written)
            if points is not None:
                yield Column(
                    written_as=written, points=points, reasons=self._reasons.get(written, {})
                )


def _joined_times(blocks: Sequence[Block]) -> Floats | None:
    if all(block.times_s is None for block in blocks):
        return None
    times = []
    for block in blocks:
        if block.times_s is None:
            times.append(np.full(len(block.rows), UNKNOWN_TIME))
        else:
            times.append(block.times_s)
    return np.concatenate(times)
