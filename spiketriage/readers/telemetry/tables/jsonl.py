"""Reads JSON-lines telemetry of any trainer: a step key, numbers, and one level of nesting.

This module never stops at a bad line: a torn or foreign one is counted and named.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from spiketriage.errors import EvidenceError
from spiketriage.nouns.series import LogFacts
from spiketriage.readers.limited import limited
from spiketriage.readers.look import Look
from spiketriage.readers.look import look as look_at
from spiketriage.readers.telemetry.series import scalars
from spiketriage.readers.telemetry.series.names import DEFAULT, Names
from spiketriage.readers.telemetry.series.opening import open_log
from spiketriage.readers.telemetry.series.rows import NO_STEP, Rows, summed
from spiketriage.readers.telemetry.tables import jsonl_blocks

NAME = "jsonl"
TELLS = (
    "Every number of every line by its step key, ranks and attempts that columns name, and "
    "where steps go back."
)
CANNOT = "What a metric means or averages, and what a run that died had not flushed."
SUFFIXES = (".jsonl", ".ndjson", ".json", ".log", ".txt")
CHUNK_BYTES = 8 << 20  # larger ones, with their columns, leave the cache
MAX_LINE_BYTES = 64 << 20
_RANK = re.compile(r"rank[-_.]?(\d{1,7})", re.IGNORECASE)
_MAX_FILES = 20_000
_MAX_TRIED = 8


@dataclass(slots=True, kw_only=True)
class _Reading:
    """What reading one file left behind besides its points."""

    rows: Rows
    num_lines: int = 0
    problems: list[str] = field(default_factory=list)


def claims(look: Look) -> float:
    """Likely for first lines that are objects with a step; a folder is judged by its files."""
    if look.is_folder:
        return _claims_folder(look)
    lines = look.head.split(b"\n")
    if len(lines) > 1 or look.size_bytes > len(look.head):
        del lines[-1]  # it may end inside the head
    records = [scalars.json_or_none(line) for line in lines if line.strip()]
    objects = [record for record in records if isinstance(record, dict)]
    if look.is_lfs_pointer or not objects or len(objects) * 2 < len(records):
        return 0.0
    with_step = [record for record in objects if DEFAULT.step_key(scalars.flat(record)) is not None]
    has_suffix = look.path.suffix in SUFFIXES[:2]
    if not with_step:
        if has_suffix:
            return 0.3
        return 0.0
    if has_suffix:
        return 0.75
    return 0.6


def _claims_folder(look: Look) -> float:
    """A little less than for the likeliest of its first files, of which one may be damaged."""
    likeliest = 0.0
    names = [name for name in look.names if name.endswith(SUFFIXES[:2])]
    for name in names[:_MAX_TRIED]:
        with suppress(EvidenceError):
            seen = look_at(look.path / name)
            if not seen.is_folder:
                likeliest = max(likeliest, 0.8 * claims(seen))
    return likeliest


def read(path: Path, names: Names) -> LogFacts:
    """The series of a file of JSON lines, or of every `*.jsonl` in a folder.

    Raises:
        EvidenceError: nothing can be read.
    """
    files = _files(path)
    if not files:
        raise EvidenceError(f"{path}: expected files of JSON lines (*.jsonl), found none")
    parts: list[LogFacts] = []
    problems: list[str] = []
    for file in files:
        try:
            parts.append(_read_file(file, names))
        except EvidenceError as error:
            if len(files) == 1:
                raise
            problems.append(error.message)
    if not parts:
        raise EvidenceError(f"{path}: no file can be read: {'; '.join(problems)}")
    return summed(NAME, path, parts, problems)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    try:
        names = sorted(os.listdir(path))[:_MAX_FILES]
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error
    return [path / name for name in names if name.endswith(SUFFIXES[:2])]


@limited
def _read_file(path: Path, names: Names) -> LogFacts:
    named = _RANK.search(path.stem)
    rank = int(named[1]) if named else None
    reading = _Reading(rows=Rows(source=path.name, names=names, rank=rank))
    with open_log(path) as log:
        fast = jsonl_blocks.Blocks(rows=reading.rows)
        for chunk in _chunks(log.stream, reading):
            _take(chunk, reading, fast)
        size_bytes = log.size_bytes
    rows = reading.rows
    if size_bytes and not rows.num_objects:
        raise EvidenceError(f"{path}: holds no JSON object in {reading.num_lines} lines")
    traced = rows.trace()
    problems = [*reading.problems, *rows.problems()]
    if not size_bytes:
        problems.insert(0, "is empty")
    notes = [*rows.notes(), *traced.notes]
    if named:
        notes.insert(len(rows.notes()), f"rank {rank} by the file's name")
    return LogFacts(
        format=NAME,
        path=path,
        series=traced.series,
        rollbacks=traced.rollbacks,
        num_lines=reading.num_lines,
        num_matched=rows.num_matched,
        num_near_misses=rows.num_bad,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _take(chunk: bytes, reading: _Reading, fast: jsonl_blocks.Blocks) -> None:
    num_rows = fast.take(chunk)
    if num_rows is not None:
        reading.num_lines += num_rows
        return
    for line in chunk.split(b"\n"):
        if line.strip():
            reading.num_lines += 1
            reading.rows.take_line(line, reading.num_lines)


def _chunks(stream: BinaryIO, reading: _Reading) -> Iterator[bytes]:
    """Whole lines, about a chunk at a time; a line beyond all bounds is stepped over."""
    rest = b""
    skipping = False
    while data := stream.read(CHUNK_BYTES):
        cut = data.rfind(b"\n") + 1
        if skipping:
            begin = data.find(b"\n") + 1
            if not begin:
                continue
            data, cut, skipping = data[begin:], cut - begin, False
        if cut:
            yield rest + data[:cut]
            rest = data[cut:]
        else:
            rest += data
        if len(rest) > MAX_LINE_BYTES:
            after = f"after line {reading.num_lines}"
            reading.problems.append(f"{after}: a line of more than {MAX_LINE_BYTES} bytes left out")
            rest, skipping = b"", True
    if rest.strip():
        reading.rows.is_last_line = True
        yield rest


__all__ = ["CANNOT", "NAME", "NO_STEP", "TELLS", "claims", "read"]
