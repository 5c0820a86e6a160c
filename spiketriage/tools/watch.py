"""`spiketriage watch`: the guard's rules over a log as it comes, from a pipe or a growing run.

This module needs no incident, takes no lease, writes nothing, and never stops at a line that it
cannot read.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from spiketriage.detect.detector import Alarm, Detector, Row
from spiketriage.detect.episodes import Episodes
from spiketriage.errors import EvidenceError, Exit
from spiketriage.evidence.judged import candidates, question
from spiketriage.evidence.onset import find_onset, rows_at
from spiketriage.evidence.progress import say
from spiketriage.readers.boundary import require_allowed
from spiketriage.readers.settings import read_settings
from spiketriage.readers.telemetry.run.lineage import Telemetry
from spiketriage.readers.telemetry.run.sources import read_telemetry
from spiketriage.readers.telemetry.series.names import DEFAULT, Names

POLL_S = 2.0
MAX_SHARE = 0.05  # of the time goes into looking: a larger telemetry is looked at less often
MAX_NAMED = 5  # bad lines that are named; the rest is counted
MAX_LINE_BYTES = 1 << 20
_SIGNALS = tuple(signal.name for signal in fields(Row) if signal.name != "step")
_OURS = {
    "loss/mean": "loss",
    "grad/norm": "grad_norm",
    "update/norm": "update_norm",
    "rms_t/max": "rms_t",
    "logz/mean": "logz",
    "attention/logit_max": "attention_max",
    "loss_scale/skipped": "skipped",
}
_BAD = (ValueError, TypeError, OverflowError, RecursionError)

Tell = Callable[[Alarm], None]


@dataclass(slots=True, kw_only=True)
class _Watched:
    """What came of watching."""

    episodes: Episodes = field(default_factory=Episodes)
    num_rows: int = 0
    num_alarms: int = 0
    num_bad_lines: int = 0

    def end(self, tell: Tell) -> int:
        """Say on stderr what it was, and return the exit code, which bad lines do not change."""
        for last in self.episodes.end():
            tell(last)
        bad = f", {self.num_bad_lines} lines could not be read" if self.num_bad_lines else ""
        say(f"{self.num_alarms} alarms in {self.num_rows} rows{bad}")
        return Exit.AGAINST if self.num_alarms else Exit.DONE


def read(lines: Iterable[bytes], tell: Tell) -> int:
    """Judge the rows of a JSON-lines trace as they come; return the exit code where the lines end.

    A line is an object with `step` and any of the fields of `detect.Row`, or what other loggers
    call them; nonfinite values may be strings (`"NaN"`, `"inf"`) or bare. A key that is absent or
    null was not logged. A line of other keys only, as an evaluation writes, is passed over.
    """
    watched, detector = _Watched(), Detector()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = parse(line)
        except _BAD as error:
            watched.num_bad_lines += 1
            if watched.num_bad_lines <= MAX_NAMED:
                say(f"line {number} is passed over: {_why(error)}")
            continue
        if row is not None:
            _feed(watched, detector, row, tell)
    return watched.end(tell)


def follow(place: Path, tell: Tell, *, looks: Iterator[None] | None = None) -> int:
    """Judge what a run's telemetry holds and what is added to it, until interrupted.

    `place` is a run folder, or a log that is being written. A step is judged once a later one is
    there or nothing changed between two looks, so that a rank that writes late is not taken for a
    missing one. `looks` says when to look again and when to stop; by default every two seconds for
    ever.

    Raises:
        EvidenceError: the place is no run, or cannot be read at the first look.
    """
    watched, seen = _Watched(), _Seen()
    source, names = _source(place)
    telemetry = read_telemetry(source, names)
    for sentence in find_onset(telemetry).history:
        say(f"history: {sentence}")
    detector = Detector(
        logs_at_will=any(segment.identity is None for segment in telemetry.segments)
    )
    try:
        for _ in looks or _every_two_seconds():
            for row in rows_at(telemetry, seen.new(telemetry)):
                _feed(watched, detector, row, tell)
            telemetry = _again(source, names) or telemetry
    except KeyboardInterrupt:
        pass  # how a person ends it
    for row in rows_at(telemetry, seen.new(telemetry, is_last=True)):
        _feed(watched, detector, row, tell)
    if not watched.num_rows:
        say(f"no series was judged; {question(candidates(telemetry.logs))}")
        return Exit.INCONCLUSIVE
    return watched.end(tell)


def _again(source: Path, names: Names) -> Telemetry | None:
    try:
        return read_telemetry(source, names)
    except EvidenceError as error:
        # A log that is rotated, a file system that is away: it may come back.
        say(f"cannot be read just now: {error.message}")
        return None


def parse(line: bytes) -> Row | None:
    """The row of a line; None if it holds nothing that is judged.

    Raises:
        ValueError: the line is not JSON, not an object, has no step, or holds something that is not
        a number.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"{len(line)} bytes, expected at most {MAX_LINE_BYTES}")
    record = json.loads(line.decode())
    if not isinstance(record, dict):
        raise ValueError(f"expected an object, found {type(record).__name__}")
    key = DEFAULT.step_key(record)
    if key is None:
        raise ValueError("expected a step")
    step = _number(key, record.pop(key))
    if not step.is_integer():
        raise ValueError(f"{key}: expected a whole number, found {step!r}")
    values: dict[str, Any] = {}
    for name, value in _known(record):
        if name not in values:
            values[name] = _cell(name, value)
    if values or not record:
        return Row(step=int(step), **values)
    return None


