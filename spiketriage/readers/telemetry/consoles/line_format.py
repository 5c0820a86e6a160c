"""A console's log as a row of data: which lines it has, what stands in them, what the cells mean.

This module knows no console; one that needs more than a row brings a reader of its own for lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from spiketriage.nouns.series import LogFacts
from spiketriage.readers.look import Look
from spiketriage.readers.telemetry.consoles.log_claims import SURE, claim
from spiketriage.readers.telemetry.consoles.log_numbers import number as plain_number
from spiketriage.readers.telemetry.consoles.log_numbers import short_number
from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.consoles.text_lines import TextLine
from spiketriage.readers.telemetry.series.names import Names

MS_PER_S = 1000


class LineReader(Protocol):
    """What reads the lines of a console whose records span lines or need the whole log."""

    def offer(self, line: TextLine, /) -> None:
        """Read one line that has an anchor."""
        ...

    def close(self) -> None:
        """Keep what is open, and say what only the whole log shows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LineKind:
    """One kind of line. `pattern` matches at its beginning and names its parts by groups.

    `step` is the step; a line without one belongs to the last step before it. `cells` says which
    group is which metric; `pairs` finds `key` and `value` in the group `rest`, and `ms` where a
    value is in milliseconds. `needs` are cells of which one must be there; none means any cell.
    `from_zero` says that steps are numbered from 0, and an evaluation never begins an attempt.
    """

    pattern: re.Pattern[str]
    cells: Mapping[str, str] = field(default_factory=dict)
    pairs: re.Pattern[str] | None = None
    needs: frozenset[str] = frozenset()
    prefix: str = ""
    from_zero: bool = False
    is_evaluation: bool = False

    def is_whole(self, cells: Mapping[str, float]) -> bool:
        """Whether a line has the cells that it needs."""
        if self.needs:
            return not self.needs.isdisjoint(cells)
        return bool(cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """One console.

    Only lines that hold one of `anchors` are looked at; a line that no kind of `lines` understands
    and in which `near` is found is reported as a near miss. `own` are our names for what it writes,
    `milliseconds` its cells that are kept in seconds, `meanings` what a series of that name shows,
    and `precision` what is true of every cell. `is_short` allows numbers such as `4.19B` or
    `7,012`, `is_raw` matches lines with the prefixes of launchers on them. `identity` says which
    group is a fact about the run. `beside` is called with each line that was understood, for what
    it says besides; `reader` replaces the rows of this table by code.
    """

    name: str
    anchors: tuple[str, ...]
    lines: tuple[LineKind, ...] = ()
    near: re.Pattern[str] | None = None
    own: Mapping[str, str] = field(default_factory=dict)
    milliseconds: frozenset[str] = frozenset()
    meanings: Mapping[str, str] = field(default_factory=dict)
    precision: str = ""
    notes: tuple[str, ...] = ()
    identity: Mapping[str, str] = field(default_factory=dict)
    is_short: bool = False
    is_raw: bool = False
    sure: float = SURE
    is_line: Callable[[TextLine], object] | None = None
    beside: Callable[[re.Match[str], LogPoints], None] | None = None
    reader: Callable[[LogPoints], LineReader] | None = None

    def claims(self, look: Look, /) -> float:
        """How sure we are that a file is such a log: by lines in its head and further in."""
        return claim(look, self.anchors, self.is_line or self._matches, sure=self.sure)

    def read(self, path: Path, names: Names, /) -> LogFacts:
        """Every line of the console.

        Raises:
            EvidenceError: it cannot be read, or no line is of this console.
        """
        log = LogPoints(path, names, format=self.name, own=self.own)
        for note in self.notes:
            log.say(note)
        for written, meaning in self.meanings.items():
            log.trust(written, meaning)
        reader = self.reader(log) if self.reader else _RowReader(self, log)
        for line in log.lines(*self.anchors):
            reader.offer(line)
        reader.close()
        return log.facts()

    def _matches(self, line: TextLine) -> bool:
        """Whether a line would be read: it matches, and has the cells that its kind needs."""
        text = self.text_of(line)
        for kind in self.lines:
            match = kind.pattern.match(text)
            if match and kind.is_whole(self.cells(kind, match)):
                return True
        return False

    def cells(self, kind: LineKind, match: re.Match[str]) -> dict[str, float]:
        """The cells of a line that are numbers, by the name that the console writes."""
        cells: dict[str, float] = {}
        for group, written in kind.cells.items():
            cells |= self._cell(written, match[group] or "")
        if kind.pairs is not None:
            for pair in kind.pairs.finditer(match["rest"]):
                is_ms = bool(pair.groupdict().get("ms"))
                cells |= self._cell(pair["key"], pair["value"], is_ms=is_ms)
        return cells

    def _cell(self, written: str, text: str, *, is_ms: bool = False) -> dict[str, float]:
        if self.is_short:
            value = short_number(text)
        else:
            value = plain_number(text)
        if value is None:
            return {}
        if is_ms or written in self.milliseconds:
            value /= MS_PER_S
        return {written: value}

    def text_of(self, line: TextLine) -> str:
        """The part of a line that patterns are matched against."""
        if self.is_raw:
            return line.raw
        return line.text


class _RowReader:
    """Reads lines by the table alone."""

    def __init__(self, format: LineFormat, log: LogPoints) -> None:
        self._format = format
        self._log = log

    def offer(self, line: TextLine) -> None:
        text = self._format.text_of(line)
        for kind in self._format.lines:
            match = kind.pattern.match(text)
            if match and self._keep(kind, match, line):
                return
        if self._format.near and self._format.near.search(text):
            self._log.near_miss(line)

    def _keep(self, kind: LineKind, match: re.Match[str], line: TextLine) -> bool:
        """Take the cells of a line in; whether it had those that its kind needs."""
        log = self._log
        cells = self._format.cells(kind, match)
        step = self._step(kind, match, line)
        if not kind.is_whole(cells) or step is None:
            return False
        log.match(line)
        groups = match.groupdict()
        for group, key in self._format.identity.items():
            if groups.get(group):
                log.identity[key] = groups[group]
        if self._format.beside:
            self._format.beside(match, log)
        cells = {kind.prefix + written: value for written, value in cells.items()}
        if kind.is_evaluation:
            log.beside(step, cells, rank=line.rank)
        else:
            log.row(step, cells, rank=line.rank)
        return True

    def _step(self, kind: LineKind, match: re.Match[str], line: TextLine) -> int | None:
        if "step" not in kind.pattern.groupindex:
            return self._log.last_step(line.rank)
        return int(match["step"]) + kind.from_zero

    def close(self) -> None:
        precision = self._format.precision
        if not precision:
            return
        for written in self._log.written():
            meaning = self._format.meanings.get(written)
            self._log.trust(written, f"{precision}; {meaning}" if meaning else precision)
