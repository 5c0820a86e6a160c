"""The lines of a text file, streamed: decoded, split, cut where they are endless.

This module never holds more of a file than a block and one shortened line, and never says what a
line means.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

BLOCK_BYTES = 1 << 20
MAX_LINE_CHARS = 1 << 16  # the longest line seen in the wild is a progress bar of 14,765 characters
MAX_ROW_CHARS = 1 << 20  # a row of a table has a cell for each of up to 20,000 columns

_CONTROLS = bytes(set(range(1, 32)) - set(b"\t\n\v\f\r\b\a\x1b"))
_ANSI = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b]*+(?:\x07|\x1b\\)|[@-Z\\^_])")
_HOLE = re.compile(rb"\0{16,}+")
_LINE_END = re.compile(r"[\r\n]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line, or one state of a line that was rewritten by carriage returns.

    `number` counts line feeds from 1. `is_torn` says that its end is missing (no line feed, or too
    long), `is_overwritten` that a later state followed on the same line.
    """

    number: int
    text: str
    is_torn: bool = False
    is_overwritten: bool = False


class Lines:
    """The lines of a text that contain one of `anchors`, once; the others are only counted.

    On a console, colours are removed and a carriage return begins a new state of its line.
    """

    def __init__(
        self,
        blocks: Iterable[bytes],
        *,
        anchors: tuple[str, ...] = ("",),
        encoding: str = "utf-8",
        max_chars: int,
        is_console: bool,
    ) -> None:
        self._blocks = blocks
        self._anchors = anchors
        self._encoding = encoding
        self._max_chars = max_chars
        self._is_console = is_console
        self._is_cut = False
        self._is_skipping = False
        self.num_lines = 0
        self.num_cut = 0
        self.torn_at: int | None = None

    def __iter__(self) -> Iterator[Line]:
        """Every line with an anchor and every state of a rewritten one, in order."""
        number, pending = 1, ""
        for block in self._decoded():
            *whole, pending = (pending + self._unskipped(block)).split("\n")
            for line in whole:
                yield from self._states(line, number)
                number += 1
            if len(pending) > self._max_chars:
                pending = yield from self._shortened(pending, number)
        if pending:
            self.torn_at = number
            is_ended = self._is_console and pending.endswith("\r")
            yield from self._states(pending, number, is_torn=not is_ended)

    def _decoded(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder(self._encoding)(errors="replace")
        for block in self._blocks:
            yield decoder.decode(block)
        yield decoder.decode(b"", final=True)

    def _unskipped(self, block: str) -> str:
        """What follows the rest of a line that was too long."""
        if not self._is_skipping:
            return block
        end = _LINE_END.search(block)
        self._is_skipping = end is None
        if end is None:
            return ""
        return block[end.start() :]

    def _shortened(self, pending: str, number: int) -> Generator[Line, None, str]:
        """The states of an unfinished long line; returns what may go on."""
        done = pending.rfind("\r", 0, len(pending) - 1)
        if done >= 0 and self._is_console:
            yield from self._states(pending[:done], number, is_overwritten=True)
            pending = pending[done + 1 :]
        whole = pending.removesuffix("\r")
        if len(whole) <= self._max_chars:
            return pending
        self._is_cut = True
        self._is_skipping = whole == pending  # else the return at the end has closed it
        self.num_cut += 1
        return whole[: self._max_chars] + pending[len(whole) :]

    def _states(
        self, line: str, number: int, *, is_torn: bool = False, is_overwritten: bool = False
    ) -> Iterator[Line]:
        line = line.rstrip("\r")
        pieces = [line]
        if self._is_console and "\r" in line:
            pieces = [piece for piece in line.split("\r") if piece]
        self.num_lines += len(pieces)
        for at, piece in enumerate(pieces, 1):
            is_cut = self._is_cut and at == 1
            self._is_cut = False
            if len(piece) > self._max_chars:
                piece, is_cut = piece[: self._max_chars], True
                self.num_cut += 1
            if self._is_console:
                piece = clean(piece)
            for anchor in self._anchors:
                if anchor in piece:
                    is_last = at == len(pieces)
                    yield Line(
                        number=number,
                        text=piece,
                        is_torn=is_cut or (is_torn and is_last),
                        is_overwritten=is_overwritten or not is_last,
                    )
                    break


def row_lines(stream: BinaryIO) -> Lines:
    """The lines of a table in UTF-8; bytes that are not are replaced."""
    return Lines(blocks_of(stream), max_chars=MAX_ROW_CHARS, is_console=False)


def blocks_of(stream: BinaryIO) -> Iterator[bytes]:
    """What is left of a stream, a block at a time."""
    while block := stream.read(BLOCK_BYTES):
        yield block


def clean(text: str) -> str:
    """`text` without terminal colours and cursor movements."""
    if "\x1b" in text:
        return _ANSI.sub("", text)
    return text


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
    left = _HOLE.sub(b"", head)  # a disk that lost a piece of a log put zeros in its place
    if left and left.count(0) <= len(left) // 100:
        return "utf-8-sig"
    return None
