"""The framing of a TensorBoard event file: where its records lie, whatever is damaged.

This module never reads a record's content and never allocates by a length that a file claims.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from spiketriage.nouns.series import Integers
from spiketriage.readers.telemetry.stores import crc32c

WINDOW_BYTES = 16 << 20
MAX_RECORD_BYTES = 64 << 20  # a longer one is stepped over: no scalar is that long
MAX_SEARCH_BYTES = 256 << 20  # for the next record behind damage
_HEAD, _TAIL = 12, 4
_PADDING = bytes(16)  # so that eight bytes can be taken from any place in a record
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Whole records: each lies in `data` at its offset with its length.

    `start` is the window's place in the file.
    """

    data: bytes
    start: int
    offsets: Integers
    lengths: Integers


@dataclass(slots=True, kw_only=True)
class Framing:
    """What was wrong with the framing of one file."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def windows(stream: BinaryIO, size_bytes: int, framing: Framing) -> Iterator[Window]:
    """Every readable record of the file, in order."""
    position, want = 0, WINDOW_BYTES
    while position < size_bytes:
        stream.seek(position)
        data = stream.read(want)
        if not data:
            framing.problems.append(f"byte {position}: the file became shorter while it was read")
            return
        window, end = _walk(data, position)
        if len(window.offsets):
            yield window
            position, want = end, WINDOW_BYTES
            continue
        left = size_bytes - position
        if len(data) < _HEAD and left == len(data):
            framing.problems.append(
                f"ends inside a record: {left} bytes from byte {position} are lost"
            )
            return
        if not _is_head(data):
            next_head = _next_head(stream, position + 1, size_bytes)
            lost = (size_bytes if next_head is None else next_head) - position
            framing.problems.append(_damage(data, position, lost))
            position, want = (size_bytes, 0) if next_head is None else (next_head, WINDOW_BYTES)
            continue
        whole = _HEAD + _LENGTH.unpack_from(data)[0] + _TAIL
        if whole > left:
            framing.problems.append(
                f"ends inside a record: byte {position} begins one of {whole} bytes, "
                f"{left} of them are there"
            )
            return
        if whole > MAX_RECORD_BYTES:
            framing.notes.append(f"byte {position}: stepped over a record of {whole} bytes")
            position += whole
        else:
            want = whole


def _walk(data: bytes, start: int) -> tuple[Window, int]:
    """The records that lie whole in `data`, up to the first whose length fails its checksum."""
    # Ends of the records so far; the loop costs more than all decoding, so it does the least.
    ends = [0]
    add, take, position, last = ends.append, _LENGTH.unpack_from, 0, len(data) - _HEAD - _TAIL
    while position <= last:
        position += take(data, position)[0] + 16
        add(position)
    bounds = np.array(ends[:-1] if position > len(data) else ends, dtype=np.uint64).astype(np.int64)
    starts, sizes = bounds[:-1] + _HEAD, np.diff(bounds) - _HEAD - _TAIL
    padded = data + _PADDING
    num_good = _num_good_heads(padded, starts, sizes)
    end = 0
    if num_good:
        end = int(starts[num_good - 1] + sizes[num_good - 1]) + _TAIL
    window = Window(data=padded, start=start, offsets=starts[:num_good], lengths=sizes[:num_good])
    return window, start + end


def _num_good_heads(data: bytes, offsets: Integers, lengths: Integers) -> int:
    """How many records from the first on have a length that its own checksum vouches for."""
    if not len(offsets):
        return 0
    known, inverse = np.unique(lengths, return_inverse=True)
    rows = known.astype("<u8").view(np.uint8).reshape(len(known), 8)
    expected = crc32c.mask(crc32c.of_rows(rows))[inverse]
    bad = np.flatnonzero(expected != unaligned(data, "<u4")[offsets - 4])
    if len(bad):
        return int(bad[0])
    return len(offsets)


def unaligned(data: bytes, dtype: str) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
    """The numbers that begin at each byte of `data`."""
    width = np.dtype(dtype).itemsize
    return np.ndarray((len(data) - width + 1,), dtype, data, 0, (1,))


def _is_head(data: bytes) -> bool:
    return len(data) >= _HEAD and crc32c.masked_of_bytes(data[:8]) == int.from_bytes(
        data[8:12], "little"
    )


def _next_head(stream: BinaryIO, position: int, size_bytes: int) -> int | None:
    """The next place where a length and its checksum stand: by chance one in 4 billion does."""
    last = min(size_bytes, position + MAX_SEARCH_BYTES)
    while position + _HEAD <= last:
        stream.seek(position)
        data = stream.read((1 << 20) + _HEAD)
        if len(data) < _HEAD:
            return None
        rows = sliding_window_view(np.frombuffer(data, dtype=np.uint8), 8)[: len(data) - _HEAD + 1]
        stored = unaligned(data, "<u4")[8:]
        lengths = unaligned(data, "<u8")[: len(rows)]
        for place in np.flatnonzero(
            crc32c.mask(crc32c.of_rows(rows)) == stored[: len(rows)]
        ).tolist():
            if int(lengths[place]) + position + place + _HEAD + _TAIL <= size_bytes:
                return position + int(place)
        position += len(rows)
    return None


def _damage(data: bytes, position: int, lost: int) -> str:
    claimed = 0
    if len(data) >= _LENGTH.size:
        claimed = _LENGTH.unpack_from(data)[0]
    return (
        f"byte {position}: expected a record, found a length of {claimed} whose checksum "
        f"fails; {lost} bytes lost"
    )
