"""The lines of a text log, streamed.

Decoded, split, freed of colours, launcher prefixes and logger prefixes.

This module never holds more of a file than a block and one shortened line, and never says what a
line means.
"""

from __future__ import annotations

import codecs
import re
import string
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.readers.look import HEAD_BYTES, Look, look_at_file

BLOCK_BYTES = 1 << 20
MAX_LINE_CHARS = 1 << 16  # the longest line seen in the wild is a progress bar of 14,765 characters

_CONTROLS = bytes(set(range(1, 32)) - set(b"\t\n\v\f\r\b\a\x1b"))
_ANSI = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b]*+(?:\x07|\x1b\\)|[@-Z\\^_])")
_LINE_END = re.compile(r"[\r\n]")
_WORD = string.ascii_letters + string.digits + "_.+-"  # what a number that was cut may end in
_PREFIX = re.compile(
    r"\s*+(?:(?:"
    r"\[default(?P<local>\d{1,7})\]:?+"
    r"|\[rank(?P<rank>\d{1,7})\]:?+"
    r"|(?P<task>\d{1,7}): "
    r"|\([A-Za-z_][\w.]{0,99}+ (?:rank=\d+, )?+pid=\d+(?:, ip=[0-9a-fA-F.:]+)?+\)"
    r"|\[[Rr]ank (?P<logger>\d{1,7})\]:?+"
    r"|\[\d{4}-\d\d-\d\d[ T][\d:.,]++[^\]\n]{0,8}\]"
    r"|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.,]*+(?:Z|[+-]\d\d:?\d\d)?+"
    r"|\[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\]"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b:?+"
    r"|\[[\w./-]{1,200}+:\d+(?::\w+)?+\]"
    r"|\[titan\]"
    r"|[A-Za-z_][\w.]{0,99}+ - "
    r"|[-|] "
    r")\s*+)*+"
)
_NOTIONS = {  # the surest first, and what each means
    "rank": "[rankN]: (global, or local where torchrun's role is called rank)",
    "task": "srun's task number",
    "local": "[defaultN]: (torchrun's local rank: several nodes have the same)",
    "logger": "[Rank N] (as the logger says)",
}
LOGGER_RANK = _NOTIONS["logger"]
_OPENERS = frozenset(" \t\f\v[(-|0123456789")  # no other line is worth the expression above
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLine:
    """One line, or one state of a line that was rewritten by carriage returns.

    `number` counts line feeds from 1.

    `torn` says that its end is missing (no line feed, or too long); a last number that may have
    been cut is then left out of `text`. `overwritten` says that a later state followed on the same
    line. `raw` still has its prefixes.
    """

    number: int
    text: str
    raw: str
    rank: int | None = None
    notion: str = ""
    torn: bool = False
    overwritten: bool = False


def peel(raw: str, *, number: int = 0, torn: bool = False, overwritten: bool = False) -> TextLine:
    """The line without the prefixes of launchers and loggers, with the rank that they name."""
    text = raw.rstrip(_WORD) if torn else raw
    if text[:1] in _OPENERS or " - " in text or text.startswith(_LEVELS):
        found = _PREFIX.match(text)
    else:
        found = None
    if found is None:
        return TextLine(number=number, text=text, raw=text, torn=torn, overwritten=overwritten)
    named = found.groupdict()
    notion = next((one for one in _NOTIONS if named[one] is not None), "")
    return TextLine(
        number=number,
        text=text[found.end() :],
        raw=text,
        rank=int(named[notion]) if notion else None,
        notion=_NOTIONS.get(notion, ""),
        torn=torn,
        overwritten=overwritten,
    )


