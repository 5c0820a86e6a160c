"""All segments of a run together: which attempt's record counts as production, step by step.

This module never judges a value; a segment that cannot be read becomes a problem in words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from spiketriage.nouns.series import LogFacts
from spiketriage.nouns.telemetry import Identity, LoadRecord, Segment, StepRecord
from spiketriage.readers.telemetry.run import native


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
        return self._steps

    @property
    def _steps(self) -> str:
        return f"steps {self.first_step}–{self.last_step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """The segments of a run.

    Production at a step is the latest attempt in which any rank recorded it: one attempt for all
    ranks, so that a rank whose newest segment is torn is absent there, not compared with an
    abandoned attempt. `logs` are the sources that other people's code wrote; the segments of such a
    run hold metrics only, and `notes` say which sources were left out, how steps were numbered, and
    what our recorders themselves left out.
    """

    segments: tuple[Segment, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    logs: tuple[LogFacts, ...] = ()
    _attempts: dict[int, int] = field(init=False, repr=False, compare=False)
    _records: dict[tuple[int, int], StepRecord] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        attempts: dict[int, int] = {}
        for segment in self.segments:
            for record in segment.steps:
                attempts[record.step] = max(segment.attempt, attempts.get(record.step, 0))
        records = {
            (record.rank, record.step): record
            for segment in self.segments
            for record in segment.steps
            if attempts[record.step] == segment.attempt
        }
        object.__setattr__(self, "_attempts", dict(sorted(attempts.items())))
        object.__setattr__(self, "_records", records)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that left at least one segment."""
        return tuple(sorted({segment.rank for segment in self.segments}))

    @property
    def attempts(self) -> tuple[int, ...]:
        """Attempts that left at least one segment."""
        return tuple(sorted({segment.attempt for segment in self.segments}))

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps that at least one rank recorded, in order."""
        return tuple(self._attempts)

    @property
    def loads(self) -> tuple[LoadRecord, ...]:
        """Loads of all attempts and ranks."""
        result: list[LoadRecord] = []
        for segment in self.segments:
            for load in segment.loads:
                result.append(load)
        return tuple(result)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that some attempt's identity promises and that left no readable segment of that attempt."""
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
        """Problems of segments of which nothing can be read."""
        known = {segment.problem for segment in self.segments}
        return tuple(problem for problem in self.problems if problem not in known)

    def _lost(self, segment: Segment) -> Lost:
        own = {record.step for record in segment.steps}
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
        return self._records.get((rank, step))

    def attempt_of(self, step: int) -> int | None:
        """The attempt that is production at `step`."""
        return self._attempts.get(step)

    def lineage(self, rank: int) -> tuple[StepRecord, ...]:
        """Production on `rank`, by step."""
        result: list[StepRecord] = []
        for step in self._attempts:
            if (rank, step) in self._records:
                result.append(self._records[rank, step])
        return tuple(result)

    def identity(self, step: int) -> Identity | None:
        """Identity of the attempt that produced `step`, as its lowest rank wrote it."""
        attempt = self._attempts.get(step)
        own = [segment for segment in self.segments if segment.attempt == attempt]
        if own:
            return min(own, key=lambda segment: segment.rank).identity
        return None
