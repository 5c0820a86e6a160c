"""All segments of a run together: which attempt's record counts as production, step by step.

This module never judges a value; a segment that cannot be read becomes a problem in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from spiketriage.nouns.series import Integers, LogFacts
from spiketriage.nouns.telemetry import Identity, LoadRecord, MetricColumn, Segment, StepRecord
from spiketriage.readers.telemetry.run.columns import (
    Reading,
    column_of,
    column_of_records,
    places_of,
    steps_of,
)
from spiketriage.readers.telemetry.stores import native


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Records of one segment that cannot be read.

    The steps are those that other ranks recorded, if any.
    """

    path: Path
    rank: int
    first_step: int | None
    last_step: int | None
    is_torn_tail: bool
    problem: str

    @property
    def span(self) -> str:
        """`step 219`, `steps 219–260`, or what can be said when no other rank recorded them."""
        if self.first_step is None:
            return "records"
        if self.first_step == self.last_step:
            return f"step {self.first_step}"
        return f"steps {self.first_step}–{self.last_step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """Steps that an attempt took and a later one took again, or left behind when it went back.

    `is_all` where nothing of the attempt is left: a later one started over from the first step.
    """

    attempt: int
    first_step: int
    last_step: int
    is_all: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """A segment and its steps."""

    segment: Segment
    steps: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """The segments of a run.

    Production is the last attempt, and of each attempt before it the steps up to where a later one
    began: what was rolled back is `abandoned`. A step is of one attempt for all ranks, so that a
    rank whose newest segment is torn is absent there, not compared with an abandoned one. `logs`
    are the sources that other people's code wrote; the segments of such a run hold metrics only,
    and `notes` say which sources were left out, how steps were numbered, and what our recorders
    themselves left out.
    """

    segments: tuple[Segment, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    logs: tuple[LogFacts, ...] = ()
    _ends: dict[int, float] = field(init=False, repr=False, compare=False)
    _attempts: dict[int, int] = field(init=False, repr=False, compare=False)
    _step_column: Integers = field(init=False, repr=False, compare=False)
    _attempt_column: Integers = field(init=False, repr=False, compare=False)
    _by_rank: dict[int, list[_Recorded]] = field(init=False, repr=False, compare=False)
    _records: dict[tuple[int, int], StepRecord] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        recorded: list[_Recorded] = []
        by_rank: dict[int, list[_Recorded]] = {}
        for segment in self.segments:
            own = _Recorded(segment=segment, steps=steps_of(segment))
            recorded.append(own)
            by_rank.setdefault(segment.rank, []).append(own)
        ends = _ends(recorded)
        steps, attempts = _production(recorded, ends)
        by_step = dict(zip(steps.tolist(), attempts.tolist(), strict=True))
        object.__setattr__(self, "_ends", ends)
        object.__setattr__(self, "_attempts", by_step)
        object.__setattr__(self, "_step_column", steps)
        object.__setattr__(self, "_attempt_column", attempts)
        object.__setattr__(self, "_by_rank", by_rank)

    @property
    def is_our_own(self) -> bool:
        """Whether our recorder alone wrote it."""
        return bool(self.segments) and not self.logs

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that left at least one segment."""
        return tuple(sorted(self._by_rank))

    @property
    def attempts(self) -> tuple[int, ...]:
        """Attempts that left at least one segment."""
        return tuple(sorted({segment.attempt for segment in self.segments}))

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps that at least one rank recorded, in order."""
        return tuple(self._attempts)

    @property
    def num_steps(self) -> int:
        """How many steps at least one rank recorded."""
        return len(self._step_column)

    @property
    def abandoned(self) -> tuple[Abandoned, ...]:
        """What was rolled back, by attempt."""
        tails: list[Abandoned] = []
        for attempt in self.attempts:
            end = self._ends[attempt]
            own: list[int] = []
            for segment in self.segments:
                if segment.attempt == attempt:
                    own += steps_of(segment).tolist()
            behind = [step for step in own if step >= end]
            if behind:
                tails.append(
                    Abandoned(
                        attempt=attempt,
                        first_step=min(behind),
                        last_step=max(behind),
                        is_all=len(behind) == len(own),
                    )
                )
        return tuple(tails)

    def until(self, attempt: int) -> Telemetry:
        """The run as it was when `attempt` was its last."""
        before = tuple(segment for segment in self.segments if segment.attempt <= attempt)
        return replace(self, segments=before)

    @property
    def loads(self) -> tuple[LoadRecord, ...]:
        """Loads of all attempts and ranks."""
        loads: list[LoadRecord] = []
        for segment in self.segments:
            loads += segment.loads
        return tuple(loads)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that an attempt's identity promises and that left no readable segment of it."""
        missing: set[int] = set()
        for attempt in self.attempts:
            own = [segment for segment in self.segments if segment.attempt == attempt]
            if own[0].identity is not None:
                missing |= set(range(own[0].identity.world_size)) - {
                    segment.rank for segment in own
                }
        return tuple(sorted(missing))

    @property
    def lost(self) -> tuple[Lost, ...]:
        """What each damaged segment does not tell."""
        return tuple(self._lost(segment) for segment in self.segments if segment.problem)

    @property
    def unread(self) -> tuple[str, ...]:
        """Problems of segments and logs of which nothing can be read."""
        known = {segment.problem for segment in self.segments}
        for log in self.logs:
            known.update(log.problems)
        return tuple(problem for problem in self.problems if problem not in known)

    def _lost(self, segment: Segment) -> Lost:
        own = set(steps_of(segment).tolist())
        steps = []
        for step, attempt in self._attempts.items():
            if attempt == segment.attempt and step not in own:
                steps.append(step)
        return Lost(
            path=segment.path,
            rank=segment.rank,
            first_step=steps[0] if steps else None,
            last_step=steps[-1] if steps else None,
            is_torn_tail=native.is_torn_tail(segment),
            problem=segment.problem.removeprefix(f"{segment.path.name}: "),
        )

    def at(self, rank: int, step: int) -> StepRecord | None:
        """Production's record of `step` on `rank`."""
        return self._production_records().get((rank, step))

    def attempt_of(self, step: int) -> int | None:
        """The attempt that is production at `step`."""
        return self._attempts.get(step)

    def lineage(self, rank: int) -> tuple[StepRecord, ...]:
        """Production on `rank`, by step."""
        records = self._production_records()
        lineage: list[StepRecord] = []
        for step in self._attempts:
            if (rank, step) in records:
                lineage.append(records[rank, step])
        return tuple(lineage)

    def metric(self, rank: int, name: str) -> MetricColumn:
        """One metric of production on `rank`, along `steps`; no record is made for it."""
        return self._column(rank, lambda segment: column_of(segment, name))

    def reading(self, rank: int, reading: Reading) -> MetricColumn:
        """What `reading` gives of each record of production on `rank`, along `steps`."""
        return self._column(rank, lambda segment: column_of_records(segment.steps, reading))

    def _column(self, rank: int, of: Callable[[Segment], MetricColumn]) -> MetricColumn:
        values = np.full(len(self._step_column), np.nan)
        is_logged = np.zeros(len(values), dtype=np.bool_)
        for own in self._by_rank.get(rank, ()):
            column = of(own.segment)
            in_production = own.steps < self._ends[own.segment.attempt]
            places = places_of(own.steps[in_production], self._step_column)
            # Where a segment has a step twice, its last record counts: numpy writes in order.
            values[places] = column.values[in_production]
            is_logged[places] = column.is_logged[in_production]
        return MetricColumn(values=values, is_logged=is_logged)

    def _production_records(self) -> dict[tuple[int, int], StepRecord]:
        """Production's records by rank and step, made when the first is asked for."""
        if not self._records:
            for segment in self.segments:
                for record in segment.steps:
                    if self._attempts.get(record.step) == segment.attempt:
                        self._records[record.rank, record.step] = record
        return self._records

    def identity(self, step: int) -> Identity | None:
        """Identity of the attempt that produced `step`, as its lowest rank wrote it."""
        attempt = self._attempts.get(step)
        own = [segment for segment in self.segments if segment.attempt == attempt]
        if own:
            return min(own, key=lambda segment: segment.rank).identity
        return None


def _ends(recorded: Sequence[_Recorded]) -> dict[int, float]:
    """The step at which each attempt ends for production: where the first later one began."""
    begins: dict[int, float] = {}
    for own in recorded:
        if len(own.steps):
            first = float(own.steps.min())
            begins[own.segment.attempt] = min(first, begins.get(own.segment.attempt, math.inf))
    ends: dict[int, float] = {}
    end = math.inf
    for attempt in sorted({own.segment.attempt for own in recorded}, reverse=True):
        ends[attempt] = end
        end = min(end, begins.get(attempt, math.inf))
    return ends


def _production(
    recorded: Sequence[_Recorded], ends: Mapping[int, float]
) -> tuple[Integers, Integers]:
    """Every step of production once, in order, and beside it the attempt that took it."""
    if not recorded:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    parts = [own.steps[own.steps < ends[own.segment.attempt]] for own in recorded]
    sizes = [len(part) for part in parts]
    attempts = np.repeat([own.segment.attempt for own in recorded], sizes)
    if len(parts) == 1 and bool((parts[0][1:] > parts[0][:-1]).all()):
        return parts[0], attempts
    steps, first = np.unique(np.concatenate(parts), return_index=True)
    return steps, attempts[first]
