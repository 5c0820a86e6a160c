"""Rows of named values, one a record, sorted by rank and attempt into points.

This module never parses a number's text itself and never opens a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spiketriage.nouns.series import LogFacts, Rollback, Series
from spiketriage.nouns.telemetry import Event
from spiketriage.readers.telemetry.series import scalars
from spiketriage.readers.telemetry.series.attempts import Origin, Traced, between
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.readers.telemetry.series.points import UNKNOWN_TIME, Points
from spiketriage.wire.chain import METRICS

RANK_KEYS = ("rank", "global_rank", "process_index")
ATTEMPT_KEYS = ("attempt", "restart_count", "restart")
TIME_KEYS = ("_timestamp", "timestamp", "wall_time", "time_s", "unix_time")
NO_STEP = "no step key"
TRUST = "as the trainer wrote it"
_MAX_NAMED = 3
_MAX_METRICS = 100_000  # a file that makes a new name on every line is no table of metrics


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank and attempt a row belongs to; None where it does not say."""

    rank: int | None
    attempt: int | None


@dataclass(slots=True, kw_only=True)
class Rows:
    """The rows of one source.

    `add` takes a record, `at` the points of a rank and attempt for whole columns.
    """

    source: str
    names: Names
    rank: int | None = None
    first_attempt: int = 0
    trusted: bool = True
    trust: str = TRUST
    is_last_line: bool = False
    num_objects: int = 0
    num_matched: int = 0
    num_bad: int = 0
    num_no_step: int = 0
    next_row: int = 0
    left_out: set[str] = field(default_factory=set)
    _places: dict[Place, Points] = field(default_factory=dict)
    _bad: list[str] = field(default_factory=list)
    _names_seen: set[str] = field(default_factory=set)

    def at(self, place: Place) -> Points:
        """The points of one rank and attempt."""
        if place.rank is None:
            place = Place(self.rank, place.attempt)
        return self._places.setdefault(place, Points())

    def take_line(self, line: bytes, number: int) -> None:
        """One line of JSON; what is none is counted and named."""
        record = scalars.json_or_none(line)
        if isinstance(record, dict):
            self.add(record)
            return
        self.num_bad += 1
        if len(self._bad) < _MAX_NAMED:
            what = "is no JSON object"
            if self.is_last_line:
                what = "is torn: its writer died or is still writing"
            self._bad.append(f"line {number} {what}: {line[:40]!r}")

    def add(
        self, record: Mapping[str, object], *, step: int | None = None, time_s: float | None = None
    ) -> None:
        """One record; its step and time may be known from elsewhere."""
        self.num_objects += 1
        values = scalars.flat(record)
        step_key = None
        if step is None:
            step_key = self.names.step_key(values)
            if step_key is not None:
                step = scalars.step(values[step_key])
        if step is None:
            self.num_no_step += 1
            return
        place = Place(_first(values, RANK_KEYS), _first(values, ATTEMPT_KEYS))
        if time_s is None:
            time_s = _time_of(values)
        if step_key is not None:
            values.pop(step_key)
        for key in (*RANK_KEYS, *ATTEMPT_KEYS):
            # One that is no count is a metric that happens to be called so.
            if scalars.step(values.get(key)) is not None:
                values.pop(key)
        self.put(values, place=place, step=step, time_s=time_s)

    def put(
        self, values: Mapping[str, object], *, place: Place, step: int, time_s: float = float("nan")
    ) -> None:
        """The numbers among `values` as points of one row."""
        points = self.at(place)
        for key, value in values.items():
            number = self._number(key, value)
            if number is None or not self._is_room(key):
                continue
            reason = ""
            if isinstance(value, str):
                reason = f"written as the text {value!r}"
            points.add(
                key, row=self.next_row, step=step, value=number, time_s=time_s, reason=reason
            )
        self.next_row += 1
        self.num_matched += 1

    def _number(self, key: str, value: object) -> float | None:
        number = scalars.number(value)
        if number is not None or self.names.canonical(key) not in METRICS:
            return number
        if isinstance(value, bool):
            return float(value)  # `"skipped": true`
        if isinstance(value, str):
            # transformers 5 quotes the numbers of its own metrics
            return scalars.number_in_text(value)
        return None

    def _is_room(self, key: str) -> bool:
        if key in self._names_seen:
            return True
        if len(self._names_seen) >= _MAX_METRICS:
            self.left_out.add("more names than a run has metrics: the later ones were left out")
            return False
        self._names_seen.add(key)
        return True

    def problems(self) -> list[str]:
        """What could not be read, one sentence each."""
        sentences = list(self._bad)
        more = self.num_bad - len(self._bad)
        if more:
            sentences.append(f"{more} more lines are no JSON object")
        return [*sentences, *sorted(self.left_out)]

    def notes(self) -> list[str]:
        """What is left out without being wrong."""
        if not self.num_no_step:
            return []
        return [
            f"{self.num_no_step} of {self.num_objects} records have {NO_STEP} and were left out"
        ]

    def trace(self) -> Traced:
        """The series of all ranks and attempts.

        An attempt that a column names is not cut further.
        """
        series: list[Series] = []
        rollbacks: list[Rollback] = []
        notes: list[str] = []
        before: dict[int | None, tuple[Series, ...]] = {}  # the attempt before, by rank
        num_attempts = 0
        for place in sorted(self._places, key=_by_rank_and_attempt):
            origin = Origin(
                source=self.source,
                rank=place.rank,
                first_attempt=self.first_attempt if place.attempt is None else place.attempt,
                may_split=place.attempt is None,
                trusted=self.trusted,
                trust=self.trust,
            )
            traced = self._places[place].trace(origin, self.names)
            series += traced.series
            rollbacks += traced.rollbacks
            back = between(before.get(place.rank, ()), traced.series)
            if back is not None:
                rollbacks.append(back)
            before[place.rank] = traced.series
            num_attempts = max(num_attempts, origin.first_attempt + traced.num_attempts)
            notes += traced.notes
        return Traced(
            series=tuple(series),
            rollbacks=tuple(dict.fromkeys(rollbacks)),
            num_attempts=num_attempts,
            notes=tuple(dict.fromkeys(notes)),
        )


