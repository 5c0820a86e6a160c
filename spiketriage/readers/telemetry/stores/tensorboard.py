"""Reads every scalar of TensorBoard event files, each checksum looked at and damage named.

This module never samples, never needs TensorFlow, and never takes a record whose checksum fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.series import LogFacts, Rollback, Series
from spiketriage.readers.look import Look
from spiketriage.readers.telemetry.series.attempts import Block, Origin, Traced, between
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.readers.telemetry.series.opening import open_log
from spiketriage.readers.telemetry.series.points import Points
from spiketriage.readers.telemetry.stores import crc32c, event_file, event_groups, event_record
from spiketriage.readers.telemetry.stores.event_file import Framing, Window

NAME = "tensorboard"
TELLS = (
    "Every scalar with step and wall time, each record checked by its CRC-32C, and restarts as "
    "attempts."
)
CANNOT = (
    "More than 32 bits of a value, which rank wrote it, whether it is a mean, or what was not "
    "flushed."
)
MARK = "tfevents"
TRUST = "a scalar as the trainer wrote it, 32-bit, checksum verified"
_MAX_FOLDERS = 10_000
_MAX_NAMED = 3


@dataclass(slots=True, kw_only=True)
class _File:
    path: Path
    source: str
    traced: Traced | None = None
    first_time_s: float = float("inf")
    last_time_s: float = float("-inf")
    version: str = ""
    num_records: int = 0
    num_others: int = 0
    bad_records: list[int] = field(default_factory=list)
    framing: Framing = field(default_factory=Framing)


def claims(look: Look) -> float:
    """Certain of a first record with a sound length, and of a folder with a file named so."""
    if look.is_folder:
        if any(MARK in name for name in look.names):
            return 0.95
        return 0.0
    if look.is_lfs_pointer:
        if MARK in look.path.name:
            return 0.9
        return 0.0
    head = look.head[:12]
    if len(head) == 12 and crc32c.masked_of_bytes(head[:8]) == int.from_bytes(head[8:], "little"):
        return 0.98
    if MARK in look.path.name:
        return 0.7
    return 0.0


def read(path: Path, names: Names) -> LogFacts:
    """The scalars of an event file, or of all event files below a folder; one run per folder.

    Raises:
        EvidenceError: no event file can be read.
    """
    paths = _event_files(path) if path.is_dir() else [path]
    if not paths:
        raise EvidenceError(f"{path}: expected event files (*{MARK}*), found none")
    files: list[_File] = []
    problems: list[str] = []
    for file_path in paths:
        try:
            source = file_path.name
            if file_path != path:
                source = str(file_path.relative_to(path))
            files.append(_read_file(file_path, source, names))
        except EvidenceError as error:
            if len(paths) == 1:
                raise
            problems.append(error.message)
    if not files:
        raise EvidenceError(f"{path}: no event file can be read: {'; '.join(problems)}")
    return _facts(path, files, problems)


def _event_files(folder: Path) -> list[Path]:
    paths: list[Path] = []
    for number, (parent, folders, files) in enumerate(os.walk(folder)):  # does not follow links
        folders.sort()
        paths += [Path(parent, name) for name in sorted(files) if MARK in name]
        if number > _MAX_FOLDERS:
            break
    return paths


def _read_file(path: Path, source: str, names: Names) -> _File:
    file, points = _File(path=path, source=source), Points()
    with open_log(path) as log:
        for window in event_file.windows(log.stream, log.size_bytes, file.framing):
            _take(window, file, points)
        if not file.num_records and log.size_bytes:
            raise EvidenceError(f"{path}: is no event file: {'; '.join(file.framing.problems)}")
    if not file.num_records:
        file.framing.problems.append("is empty: its writer has not flushed yet, or died before")
    file.traced = points.trace(Origin(source=source, trust=TRUST), names)
    return file


def _take(window: Window, file: _File, points: Points) -> None:
    sorted_ = event_groups.decode(window)
    first = file.num_records
    for part in sorted_.decoded:
        points.extend(
            part.tag,
            Block(
                rows=part.records + first,
                steps=part.steps,
                values=part.values,
                times_s=part.times_s,
            ),
        )
        file.first_time_s = min(file.first_time_s, float(part.times_s.min()))
        file.last_time_s = max(file.last_time_s, float(part.times_s.max()))
    file.bad_records += (sorted_.damaged + first).tolist()
    for number in sorted_.others.tolist():
        _take_slowly(window, number, file, points)
    file.num_records += len(window.offsets)


def _take_slowly(window: Window, number: int, file: _File, points: Points) -> None:
    row = file.num_records + number
    start = int(window.offsets[number])
    end = start + int(window.lengths[number])
    stored = int.from_bytes(window.data[end : end + 4], "little")
    if crc32c.masked_of_bytes(memoryview(window.data)[start:end]) != stored:
        file.bad_records.append(row)
        return
    try:
        event = event_record.parse(window.data, start, end)
    except event_record.MalformedError as error:
        file.framing.problems.append(f"record {row}: is no event: {error}")
        return
    file.version = file.version or event.version
    file.num_others += event.num_others
    if event.wall_time_s:
        file.first_time_s = min(file.first_time_s, event.wall_time_s)
        file.last_time_s = max(file.last_time_s, event.wall_time_s)
    for scalar in event.scalars:
        points.add(
            scalar.tag, row=row, step=event.step, value=scalar.value, time_s=event.wall_time_s
        )


def _facts(path: Path, files: Sequence[_File], problems: list[str]) -> LogFacts:
    series: list[Series] = []
    rollbacks: list[Rollback] = []
    notes: list[str] = []
    for parent in dict.fromkeys(file.path.parent for file in files):
        run = [file for file in files if file.path.parent == parent]
        run.sort(key=lambda file: (file.first_time_s, file.source))
        _add_run(run, series, rollbacks, notes)
    for file in files:
        problems += [f"{file.source}: {problem}" for problem in _problems(file)]
        notes += [f"{file.source}: {note}" for note in file.framing.notes]
    num_others = sum(file.num_others for file in files)
    if num_others:
        notes.append(
            f"{num_others} values are no scalars (images, text, histograms, tensors) and "
            "were not read"
        )
    num_records = sum(file.num_records for file in files)
    num_bad = sum(len(file.bad_records) for file in files)
    return LogFacts(
        format=NAME,
        path=path,
        series=tuple(series),
        rollbacks=tuple(rollbacks),
        identity={"file_version": files[0].version} if files[0].version else {},
        num_lines=num_records,
        num_matched=num_records - num_bad,
        num_near_misses=num_bad,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _add_run(
    run: Iterable[_File], series: list[Series], rollbacks: list[Rollback], notes: list[str]
) -> None:
    """Number the attempts of one folder.

    A file that begins after all before it ended is a restart.
    """
    attempt, next_attempt, ended_s = 0, 0, float("-inf")
    earlier: list[Series] = []
    for file in run:
        traced = file.traced
        if traced is None or not traced.series:
            continue
        if file.first_time_s >= ended_s:
            attempt = next_attempt
        else:
            notes.append(
                f"{file.source}: written while another event file of this folder was, so by "
                "another process"
            )
        ended_s = max(ended_s, file.last_time_s)
        own = [replace(piece, attempt=piece.attempt + attempt) for piece in traced.series]
        back = between(earlier, own)
        if back is not None:
            rollbacks.append(back)
        rollbacks += [replace(inner, attempt=inner.attempt + attempt) for inner in traced.rollbacks]
        next_attempt = max(next_attempt, attempt + traced.num_attempts)
        earlier += own
        series += own
        notes += [f"{file.source}: {note}" for note in traced.notes]


def _problems(file: _File) -> list[str]:
    problems = list(file.framing.problems)
    if file.bad_records:
        named = ", ".join(str(number) for number in sorted(file.bad_records)[:_MAX_NAMED])
        num_bad = len(file.bad_records)
        problems.append(f"{num_bad} records fail their checksum and were left out (record {named})")
    return problems
