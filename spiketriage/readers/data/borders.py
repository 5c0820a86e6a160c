"""Where the items of a long file end: lines of text, documents of a stream of tokens.

This module never keeps a position for every item: it keeps a count for every block and looks again
inside one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.nouns.series import Integers
from spiketriage.readers.data.disk import BLOCK_BYTES, blocks, elements, read_range


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Elements of `dtype` in the bytes `start` to `end` of a file, cut into items by one value.

    A stream that begins with the separator is taken as one whose items begin with it (llm.c); else
    they end with it (nanoGPT, OLMo, lines of text), and what follows the last separator is an item
    of its own. `forbidden` is a value that the stream should not hold.
    """

    path: Path
    start: int
    end: int
    dtype: str
    separator: int
    may_open: bool = True
    forbidden: int | None = None

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.dtype).itemsize

    @property
    def num_elements(self) -> int:
        """Whole elements of the stream."""
        return (self.end - self.start) // self.item_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Borders:
    """Where a stream is cut: `ends` counts the separators up to the end of each block.

    Items are `opening` with a separator, or end with one, and the last is `closed` if it does too.
    `first_forbidden` is the element at which the forbidden value first is.
    """

    stream: Stream
    ends: Integers
    opening: bool
    closed: bool
    first_forbidden: int | None = None

    @property
    def num_items(self) -> int:
        """Items of the stream; an empty stream has none."""
        num_separators = int(self.ends[-1]) if len(self.ends) else 0
        if self.opening or self.closed:
            return num_separators
        return num_separators + 1

    def start_of(self, number: int) -> int:
        """The element at which item `number` starts; for the one after the last, the end.

        Raises:
            EvidenceError: the file cannot be read, or has changed.
        """
        if number >= self.num_items:
            return self.stream.num_elements
        if self.opening:
            return self._separator(number)
        if number:
            return self._separator(number - 1) + 1
        return 0

    def item_at(self, element: int) -> int:
        """The item that an element of the stream lies in.

        Raises:
            EvidenceError: the file cannot be read, or has changed.
        """
        block, inside = divmod(element, self._per_block)
        before = int(self.ends[block - 1]) if block else 0
        places = self._places(block)
        if self.opening:
            return before + int(np.searchsorted(places, inside, side="right")) - 1
        return before + int(np.searchsorted(places, inside, side="left"))

    @property
    def _per_block(self) -> int:
        return BLOCK_BYTES // self.stream.item_bytes

    def _separator(self, number: int) -> int:
        block = int(np.searchsorted(self.ends, number, side="right"))
        before = int(self.ends[block - 1]) if block else 0
        places = self._places(block)
        if number - before >= len(places):
            seen = f"{len(places)} in block {block}"
            raise CorruptFileError(
                self.stream.path, "separators", expected="as many as a moment ago", seen=seen
            )
        return block * self._per_block + int(places[number - before])

    def _places(self, block: int) -> NDArray[np.intp]:
        """Where the separators of one block are in it."""
        stream = self.stream
        low = stream.start + block * self._per_block * stream.item_bytes
        high = min(low + BLOCK_BYTES, stream.start + stream.num_elements * stream.item_bytes)
        values = elements(read_range(stream.path, low, high, "block"), np.dtype(stream.dtype))
        return np.flatnonzero(values == stream.separator)


def borders(stream: Stream) -> Borders:
    """The borders of `stream`, from one pass; asking again for an unchanged file costs nothing.

    Raises:
        EvidenceError: the file cannot be read.
    """
    try:
        state = stream.path.stat()
    except OSError as error:
        raise EvidenceError(f"{stream.path}: cannot be read: {error.strerror or error}") from error
    return _scanned(stream, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)


@lru_cache(maxsize=64)
def _scanned(stream: Stream, *_state: int) -> Borders:
    end = stream.start + stream.num_elements * stream.item_bytes
    counts: list[int] = []
    first = last = forbidden = None
    at = 0
    for data in blocks(stream.path, stream.start, end):
        values = elements(data, np.dtype(stream.dtype))
        counts.append(int(np.count_nonzero(values == stream.separator)))
        if forbidden is None and stream.forbidden is not None:
            places = np.flatnonzero(values == stream.forbidden)
            if len(places):
                forbidden = at + int(places[0])
        at += len(values)
        if len(values):
            first = int(values[0]) if first is None else first
            last = int(values[-1])
    is_empty = last is None
    return Borders(
        stream=stream,
        ends=np.cumsum(np.asarray(counts, dtype=np.int64)),
        opening=stream.may_open and not is_empty and first == stream.separator,
        closed=is_empty or last == stream.separator,
        first_forbidden=forbidden,
    )
