"""The arrays of integers that numpy saves, read a few rows at a time.

This module never unpickles (an object array is refused) and never maps a file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spiketriage.errors import CorruptFileError
from spiketriage.nouns.series import Integers
from spiketriage.readers.data.disk import integers, read_range
from spiketriage.readers.look import look_at_file

MAGIC = b"\x93NUMPY"
HEADER = re.compile(  # numpy writes its three keys in this order; an object array has another descr
    rb"\x93NUMPY(?P<version>[\x01-\x03])\x00(?:(?<=\x01\x00)..|(?<=[\x02\x03]\x00)....)"
    rb"\{'descr': '(?P<dtype>[<>|][iu][1248])', 'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>[\d, ]{1,80})\), \}",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NpyArray:
    """An array of integers on disk, whose values begin at byte `start`."""

    path: Path
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    start: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * (self.shape[1] if len(self.shape) == 2 else 1)

    def rows(self, first: int, last: int) -> Integers:
        """Rows `first` to `last` (excluded), flat.

        Raises:
            EvidenceError: the file ends before them.
        """
        low = self.start + first * self.row_bytes
        data = read_range(
            self.path, low, low + (last - first) * self.row_bytes, f"rows {first} to {last}"
        )
        return integers(data, self.dtype)


def read_npy(path: Path) -> NpyArray:
    """The array of integers at `path`, checked against the size of the file.

    Raises:
        CorruptFileError: not such an array, or the file is shorter than it says.
        EvidenceError: it cannot be read.
    """
    seen = look_at_file(path)
    header = HEADER.match(seen.head)
    if header is None or header["fortran"] == b"True":
        expected = "a numpy array of integers, row after row"
        raise CorruptFileError(path, "header", expected=expected, seen=seen.head[:80])
    shape = tuple(int(size) for size in re.findall(rb"\d+", header["shape"]))
    width = 2 if header["version"] == b"\1" else 4
    start = 8 + width + int.from_bytes(seen.head[8 : 8 + width], "little")
    if len(shape) not in (1, 2) or start < header.end():
        raise CorruptFileError(path, "header", expected="one or two axes", seen=shape)
    array = NpyArray(path=path, dtype=np.dtype(header["dtype"].decode()), shape=shape, start=start)
    if start + shape[0] * array.row_bytes > seen.size_bytes:
        expected = f"{shape[0]} rows of {array.row_bytes} bytes"
        raise CorruptFileError(
            path, "values", expected=expected, seen=f"{seen.size_bytes - start} bytes"
        )
    return array


def as_rows(values: Integers, width: int) -> NDArray[np.int64]:
    """Flat values as rows of `width`."""
    return values.reshape(-1, width)