def _by_rank_and_attempt(place: Place) -> tuple[int, int]:
    """What no rank wrote comes first."""
    rank = -1 if place.rank is None else place.rank
    return rank, place.attempt or 0


def _time_of(values: Mapping[str, object]) -> float:
    for key in TIME_KEYS:
        time_s = scalars.number(values.get(key))
        if time_s is not None:
            return time_s
    return UNKNOWN_TIME


def _first(values: Mapping[str, object], keys: Sequence[str]) -> int | None:
    """The first count among these keys."""
    for key in keys:
        count = scalars.step(values.get(key))
        if count is not None and count >= 0:
            return count
    return None


def summed(
    name: str, path: Path, parts: Sequence[LogFacts], problems: Sequence[str] = ()
) -> LogFacts:
    """Several files of one source as one.

    A part that is not the source itself is named in its sentences.
    """
    series: list[Series] = []
    rollbacks: list[Rollback] = []
    events: list[Event] = []
    identity: dict[str, str] = {}
    sentences = list(problems)
    notes: list[str] = []
    for part in parts:
        prefix = "" if part.path == path else f"{part.path.name}: "
        series += part.series
        rollbacks += part.rollbacks
        events += part.events
        identity.update(part.identity)
        sentences += [prefix + problem for problem in part.problems]
        notes += [prefix + note for note in part.notes]
    return LogFacts(
        format=name,
        path=path,
        series=tuple(series),
        rollbacks=tuple(dict.fromkeys(rollbacks)),
        events=tuple(events),
        identity=identity,
        num_lines=sum(part.num_lines for part in parts),
        num_matched=sum(part.num_matched for part in parts),
        num_near_misses=sum(part.num_near_misses for part in parts),
        problems=tuple(sentences),
        notes=tuple(dict.fromkeys(notes)),
    )
