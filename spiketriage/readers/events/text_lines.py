"""The lines of a text log that somebody else wrote, and the events found in them, both bounded.

This module never holds more than a piece of a line and never raises over what the text contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from spiketriage.errors import EvidenceError
from spiketriage.foreign_text import printable
from spiketriage.nouns.telemetry import Event, EventFacts
from spiketriage.readers.look import Look, look_at_file
from spiketriage.redaction import shapes

# A longer line is read in pieces: the longest real one seen has 14,765 characters.
MAX_LINE_BYTES = 64 << 10
MAX_EVENTS = 100_000
TAIL_BYTES = 64 << 10  # the tracebacks of a node's ranks and the launcher's closing block
MAX_TEXT = 600
MAX_INTEGER_DIGITS = 18  # more is no count of anything, but uninitialised memory
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
NUL = "\0"
_DATA = (".json", ".jsonl", ".ndjson", ".csv", ".tsv")  # what ends in a traceback there is a cell


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLine:
    """One line without its end, or a piece of one that is too long; `source` is the file's name."""

    number: int
    text: str
    source: str


class Scanner(Protocol):
    """Looks at the lines of a log one after the other."""

    def feed(self, line: TextLine, /) -> Iterable[Event]:
        """The events that this line completes."""
        ...

    def finish(self, events: list[Event], /) -> list[Event]:
        """The events that stay, with what only the whole file could tell."""
        ...

    def identity(self) -> Mapping[str, str]:
        """What the log says about where it was written."""
        ...

    def problems(self) -> tuple[str, ...]:
        """A sentence for everything that could not be read."""
        ...

    def notes(self) -> tuple[str, ...]:
        """A sentence for everything that the log cannot tell."""
        ...


@dataclass(slots=True)
class Damage:
    """What was wrong with the bytes of a text file."""

    num_nul: int = 0
    num_undecodable: int = 0
    num_long: int = 0

    def sentences(self, source: str) -> tuple[str, ...]:
        """A sentence for each kind of damage."""
        sentences = []
        if self.num_nul:
            what = "hold NUL bytes, as after a crash of the file's host"
            sentences.append(f"{source}: {self.num_nul} lines {what}")
        if self.num_undecodable:
            what = "are not UTF-8; those bytes became �"
            sentences.append(f"{source}: {self.num_undecodable} lines {what}")
        if self.num_long:
            what = f"are longer than {MAX_LINE_BYTES} bytes, read in pieces"
            sentences.append(f"{source}: {self.num_long} lines {what}")
        return tuple(sentences)


def lines(path: Path, damage: Damage) -> Iterator[TextLine]:
    """Every line of `path`, ANSI sequences removed, split at carriage returns too.

    Raises:
        EvidenceError: it is no regular file, cannot be read, or is a Git-LFS pointer.
    """
    number, whole = 0, True
    look_at_file(path)
    try:
        with path.open("rb") as stream:
            while data := stream.readline(MAX_LINE_BYTES):
                number += whole
                if data == b"\n":
                    whole = True
                    continue
                was_whole, whole = whole, data.endswith(b"\n")
                damage.num_long += was_whole and not whole and len(data) == MAX_LINE_BYTES
                for text in _clean(data, damage):
                    yield TextLine(number=number, text=text, source=path.name)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _clean(data: bytes, damage: Damage) -> Iterator[str]:
    text = data.decode("utf-8", "replace")
    damage.num_undecodable += "�" in text and b"\xef\xbf\xbd" not in data
    if NUL in text:
        damage.num_nul += 1
        text = text.replace(NUL, "")
    if "\x1b" in text:
        text = ANSI.sub("", text)
    return (part for part in re.split(r"[\r\n]", text) if part)


@dataclass(slots=True)
class EventList:
    """Events up to a bound, with a sentence for those beyond it."""

    kept: list[Event] = field(default_factory=list)
    num_dropped: int = 0

    def add(self, event: Event) -> None:
        """Keep `event` while there is room."""
        if len(self.kept) < MAX_EVENTS:
            self.kept.append(event)
        else:
            self.num_dropped += 1

    def sentences(self, source: str) -> tuple[str, ...]:
        """What a reader must know about events that were not kept."""
        if not self.num_dropped:
            return ()
        kept = f"only the first {MAX_EVENTS} events are kept"
        return (f"{source}: {kept}, {self.num_dropped} more were read",)


def scan(
    path: Path, name: str, scanners: Iterable[Scanner], notes: tuple[str, ...] = ()
) -> EventFacts:
    """Show every line of `path` to every scanner.

    Raises:
        EvidenceError: the file cannot be read.
    """
    damage, bounded, scanners = Damage(), EventList(), tuple(scanners)
    for line in lines(path, damage):
        for scanner in scanners:
            for event in scanner.feed(line):
                bounded.add(event)
    events = bounded.kept
    identity: dict[str, str] = {}
    problems = [*damage.sentences(path.name), *bounded.sentences(path.name)]
    all_notes = list(notes)
    for scanner in scanners:
        events = scanner.finish(events)
        identity |= scanner.identity()
        problems += scanner.problems()
        all_notes += scanner.notes()
    return EventFacts(
        format=name,
        path=path,
        events=tuple(events),
        identity=identity,
        problems=tuple(problems),
        notes=tuple(all_notes),
    )


def head_lines(seen: Look) -> tuple[str, ...]:
    """The lines in the first bytes of a file that could be a log.

    None for a folder, source code, a Git-LFS pointer.
    """
    if seen.is_folder or seen.is_lfs_pointer or seen.is_source:
        return ()
    return tuple(_clean(seen.head, Damage()))


def tail_lines(seen: Look) -> tuple[str, ...]:
    """The lines in the last bytes of a file that could be a log: there a run says why it ended."""
    if not head_lines(seen) or seen.size_bytes <= len(seen.head) or seen.path.suffix in _DATA:
        return ()
    try:
        with seen.path.open("rb", buffering=0) as stream:
            stream.seek(max(len(seen.head), seen.size_bytes - TAIL_BYTES))
            return tuple(_clean(stream.read(TAIL_BYTES), Damage()))
    except OSError:
        return ()


def integer(text: str | None) -> int | None:
    """The number in `text`; None if it is none, or too large to count anything."""
    if text is None or len(text) > MAX_INTEGER_DIGITS:
        return None
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return int(text)
    return None


def short(text: str) -> str:
    """`text` on one line, without credentials, cut where a sentence would become unreadable."""
    line = printable(" ".join(shapes(text).text.split()))
    if len(line) <= MAX_TEXT:
        return line
    return f"{line[:MAX_TEXT]}…"