def _cell(name: str, value: object) -> float | None:
    if value is None:
        return None
    if name == "skipped" and isinstance(value, bool):
        return float(value)
    return _number(name, value)


def _known(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for written, value in record.items():
        name = written
        if written not in _SIGNALS:
            canonical = DEFAULT.canonical(written)
            name = _OURS.get(canonical, canonical)
        if name in _SIGNALS:
            yield name, value


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{name}: expected a number, found {value!r:.40}")
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{name}: expected a number, found {value!r:.40}") from None


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error}"
    return str(error).partition("\n")[0]


def _feed(watched: _Watched, detector: Detector, row: Row, tell: Tell) -> None:
    watched.num_rows += 1
    verdict = detector.feed(row)
    watched.num_alarms += len(verdict.alarms)
    for said in watched.episodes.feed(verdict):
        tell(said)


def _source(place: Path) -> tuple[Path, Names]:
    if place.is_file():
        return place, DEFAULT
    settings = read_settings(place)
    require_allowed(
        settings, (), hint=shlex.join(["spiketriage", "watch", str(settings.telemetry)])
    )
    return settings.telemetry, Names(columns=settings.columns)


def _every_two_seconds() -> Iterator[None]:
    """For ever, and less often where a look takes long."""
    while True:
        began = time.monotonic()
        yield
        time.sleep(max(POLL_S, (time.monotonic() - began) / MAX_SHARE))


class _Seen:
    """Which steps of which attempt were judged."""

    def __init__(self) -> None:
        self._last: tuple[float, float] = (-math.inf, -math.inf)
        self._newest: tuple[float, float] | None = None

    def new(self, telemetry: Telemetry, *, is_last: bool = False) -> list[int]:
        """Steps behind the last that was judged; the newest only when it stood still."""
        places: list[tuple[int, int]] = []
        for step in telemetry.steps:
            attempt = telemetry.attempt_of(step)
            if attempt is not None:
                places.append((attempt, step))
        places.sort()
        newest = places[-1] if places else None
        is_still, self._newest = newest == self._newest or is_last, newest
        ready = [place for place in places if place > self._last and (place != newest or is_still)]
        if ready:
            self._last = ready[-1]
        return [step for _, step in ready]
