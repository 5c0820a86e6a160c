"""The columns of one MDS sample: where each lies in it, and the token ids in one of them.

This module never decodes a column that it does not need, so that a pickle or a picture stays bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spiketriage.errors import CorruptFileError
from spiketriage.nouns.series import Integers
from spiketriage.readers.data.disk import integers, of_text

DTYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    32: "uint32",
    33: "int32",
    64: "uint64",
    65: "int64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column, its encoding as the index spells it; `size_bytes` is None where it varies."""

    name: str
    encoding: str
    size_bytes: int | None


def column_bytes(
    path: Path, what: str, columns: Sequence[Column], wanted: Column, data: bytes
) -> bytes:
    """The bytes of one column of a sample, in which the sizes that vary come before the columns.

    Raises:
        CorruptFileError: the sizes do not add up to the sample.
    """
    variable = [column for column in columns if column.size_bytes is None]
    at = 4 * len(variable)
    sizes = iter(integers(data[:at], np.dtype("<u4")).tolist())
    spans: dict[str, range] = {}
    for column in columns:
        size = column.size_bytes
        if size is None:
            size = next(sizes, None)
        if size is None or at + size > len(data):
            raise CorruptFileError(
                path,
                what,
                expected=f"columns within {len(data)} bytes",
                seen=f"{column.name} at {at}",
            )
        spans[column.name] = range(at, at + size)
        at += size
    if at != len(data):
        raise CorruptFileError(path, what, expected=f"columns of {len(data)} bytes in all", seen=at)
    span = spans[wanted.name]
    return data[span.start : span.stop]


def tokens_of(column: Column, data: bytes, path: Path, what: str) -> Integers:
    """The token ids in a column of text, of bytes or of an array.

    Raises:
        CorruptFileError: another encoding, or an array that is not what its head says.
    """
    kind, _, detail = column.encoding.partition(":")
    if kind == "str" or (kind == "bytes" and column.name == "text"):
        return of_text(data)
    if kind == "bytes":
        if len(data) % 8 == 0:
            return integers(data, np.dtype("<i8"))
        return of_text(data)
    if kind != "ndarray":
        expected = "text, bytes or an array of integers"
        raise CorruptFileError(
            path, f"{what}, column {column.name}", expected=expected, seen=column.encoding
        )
    try:
        return _array(data, detail)
    except (ValueError, IndexError) as error:
        raise CorruptFileError(
            path, what, expected=f"an array ({column.encoding})", seen=error
        ) from error


def _array(data: bytes, detail: str) -> Integers:
    """The values of an array, whose dtype and shape are in its encoding or else at its head."""
    name, _, shape = detail.partition(":")
    if not name:
        name, data = DTYPES.get(data[0], f"code {data[0]}"), data[1:]
    if name not in DTYPES.values():
        raise ValueError(f"a dtype {name}")
    dtype = np.dtype(name).newbyteorder("<")
    if shape:
        sizes = [int(size) for size in shape.split(",")]
    else:
        num_axes, width = data[0] >> 2, 1 << (data[0] & 3)
        sizes = integers(data[1 : 1 + num_axes * width], np.dtype(f"<u{width}")).tolist()
        data = data[1 + num_axes * width :]
    expected = dtype.itemsize
    for size in sizes:
        expected *= size
    if expected != len(data):
        raise ValueError(f"{len(data)} bytes for a shape of {sizes}")
    return integers(data, dtype)
