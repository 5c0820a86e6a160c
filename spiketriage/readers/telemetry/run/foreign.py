"""Turns logs that other people's code wrote into segments.

Metrics by step, rank and attempt, and nothing else.

This module never merges two sources of one metric, and never drops a restart's second value for a
step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spiketriage.nouns.series import LogFacts, Series
from spiketriage.nouns.telemetry import Segment, StepRecord

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
    def num_points(self) -> int:
        return sum(len(one.steps) for one in self.series if one.name in WATCHED)

    @property
    def num_trusted(self) -> int:
        return sum(len(one.steps) for one in self.series if one.name in WATCHED and one.trusted)

    @property
    def first_step(self) -> int:
        return min(
            (int(one.steps[0]) for one in self.series if one.name in WATCHED and len(one.steps)),
            default=0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The segments of a run, and a sentence for each source that was not merged into them."""

    segments: tuple[Segment, ...]
    notes: tuple[str, ...]


def choose(logs: Sequence[LogFacts]) -> Chosen:
    """Segments by rank from the format that holds the most points to be trusted, else the most.

    Attempts are as the sources number them; of sources that do not, one that begins later is the
    later attempt.
    """
    by_rank: dict[int, dict[str, list[_Part]]] = defaultdict(lambda: defaultdict(list))
    for part in _parts(logs):
        by_rank[part.rank][part.log.format].append(part)
    segments: list[Segment] = []
    used: set[Path] = set()
    for _, formats in sorted(by_rank.items()):
        parts = max(formats.values(), key=_worth)
        for attempt, part in enumerate(_in_order(parts)):
            used.add(part.log.path)
            segments.append(_segment(part, attempt))
    unused = (
        log
        for log in logs
        if log.path not in used and any(series.name in WATCHED for series in log.series)
    )
    notes = [
        f"{log.path} ({log.format}): holds the same run once more and was not merged"
        for log in unused
    ]
    return Chosen(
        segments=tuple(sorted(segments, key=lambda s: (s.attempt, s.rank))), notes=tuple(notes)
    )


def _parts(logs: Iterable[LogFacts]) -> Iterator[_Part]:
    for log in logs:
        found: dict[tuple[str, int, int], list[Series]] = defaultdict(list)
        for series in log.series:
            # Samples of a machine, say, whose steps are no training steps, must not be laid beside
            # those.
            if series.trusted or series.name in WATCHED:
                found[series.source, series.rank or 0, series.attempt].append(series)
        for (source, rank, attempt), own in sorted(found.items()):
            part = _Part(log=log, source=source, attempt=attempt, rank=rank, series=tuple(own))
            if part.num_points:
                yield part


def _in_order(parts: Sequence[_Part]) -> Iterator[_Part]:
    """Attempts in order.

    Of two sources of one attempt that begin at the same step only the longer one is taken.
    """
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
    """Points whose steps and values can be believed count first.

    A console that numbers its lines has the most.
    """
    return sum(part.num_trusted for part in parts), _num_points(parts)


def _num_points(parts: Sequence[_Part]) -> int:
    return sum(part.num_points for part in parts)


def _segment(part: _Part, attempt: int) -> Segment:
    metrics: dict[int, dict[str, float]] = defaultdict(dict)
    times_s: dict[int, float] = {}
    for series in part.series:
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            metrics[step][series.name] = (
                value  # a source that repeats a step within an attempt means its last word
            )
        if series.times_s is not None:
            times_s.update(zip(series.steps.tolist(), series.times_s.tolist(), strict=True))
    return Segment(
        path=part.log.path,
        attempt=attempt,
        rank=part.rank,
        identity=None,
        loads=(),
        steps=tuple(
            _record(attempt, part.rank, step, metrics[step], times_s.get(step, math.nan))
            for step in sorted(metrics)
        ),
        torn_bytes=0,
        problem="",
    )


def _record(
    attempt: int, rank: int, step: int, metrics: dict[str, float], wall_time_s: float
) -> StepRecord:
    return StepRecord(
        attempt=attempt,
        rank=rank,
        step=step,
        metrics=metrics,
        digests={},
        nonfinite=(),
        ids=None,
        content={},
        series={},
        wall_time_s=wall_time_s,
    )