def encoding_of(head: bytes) -> str | None:
    """The encoding of a text that begins with `head`; None if it is no text."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if len(head) - len(head.translate(None, _CONTROLS)) > len(head) // 50:
        return None  # compressed or packed: a text has hardly any
    num_zeros = head.count(0)
    if not num_zeros:
        return "utf-8-sig"
    if head[1::2].count(0) == num_zeros and num_zeros > len(head) * 0.4:
        return "utf-16-le"  # a Windows capture whose byte order mark was cut off
    if head[::2].count(0) == num_zeros and num_zeros > len(head) * 0.4:
        return "utf-16-be"
    return (
        "utf-8-sig" if num_zeros <= len(head) // 100 else None
    )  # a few zeros: a disk that lost a piece of a log


def clean(text: str) -> str:
    """`text` without terminal colours and cursor movements."""
    if "\x1b" in text:
        return _ANSI.sub("", text)
    return text


def open_text(path: Path) -> Look:
    """A look at the text file at `path`.

    Raises:
        EvidenceError: it is missing, a folder, a Git-LFS pointer, or no text.
    """
    seen = look_at_file(path)
    if encoding_of(seen.head) is None:
        raise EvidenceError(f"{path}: is not a text log: its first {HEAD_BYTES} bytes are binary")
    return seen


class TextLines:
    """The lines of a file that contain one of `wanted`, once; the others are only counted."""

    def __init__(self, path: Path, wanted: tuple[str, ...]) -> None:
        self._path = path
        self._wanted = wanted
        self._encoding = encoding_of(open_text(path).head) or "utf-8"
        self._cut = False
        self._skipping = False
        self.num_lines = 0
        self.num_cut = 0
        self.torn_at: int | None = None
        self.problems: list[str] = []

    def __iter__(self) -> Iterator[TextLine]:
        """Every wanted line and every state of a rewritten one, in order."""
        number, pending = 1, ""
        for block in self._blocks():
            *whole, pending = (pending + self._unskipped(block)).split("\n")
            for line in whole:
                yield from self._states(line, number)
                number += 1
            if len(pending) > MAX_LINE_CHARS:
                pending = yield from self._shortened(pending, number)
        if pending:
            self.torn_at = number
            yield from self._states(pending, number, torn=not pending.endswith("\r"))

    def _blocks(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder(self._encoding)(errors="replace")
        try:
            with self._path.open("rb", buffering=0) as stream:
                while data := stream.read(BLOCK_BYTES):
                    yield decoder.decode(data)
        except OSError as error:
            self.problems.append(f"{self._path}: cannot be read further: {error.strerror or error}")
        yield decoder.decode(b"", final=True)

    def _unskipped(self, block: str) -> str:
        """What follows the rest of a line that was too long."""
        if not self._skipping:
            return block
        end = _LINE_END.search(block)
        self._skipping = end is None
        if end:
            return block[end.start() :]
        return ""

    def _shortened(self, pending: str, number: int) -> Generator[TextLine, None, str]:
        """The states of an unfinished long line; returns what may go on."""
        done = pending.rfind("\r", 0, len(pending) - 1)
        if done >= 0:
            yield from self._states(pending[:done], number, overwritten=True)
            pending = pending[done + 1 :]
        whole = pending.removesuffix("\r")
        if len(whole) <= MAX_LINE_CHARS:
            return pending
        self._cut = True
        self._skipping = whole == pending  # else the return at the end has closed it
        self.num_cut += 1
        return whole[:MAX_LINE_CHARS] + pending[len(whole) :]

    def _states(
        self, line: str, number: int, *, torn: bool = False, overwritten: bool = False
    ) -> Iterator[TextLine]:
        line = line.rstrip("\r")
        if "\r" in line:
            pieces = [piece for piece in line.split("\r") if piece]
        else:
            pieces = [line]
        self.num_lines += len(pieces)
        for at, piece in enumerate(pieces, 1):
            is_cut = self._cut and at == 1
            self._cut = False
            if len(piece) > MAX_LINE_CHARS:
                piece, is_cut = piece[:MAX_LINE_CHARS], True
                self.num_cut += 1
            piece = clean(piece)
            for wanted in self._wanted:
                if wanted in piece:
                    is_last = at == len(pieces)
                    yield peel(
                        piece,
                        number=number,
                        torn=is_cut or (torn and is_last),
                        overwritten=overwritten or not is_last,
                    )
                    break
