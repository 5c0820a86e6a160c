"""Collects what a reader finds in a text log and makes facts of it: series by rank, and events.

This module never parses a line; a step that goes back is a new attempt, and no value is ever
replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.series import LogFacts, Rollback, Series
from spiketriage.nouns.telemetry import Event, Severity
from spiketriage.readers.telemetry.consoles.rank_tree import placement
from spiketriage.readers.telemetry.consoles.text_lines import TextLine, TextLines
from spiketriage.readers.telemetry.series.attempts import Origin
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.readers.telemetry.series.points import Points

MAX_SERIES = 1 << 16  # a log that names more metrics than this is damage
MAX_STEP = 1 << 62  # fits 64 bits even after a step was added
MAX_EVENTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trust:
    trusted: bool
    why: str


class LogPoints:
    """The growing facts of one text log.

    `own` are the format's names of ours for what it writes (lower case).
    """

    def __init__(
        self, path: Path, names: Names, *, format: str, own: Mapping[str, str] | None = None
    ) -> None:
        self.path = path
        self.num_matched = 0
        self.num_near_misses = 0
        self.num_absurd = 0
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.identity: dict[str, str] = {}
        self.names = names
        self._format = format
        self._own = own or {}
        self._place = placement(path)
        self._lines: TextLines | None = None
        self._points: dict[int | None, Points] = {}
        self._next_row = 0
        self._is_full = False
        self._trust: dict[str, _Trust] = {}
        self._spelled: dict[str, str] = {}
        self._last: dict[int | None, int] = {}
        self._rollbacks: dict[int, Rollback] = {}
        self._events: list[Event] = []
        self._num_events = 0
        self._notions: set[str] = set()
        self._first_near_miss: TextLine | None = None

    def lines(self, *anchors: str) -> Iterator[TextLine]:
        """The lines of the log that contain one of `anchors`."""
        self._lines = TextLines(self.path, anchors)
        yield from self._lines

    def match(self, line: TextLine) -> None:
        """Count a line that was understood."""
        self.num_matched += 1
        if line.notion:
            self._notions.add(line.notion)

    def near_miss(self, line: TextLine) -> None:
        """Count a line that looks like the format's but could not be read."""
        self.num_near_misses += 1
        self._first_near_miss = self._first_near_miss or line

    def row(
        self,
        step: int,
        cells: Mapping[str, float],
        *,
        rank: int | None = None,
        reasons: Mapping[str, str] | None = None,
    ) -> None:
        """The values of one training step.

        A step below the last one of this rank begins a new attempt.
        """
        if not 0 <= step < MAX_STEP:
            self.num_absurd += 1
            return
        rank = self._place.rank if rank is None else rank
        last = self._last.get(rank)
        if last is not None and step < last:
            self.new_attempt(last, step, rank=rank)
        self._last[rank] = step
        self.beside(step, cells, rank=rank, reasons=reasons)

    def beside(
        self,
        step: int,
        cells: Mapping[str, float],
        *,
        rank: int | None = None,
        reasons: Mapping[str, str] | None = None,
    ) -> None:
        """Values that belong to a step but are no progress (validation): they begin no attempt."""
        if not 0 <= step < MAX_STEP:
            self.num_absurd += 1
            return
        if self._is_full:
            return
        points = self._of_rank(rank)
        for written, value in cells.items():
            if written not in points and not self._is_room():
                continue
            reason = reasons.get(written, "") if reasons else ""
            points.add(written, row=self._next_row, step=step, value=value, reason=reason)
        self._next_row += 1

    def new_attempt(self, last: int, first: int, *, rank: int | None = None) -> None:
        """The run went back from `last` to `first` on this rank."""
        points = self._of_rank(rank)
        points.begin_attempt(self._next_row)
        self._is_room()
        attempt = (self._place.attempt or 0) + points.num_begun
        self._rollbacks.setdefault(
            attempt, Rollback(attempt=attempt, last_step=last, first_step=first)
        )

    def _of_rank(self, rank: int | None) -> Points:
        if rank is None:
            rank = self._place.rank
        return self._points.setdefault(rank, Points())

    def _is_room(self) -> bool:
        """Whether another metric may come; each is at most one series an attempt and rank."""
        if not self._is_full:
            num_series = 0
            for points in self._points.values():
                num_series += len(points.names) * (points.num_begun + 1)
            self._is_full = num_series >= MAX_SERIES
        return not self._is_full

    def event(
        self,
        kind: str,
        severity: Severity,
        sentence: str,
        line: TextLine,
        *,
        step: int | None = None,
        rank: int | None = None,
        at: str = "",
        host: str = "",
        device: str = "",
        code: int | None = None,
    ) -> None:
        """Something that the line reports."""
        self._num_events += 1
        by = line.rank if rank is None else rank
        if len(self._events) < MAX_EVENTS:
            self._events.append(
                Event(
                    kind=kind,
                    severity=severity,
                    sentence=sentence,
                    source=str(self.path),
                    line=line.number,
                    at=at,
                    host=host,
                    device=device,
                    rank=self._place.rank if by is None else by,
                    step=step,
                    code=code,
                )
            )

    def last_step(self, rank: int | None = None) -> int | None:
        """The step of the last row of this rank."""
        return self._last.get(self._place.rank if rank is None else rank)

    def values(self, written: str) -> list[float]:
        """Every value that was collected under this name."""
        values: list[float] = []
        for points in self._points.values():
            block = points.of(written)
            if block is not None:
                values += block.values.tolist()
        return values

    def steps(self, written: str) -> list[int]:
        """The steps of the first attempt of the first rank that has this name."""
        for points in self._points.values():
            block = points.of_first_attempt(written)
            if block is not None:
                steps: list[int] = block.steps.tolist()
                return steps
        return []

    def written(self) -> set[str]:
        """The names of all metrics so far, as written."""
        names: set[str] = set()
        for points in self._points.values():
            names.update(points.names)
        return names

    def drop(self, written: str) -> None:
        """Forget a metric that turned out not to be in this log."""
        for points in self._points.values():
            points.drop(written)

    def spell(self, written: str, seen: str) -> None:
        """The log spells this metric `seen`."""
        self._spelled[written] = seen

    def say(self, note: str) -> None:
        """A remark on the whole log, said once."""
        if note not in self.notes:
            self.notes.append(note)

    def trust(self, written: str, why: str, *, trusted: bool = True) -> None:
        """What the series of this name can show, or why they cannot."""
        self._trust[written] = _Trust(trusted=trusted, why=why)

    def facts(self) -> LogFacts:
        """Everything that was collected.

        Raises:
            EvidenceError: no line was of this format.
        """
        num_lines = self._lines.num_lines if self._lines else 0
        if not self.num_matched:
            near = f", {self.num_near_misses} looked like it" if self.num_near_misses else ""
            raise EvidenceError(
                f"{self.path}: none of its {num_lines} lines is of the format {self._format}{near}"
            )
        return LogFacts(
            format=self._format,
            path=self.path,
            series=tuple(self._series()),
            rollbacks=tuple(self._rollbacks[attempt] for attempt in sorted(self._rollbacks)),
            events=tuple(self._events),
            identity=dict(self.identity),
            num_lines=num_lines,
            num_matched=self.num_matched,
            num_near_misses=self.num_near_misses,
            problems=(*self.problems, *self._damage()),
            notes=(*self.notes, *self._remarks()),
        )

    def _series(self) -> Iterator[Series]:
        for rank, points in self._points.items():
            origin = Origin(
                source=str(self.path),
                rank=rank,
                first_attempt=self._place.attempt or 0,
                may_split=False,
            )
            for series in points.trace(origin, self.names).series:
                yield self._named(series)

    def _named(self, series: Series) -> Series:
        """The series under the spelling of this log, with what it can show."""
        written = self._spelled.get(series.written_as, series.written_as)
        name = self.names.canonical(written)
        if name == written:
            name = self._own.get(written.lower(), written)
        trust = self._trust.get(series.written_as, _Trust(trusted=True, why=""))
        return replace(
            series, name=name, written_as=written, trusted=trust.trusted, trust=trust.why
        )

    def _damage(self) -> Iterator[str]:
        lines, missed = self._lines, self._first_near_miss
        if missed is not None:
            yield (
                f"{self.path}: line {missed.number}: looks like {self._format} but could "
                "not be read: "
                f"{missed.text.strip()[:80]!r} ({self.num_near_misses} such lines)"
            )
        if self.num_absurd:
            yield (
                f"{self.path}: {self.num_absurd} lines name a step that no run reaches: they "
                "were left out"
            )
        if lines is not None and lines.num_cut:
            yield (
                f"{self.path}: {lines.num_cut} lines were too long and were read only at their "
                "beginning"
            )
        if lines is not None:
            yield from lines.problems
        if self._is_full:
            yield f"{self.path}: names more than {MAX_SERIES} series: the rest was left out"
        if self._num_events > MAX_EVENTS:
            yield f"{self.path}: {self._num_events} events: only the first {MAX_EVENTS} were kept"

    def _remarks(self) -> Iterator[str]:
        if self._lines is not None and self._lines.torn_at is not None:
            yield (
                f"line {self._lines.torn_at}, the last, has no line feed: "
                "a number at its very end may be cut and was left out"
            )
        is_ranked = any(rank is not None and points for rank, points in self._points.items())
        notions = sorted(self._notions)
        if not notions and self._place.rank is not None:
            notions = [self._place.notion]
        if is_ranked and notions:
            yield f"rank is {'; '.join(notions)}"
