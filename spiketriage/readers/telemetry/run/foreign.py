"""Turns logs that other people's code wrote into segments: metrics by step, rank and attempt.

This module never merges two sources of one metric, and never drops a restart's second value for a
step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spiketriage.nouns.listing import listed
from spiketriage.nouns.series import LogFacts, Series
from spiketriage.nouns.telemetry import Segment
from spiketriage.readers.telemetry.run.columns import RecordsOfColumns, columns_of
from spiketriage.readers.telemetry.series.names import DEFAULT, Names

WATCHED = ("loss/mean", "grad/norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One attempt of one rank in one source; `attempt` is the source's own count."""

    log: LogFacts
    source: str
    attempt: int
    rank: int
    series: tuple[Series, ...]

    @property
    def watched(self) -> list[Series]:
        """The series that a segment cannot do without."""
        return [series for series in self.series if series.name in WATCHED]

    @property
    def num_points(self) -> int:
        return sum(len(series.steps) for series in self.watched)

    @property
    def num_trusted(self) -> int:
        return sum(len(series.steps) for series in self.watched if series.trusted)

    @property
    def first_step(self) -> int:
        firsts = [int(series.steps[0]) for series in self.watched if len(series.steps)]
        return min(firsts, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The segments of a run, and a sentence for each source that was not merged into them."""

    segments: tuple[Segment, ...]
    notes: tuple[str, ...]


def choose(logs: Sequence[LogFacts], names: Names = DEFAULT) -> Chosen:
    """Segments by rank from the format that holds the most points to be trusted, else the most.

    Attempts are as the sources number them; of sources that do not, one that begins later is the
    later attempt.
    """
    by_rank: dict[int, dict[str, list[_Part]]] = defaultdict(lambda: defaultdict(list))
    for part in _parts(logs, names):
        by_rank[part.rank][part.log.format].append(part)
    segments: list[Segment] = []
    used: set[Path] = set()
    for _, formats in sorted(by_rank.items()):
        parts = max(formats.values(), key=_worth)
        for attempt, part in enumerate(_in_order(parts)):
            used.add(part.log.path)
            segments.append(_segment(part, attempt))
    segments.sort(key=lambda segment: (segment.attempt, segment.rank))
    notes = list(_second_names(segments, logs))
    for log in logs:
        is_the_run = any(series.name in WATCHED for series in log.series)
        if is_the_run and log.path not in used:
            notes.append(
                f"{log.path} ({log.format}): holds the same run once more and was not merged"
            )
    return Chosen(segments=tuple(segments), notes=tuple(notes))


def _second_names(segments: Sequence[Segment], logs: Iterable[LogFacts]) -> Iterator[str]:
    """Keys of a log that stand for a metric which the run is judged by under another key."""
    used = {segment.path for segment in segments}
    for log in logs:
        keys: dict[str, set[str]] = defaultdict(set)
        for series in log.series:
            if series.name in WATCHED and log.path in used:
                keys[series.name].add(series.written_as)
        for metric, written in keys.items():
            if len(written) > 1:
                keys_text = listed(sorted(written))
                yield f"{log.path}: {metric} is written under {keys_text}; one of them counts"


def _parts(logs: Iterable[LogFacts], names: Names) -> Iterator[_Part]:
    for log in logs:
        by_source: dict[tuple[str, int, int], list[Series]] = defaultdict(list)
        for series in log.series:
            # Samples of a machine, say, have steps that are no training steps.
            if series.trusted or series.name in WATCHED:
                by_source[series.source, series.rank or 0, series.attempt].append(series)
        for (source, rank, attempt), own in sorted(by_source.items()):
            believed = tuple(_believed(own, names))
            part = _Part(log=log, source=source, attempt=attempt, rank=rank, series=believed)
            if part.num_points:
                yield part


def _believed(series: Sequence[Series], names: Names) -> Iterator[Series]:
    """Of several keys for one metric the one to be believed, if it has about as many points."""
    by_name: dict[str, list[Series]] = defaultdict(list)
    for metric_series in series:
        by_name[metric_series.name].append(metric_series)
    for own in by_name.values():
        most = max(len(metric_series.steps) for metric_series in own)
        dense = [series.written_as for series in own if 2 * len(series.steps) >= most]
        best = min(dense, key=names.rank)
        yield from (series for series in own if series.written_as == best)


def _in_order(parts: Sequence[_Part]) -> Iterator[_Part]:
    """Attempts in order; of two sources that begin one at the same step, the longer counts."""
    by_source: dict[tuple[Path, str], list[_Part]] = defaultdict(list)
    for part in parts:
        by_source[part.log.path, part.source].append(part)
    longest: dict[tuple[int, int], list[_Part]] = {}
    for own in by_source.values():
        first = (own[0].attempt, own[0].first_step)
        if first not in longest or _num_points(own) > _num_points(longest[first]):
            longest[first] = own
    for _, own in sorted(longest.items()):
        yield from sorted(own, key=lambda part: part.attempt)


def _worth(parts: Sequence[_Part]) -> tuple[int, int]:
    """Points to be trusted count first: a console that numbers its own lines has the most."""
    return sum(part.num_trusted for part in parts), _num_points(parts)


def _num_points(parts: Sequence[_Part]) -> int:
    return sum(part.num_points for part in parts)


def _segment(part: _Part, attempt: int) -> Segment:
    columns = columns_of(part.series)
    return Segment(
        path=part.log.path,
        attempt=attempt,
        rank=part.rank,
        identity=None,
        loads=(),
        steps=RecordsOfColumns(columns, attempt=attempt, rank=part.rank),
        torn_bytes=0,
        problem="",
        columns=columns,
    )
