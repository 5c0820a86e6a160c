"""Reads CSV telemetry of any trainer by its header; a header that is repeated marks a restart.

This module never guesses a column's meaning from its values.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.series import LogFacts, Rollback, Series
from spiketriage.readers.look import Look
from spiketriage.readers.telemetry.series import scalars
from spiketriage.readers.telemetry.series.attempts import between
from spiketriage.readers.telemetry.series.lines import Line, row_lines
from spiketriage.readers.telemetry.series.names import DEFAULT, Names
from spiketriage.readers.telemetry.series.opening import open_log
from spiketriage.readers.telemetry.series.rows import TRUST, Rows

NAME = "csv"
TELLS = (
    "Every number of every row by its step column, and restarts where the header is repeated "
    "or steps go back."
)
CANNOT = "What a column means or averages, and the value behind an empty cell."
SUFFIXES = (".csv", ".tsv")
_DELIMITERS = (",", "\t", ";")
_MAX_COLUMNS = 20_000
_MAX_SECTIONS = 1000
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """How to read one file: its name as a source, its first attempt, and how far to trust it."""

    source: str
    first_attempt: int = 0
    trusted: bool = True
    trust: str = TRUST


@dataclass(slots=True, kw_only=True)
class _Reading:
    table: Table
    names: Names
    sections: list[Rows] = field(default_factory=list)
    header: tuple[str, ...] = ()
    delimiter: str = ","
    num_lines: int = 0
    num_torn: int = 0
    problems: list[str] = field(default_factory=list)


def claims(look: Look) -> float:
    """Likely for a header with a step column above numbers."""
    if look.is_folder or look.is_lfs_pointer:
        return 0.0
    lines = [line for line in look.head.decode("utf-8", "replace").splitlines() if line.strip()]
    if len(lines) < 2:
        return 0.3 if look.path.suffix in SUFFIXES and lines else 0.0
    cells = _cells(lines[0], delimiter_of(lines[0]))
    second = _cells(lines[1], delimiter_of(lines[0]))
    is_header = not any(scalars.number_in_text(cell) is not None for cell in cells)
    if (
        len(cells) < 2
        or len(cells) != len(second)
        or not is_header
        or lines[0].lstrip().startswith(("{", "["))
    ):
        return 0.0
    if DEFAULT.step_key(dict.fromkeys(cells)) is not None:
        return 0.75 if look.path.suffix in SUFFIXES else 0.4
    if look.path.suffix in SUFFIXES:
        return 0.3
    return 0.0


def read(path: Path, names: Names) -> LogFacts:
    """The series of one CSV file.

    Raises:
        EvidenceError: the file cannot be read or has no header with a step.
    """
    return read_table(path, names, Table(source=path.name))


def read_table(path: Path, names: Names, table: Table) -> LogFacts:
    """The series of one CSV file that is part of a source of another format.

    Raises:
        EvidenceError: the file cannot be read or has no header with a step.
    """
    reading = _Reading(table=table, names=names)
    with open_log(path) as log:
        for line in row_lines(log.stream):
            reading.num_lines += 1
            if line.text.strip():
                _take(line, reading)
    if reading.num_lines and not reading.sections:
        raise EvidenceError(f"{path}: has no header with a step column in its first line")
    if not reading.num_lines:
        reading.problems.append("is empty")
    return _facts(path, reading)


def delimiter_of(header: str) -> str:
    """What separates the cells of a header."""
    return max(_DELIMITERS, key=header.count)


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:
        return []


def _take(line: Line, reading: _Reading) -> None:
    if not reading.header:
        _begin(line.text, reading)
        return
    cells = _cells(line.text, reading.delimiter)
    if tuple(cells) == reading.header:
        _begin(line.text, reading)
        return
    if len(cells) != len(reading.header):
        start = line.text[:40]
        _tear(reading, f"has {len(cells)} cells, expected {len(reading.header)}: {start!r}")
        return
    if line.is_torn:
        _tear(reading, "has no newline, so that its last value may be cut short: left out")
        return
    reading.sections[-1].add(
        {name: _value(cell) for name, cell in zip(reading.header, cells, strict=True)}
    )


def _tear(reading: _Reading, what: str) -> None:
    reading.num_torn += 1
    if reading.num_torn <= _MAX_NAMED:
        reading.problems.append(f"line {reading.num_lines} {what}")


def _begin(line: str, reading: _Reading) -> None:
    """A header begins a section, the later ones a new attempt each."""
    if len(reading.sections) >= _MAX_SECTIONS:
        return
    delimiter = delimiter_of(line)
    header = _cells(line.lstrip("\ufeff"), delimiter)[:_MAX_COLUMNS]
    if reading.names.step_key(dict.fromkeys(header)) is None:
        return
    reading.header, reading.delimiter = tuple(header), delimiter
    table = reading.table
    reading.sections.append(
        Rows(source=table.source, names=reading.names, trusted=table.trusted, trust=table.trust)
    )


def _value(cell: str) -> object:
    if cell.isascii() and cell.isdigit() and len(cell) <= 18:
        return int(cell)
    return scalars.number_in_text(cell)


def _facts(path: Path, reading: _Reading) -> LogFacts:
    series: list[Series] = []
    rollbacks: list[Rollback] = []
    attempt = reading.table.first_attempt
    earlier: Sequence[Series] = ()
    for rows in reading.sections:
        rows.first_attempt = attempt
        traced = rows.trace()
        back = between(earlier, traced.series)
        if back is not None:
            rollbacks.append(back)
        rollbacks += traced.rollbacks
        series += traced.series
        earlier = traced.series or earlier
        attempt = max(attempt, traced.num_attempts)
    return LogFacts(
        format=NAME,
        path=path,
        series=tuple(series),
        rollbacks=tuple(rollbacks),
        num_lines=reading.num_lines,
        num_matched=sum(rows.num_matched for rows in reading.sections),
        num_near_misses=reading.num_torn + sum(rows.num_no_step for rows in reading.sections),
        problems=(*reading.problems, *_more(reading)),
        notes=tuple(_notes(reading)),
    )


def _more(reading: _Reading) -> Iterator[str]:
    if reading.num_torn > _MAX_NAMED:
        yield f"{reading.num_torn - _MAX_NAMED} more lines do not have as many cells as the header"


def _notes(reading: _Reading) -> Iterator[str]:
    if len(reading.sections) > 1:
        yield f"the header stands {len(reading.sections)} times: each begins an attempt"
    for rows in reading.sections:
        yield from rows.notes()
