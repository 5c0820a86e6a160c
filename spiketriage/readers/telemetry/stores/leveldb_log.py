"""The record framing of a `.wandb` file: LevelDB's log, with an IEEE CRC-32 of its own.

This module never raises for damage: what is lost becomes a sentence, and reading goes on at the
next block.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

BLOCK_BYTES = 32768
FILE_HEAD_BYTES = 7  # counts as part of the first block
MAX_RECORD_BYTES = 64 << 20
_PIECE = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MAX_NAMED = 5


@dataclass(slots=True, kw_only=True)
class LogReader:
    """Reads the records of one file; `problems` grows while it does."""

    stream: BinaryIO
    problems: list[str] = field(default_factory=list)
    num_lost: int = 0
    _parts: list[bytes] = field(default_factory=list)
    _part_bytes: int = 0
    _in_record: bool = False

    def records(self) -> Iterator[bytes]:
        """Every whole record whose checksum fits, in order."""
        position = FILE_HEAD_BYTES
        self.stream.seek(position)
        while block := self.stream.read(BLOCK_BYTES - position % BLOCK_BYTES):
            is_whole = (position + len(block)) % BLOCK_BYTES == 0
            yield from self._block(block, position, is_whole=is_whole)
            position += len(block)
        if self._in_record:
            self._lose(position, "ends inside a record: its writer died or is still writing")
        if self.num_lost > _MAX_NAMED:
            self.problems.append(f"{self.num_lost - _MAX_NAMED} more places are damaged")

    def _block(self, block: bytes, start: int, *, is_whole: bool) -> Iterator[bytes]:
        position = 0
        while len(block) - position >= _PIECE.size:
            crc, length, kind = _PIECE.unpack_from(block, position)
            if not (crc or length or kind):
                return  # the rest of the block is padding
            content = block[position + _PIECE.size : position + _PIECE.size + length]
            if len(content) < length:
                what = "ends inside a record"
                if is_whole:
                    what = "a piece longer than its block"
                self._lose(
                    start + position, f"{what}: {length} bytes claimed, {len(content)} are there"
                )
                return
            if zlib.crc32(content, zlib.crc32(bytes((kind,)))) != crc:
                self._lose(start + position, f"a piece of {length} bytes fails its checksum")
            else:
                yield from self._piece(kind, content, start + position)
            position += _PIECE.size + length
        if not is_whole and block[position:].strip(b"\0"):
            self._lose(
                start + position, f"ends inside a record: {len(block) - position} bytes of a header"
            )

    def _piece(self, kind: int, content: bytes, at: int) -> Iterator[bytes]:
        if kind in (_FULL, _FIRST) and self._in_record:
            self._lose(at, "the record before has no end")
        if kind == _FULL:
            yield content
        elif kind == _FIRST:
            self._parts, self._part_bytes, self._in_record = [content], len(content), True
        elif kind in (_MIDDLE, _LAST) and self._in_record:
            self._parts.append(content)
            self._part_bytes += len(content)
            if self._part_bytes > MAX_RECORD_BYTES:
                self._lose(at, f"a record of more than {MAX_RECORD_BYTES} bytes")
            elif kind == _LAST:
                whole = b"".join(self._parts)
                self._drop()
                yield whole
        elif kind not in (_MIDDLE, _LAST):
            self._lose(at, f"a piece of unknown kind {kind}")
        elif not self.num_lost:  # after damage the pieces of the lost record still follow
            self._lose(at, "a piece of a record that never began")

    def _lose(self, at: int, what: str) -> None:
        self.num_lost += 1
        if self.num_lost <= _MAX_NAMED:
            self.problems.append(f"byte {at}: {what}")
        self._drop()

    def _drop(self) -> None:
        self._parts, self._part_bytes, self._in_record = [], 0, False
