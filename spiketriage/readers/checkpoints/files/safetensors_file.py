"""Reads the header of a safetensors file without its library: which tensor lies where.

This module never imports torch, never maps a file and never believes an offset that it has not
checked.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spiketriage.digests import open_regular
from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.readers.json_file import is_count

_MAX_DIMENSIONS = 64  # as in torch and numpy
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
# five times those of the largest mixtures of experts; more would not fit into memory
MAX_TENSORS = 500_000
_ITEM_BITS = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(
        ("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8
    ),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of the header; `start` and `end` are offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A checked header: the tensors, sorted by offset, follow it without hole or overlap.

    They end at byte `end`; a complete file does too. `metadata` is what the writer said about the
    file.
    """

    size_bytes: int
    tensors: tuple[TensorEntry, ...]
    end: int
    metadata: Mapping[str, str] = field(default_factory=dict)


def read_header(path: Path) -> Header:
    """The header of the file at `path`.

    Raises:
        CorruptFileError: the file is not a complete safetensors file; the message says in which
        respect.
        EvidenceError: the file cannot be read.
    """
    header = read_header_alone(path)
    if header.end != header.size_bytes:
        expected = f"{header.end} bytes, as the header says"
        raise CorruptFileError(path, "size", expected=expected, seen=header.size_bytes)
    return header


def read_header_alone(path: Path, start: int = 0) -> Header:
    """The header at byte `start` of a file, whatever has become of the data behind it.

    Raises:
        CorruptFileError: the header is wrong; the message says in which respect.
        EvidenceError: the file cannot be read.
    """
    try:
        with open_regular(path) as stream:
            size_bytes = stream.seek(0, 2)
            stream.seek(start)
            prefix = stream.read(8)
            if len(prefix) < 8:
                raise CorruptFileError(
                    path, "size", expected=f"at least {start + 8} bytes", seen=size_bytes
                )
            length = struct.unpack("<Q", prefix)[0]
            longest = min(MAX_HEADER_BYTES, size_bytes - start - 8)
            if length > longest:
                expected = f"at most {longest} bytes"
                raise CorruptFileError(path, "header length", expected=expected, seen=length)
            text = stream.read(length)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error
    return _checked(path, _parse(path, text), data_start=start + 8 + length, size_bytes=size_bytes)


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) != len(names):
            raise ValueError(f"duplicate key {Counter(names).most_common(1)[0][0]!r}")
        "".join(names).encode()  # an escaped half of a surrogate pair is JSON, but no text
        return dict(pairs)

    num_tensors = text.count(b"data_offsets")
    if num_tensors > MAX_TENSORS:
        raise CorruptFileError(
            path, "header", expected=f"at most {MAX_TENSORS} tensors", seen=num_tensors
        )
    try:
        value = json.loads(text.decode(), object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(
            path, "header", expected="JSON in UTF-8 without duplicates", seen=error
        ) from error
    if not isinstance(value, dict):
        raise CorruptFileError(path, "header", expected="a JSON object", seen=type(value).__name__)
    return value


def _checked(path: Path, value: dict[str, Any], *, data_start: int, size_bytes: int) -> Header:
    metadata = value.pop("__metadata__", None)
    tensors = [_entry(path, name, item, data_start) for name, item in value.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    at = data_start
    for tensor in tensors:
        if tensor.start != at:
            raise CorruptFileError(
                path, f"tensor {tensor.name}", expected=f"start at byte {at}", seen=tensor.start
            )
        at = tensor.end
    texts = {}
    if isinstance(metadata, dict):
        texts = {name: text for name, text in metadata.items() if isinstance(text, str)}
    return Header(size_bytes=size_bytes, tensors=tuple(tensors), end=at, metadata=texts)


def _entry(path: Path, name: str, item: object, data_start: int) -> TensorEntry:
    where = f"tensor {name}"
    if not isinstance(item, dict):
        raise CorruptFileError(path, where, expected="an object", seen=type(item).__name__)
    try:
        dtype, shape, (start, end) = item["dtype"], tuple(item["shape"]), item["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFileError(
            path, where, expected="dtype, shape and two offsets", seen=error
        ) from error
    if not isinstance(dtype, str) or dtype not in _ITEM_BITS:
        raise CorruptFileError(path, where, expected="a known dtype", seen=repr(dtype))
    # The bounds keep the product below from being a number of a million digits.
    are_counts = all(is_count(part) and part < 1 << 64 for part in (*shape, start, end))
    if len(shape) > _MAX_DIMENSIONS or not are_counts or end < start:
        raise CorruptFileError(
            path, where, expected="ascending counts", seen=f"{shape!r:.200} at {start}..{end}"
        )
    num_bits = math.prod(shape) * _ITEM_BITS[dtype]
    if 8 * (end - start) != num_bits:
        expected = f"{-(-num_bits // 8)} bytes for {dtype} {list(shape)}"
        raise CorruptFileError(path, where, expected=expected, seen=f"{end - start} bytes")
    return TensorEntry(
        name=name, dtype=dtype, shape=shape, start=data_start + start, end=data_start + end
    )
