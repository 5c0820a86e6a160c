"""One piece of one file, read once: digest, CRC of vouched ranges, counts over tensor elements.

This module runs wherever an executor puts it (a thread, a process, another machine), never maps a
file, and returns what went wrong instead of raising, since not every executor can carry an
exception.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import xxhash

from spiketriage.digests import BUFFER_BYTES, open_regular
from spiketriage.readers.scan.kernels import Tally, item_bytes, tally

# Counting makes half a dozen short calls a chunk, between which threads wait for each other: fewer,
# larger chunks.
SCAN_BUFFER_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Elements of a tensor, the bytes `start` to `end`; `key` is the planner's number for them."""

    key: int
    start: int
    end: int
    dtype: str
    counts_negatives: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouched:
    """A range of the file for which a CRC-32 is wanted; `key` is the planner's number for it."""

    key: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What to read: the bytes `start` to `end` of `path`, and what to look for in them.

    Spans and vouched ranges may reach beyond the piece: an element belongs to the piece in which
    its first byte lies. Without `is_digested` there is no digest; `algorithm` asks for a second.
    """

    path: str
    start: int
    end: int
    spans: tuple[Span, ...] = ()
    vouched: tuple[Vouched, ...] = ()
    is_full: bool = False
    is_digested: bool = True
    algorithm: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialCrc:
    """CRC-32 of the part of a vouched range that lies in this piece."""

    key: int
    crc32: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Counts over the part of a span that lies in this piece."""

    key: int
    tally: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceFacts:
    """What one pass measured; `digest` is XXH3-128, `other` the hex one of `Piece.algorithm`."""

    path: str
    start: int
    num_bytes: int
    digest: bytes
    other: str
    crcs: tuple[PartialCrc, ...]
    counted: tuple[Counted, ...]
    problem: str


def scan_piece(piece: Piece) -> PieceFacts:
    """Read a piece once and measure it; what cannot be read is a sentence in `problem`."""
    state = xxhash.xxh3_128()
    other = hashlib.new(piece.algorithm) if piece.algorithm else None
    buffer_bytes = SCAN_BUFFER_BYTES if piece.spans else BUFFER_BYTES
    checks, counts = _Checks(piece.vouched), _Counts(piece.spans, is_full=piece.is_full)
    at, problem = piece.start, ""
    try:
        with open_regular(piece.path) as stream:
            handle = stream.fileno()
            for at, chunk in _chunks(handle, piece.start, piece.end, buffer_bytes):
                if piece.is_digested:
                    state.update(chunk)
                if other is not None:
                    other.update(chunk)
                checks.take(at, chunk)
                counts.take(at, chunk)
                at += len(chunk)
            counts.finish(handle)
    except OSError as error:
        problem = f"{piece.path}: cannot be read: {error.strerror or error}"
    if not problem and at != piece.end:
        problem = (
            f"{piece.path}: size: expected at least {piece.end} bytes, found {at}: it shrank "
            "while it was read"
        )
    return PieceFacts(
        path=piece.path,
        start=piece.start,
        num_bytes=at - piece.start,
        digest=state.digest() if piece.is_digested else b"",
        other=other.hexdigest() if other is not None else "",
        crcs=checks.done(),
        counted=counts.done(),
        problem=problem,
    )


def _chunks(
    handle: int, start: int, end: int, buffer_bytes: int
) -> Iterator[tuple[int, memoryview]]:
    buffer = bytearray(min(buffer_bytes, max(end - start, 1)))
    view = memoryview(buffer)
    while start < end:
        count = os.preadv(handle, [view[: min(len(buffer), end - start)]], start)
        if not count:
            return
        yield start, view[:count]
        start += count


class _Checks:
    """CRC-32 of each vouched range, as far as it lies in the chunks."""

    def __init__(self, vouched: Sequence[Vouched]) -> None:
        self._vouched = vouched
        self._crcs = [0] * len(vouched)
        self._counts = [0] * len(vouched)
        self._next = 0

    def take(self, at: int, chunk: memoryview) -> None:
        end = at + len(chunk)
        while self._next < len(self._vouched):
            vouched = self._vouched[self._next]
            low, high = max(vouched.start, at), min(vouched.end, end)
            if low < high:
                self._crcs[self._next] = zlib.crc32(
                    chunk[low - at : high - at], self._crcs[self._next]
                )
                self._counts[self._next] += high - low
            if vouched.end > end:
                break
            self._next += 1

    def done(self) -> tuple[PartialCrc, ...]:
        parts: list[PartialCrc] = []
        for vouched, crc, count in zip(self._vouched, self._crcs, self._counts, strict=True):
            parts.append(PartialCrc(key=vouched.key, crc32=crc, num_bytes=count))
        return tuple(parts)


class _Counts:
    """Counts of each span; an element that two chunks cut apart is put together from both."""

    def __init__(self, spans: Sequence[Span], *, is_full: bool) -> None:
        self._spans = spans
        self._is_full = is_full
        self._tallies = [Tally() for _ in spans]
        self._next = 0
        self._carry = b""
        self._at = 0

    def take(self, at: int, chunk: memoryview) -> None:
        end = at + len(chunk)
        while self._next < len(self._spans):
            span = self._spans[self._next]
            low, high = max(span.start, at), min(span.end, end)
            if low < high:
                self._feed(span, low, chunk[low - at : high - at])
            if span.end > end:
                break
            self._next += 1
            self._carry = b""

    def finish(self, handle: int) -> None:
        """Read the rest of an element that the piece's end cuts apart."""
        if not self._carry or self._next >= len(self._spans):
            return
        span = self._spans[self._next]
        # What is carried always begins in this piece, so the rest of it belongs here too.
        missing = item_bytes(span.dtype) - len(self._carry)
        self._feed(span, self._at, memoryview(os.pread(handle, missing, self._at)))

    def done(self) -> tuple[Counted, ...]:
        counted: list[Counted] = []
        for span, counts in zip(self._spans, self._tallies, strict=True):
            counted.append(Counted(key=span.key, tally=counts))
        return tuple(counted)

    def _feed(self, span: Span, start: int, data: memoryview) -> None:
        size = item_bytes(span.dtype)
        if self._carry:
            head = self._carry + bytes(data[: size - len(self._carry)])
            data, start = data[len(head) - len(self._carry) :], start + len(head) - len(self._carry)
            if len(head) == size:
                self._count(span, start - size, memoryview(head))
                self._carry = b""
            else:
                self._carry = head
        skip = 0 if self._carry else -(start - span.start) % size
        data, start = data[skip:], start + skip
        whole = len(data) - len(data) % size
        if whole:
            self._count(span, start, data[:whole])
        if whole < len(data):
            self._carry = bytes(data[whole:])
        self._at = start + len(data)

    def _count(self, span: Span, start: int, data: memoryview) -> None:
        number = (start - span.start) // item_bytes(span.dtype)
        counts = tally(
            data,
            span.dtype,
            first_element=number,
            is_full=self._is_full,
            counts_negatives=span.counts_negatives,
        )
        self._tallies[self._next].add(counts)
