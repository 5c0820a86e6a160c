"""Cuts the chunks of one read pass at byte ranges, so that one pass can feed many consumers.

This module never reads a file and never keeps a chunk: the buffer behind it is reused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """The bytes `start` (included) to `end` (excluded) of a file."""

    start: int
    end: int


class RangeSplitter:
    """A sink for `digests.read_pass` that hands each piece of each range to `feed(number, piece)`.

    Ranges must be sorted and must not overlap; bytes between them are passed over.
    """

    def __init__(
        self, ranges: Sequence[ByteRange], feed: Callable[[int, memoryview], object]
    ) -> None:
        self._ranges = ranges
        self._feed = feed
        self._number = 0
        self._at = 0

    def __call__(self, chunk: memoryview) -> None:
        """Take the next chunk of the file."""
        end = self._at + len(chunk)
        while self._number < len(self._ranges):
            span = self._ranges[self._number]
            low, high = max(span.start, self._at), min(span.end, end)
            if low < high:
                self._feed(self._number, chunk[low - self._at : high - self._at])
            if span.end > end:
                break
            self._number += 1
        self._at = end
