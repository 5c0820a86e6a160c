"""Reads the torch.save format from before torch 1.6: five pickles in a row, then the storages.

This module never reads a storage's elements and never imports what the pickles name.
"""

from __future__ import annotations

import os
import reprlib
from dataclasses import dataclass
from typing import Any, BinaryIO

from spiketriage.errors import CorruptFileError
from spiketriage.readers import inert, pickles
from spiketriage.readers.checkpoints.files.torch_dtypes import ITEM_BYTES
from spiketriage.readers.checkpoints.files.torch_values import Place, Tensors

_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
# How long the pickles are is known once they are loaded.
_PREFIXES = (1 << 20, 64 << 20, pickles.MAX_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Legacy:
    """The value of a legacy file, the names its pickles asked for, and what is wrong with it."""

    value: Any
    globals: tuple[str, ...]
    problems: tuple[str, ...]
    whole: bool


def is_legacy(head: bytes) -> bool:
    """Whether a file that begins so is of the legacy format."""
    return head.startswith(_MAGIC)


def read(stream: BinaryIO, start: int, end: int, where: str) -> Legacy:
    """The legacy file in the bytes `start` to `end` of `stream`.

    Raises:
        CorruptFileError: its pickles cannot be read.
    """
    for limit in _PREFIXES:
        data = os.pread(stream.fileno(), min(limit, end - start), start)
        try:
            return _parse(stream, data, start, end, where)
        except CorruptFileError:
            if len(data) == end - start or limit == _PREFIXES[-1]:
                raise
    raise AssertionError("the last prefix returns or raises")


def _parse(stream: BinaryIO, data: bytes, start: int, end: int, where: str) -> Legacy:
    view, at = memoryview(data), 0
    parts = []
    for _ in range(3):  # magic, protocol, system
        part = pickles.load_here(view[at : at + 4096], where=where)
        parts.append(part.value)
        at += part.end
    if inert.attribute(parts[2], "little_endian") is not True:
        raise CorruptFileError(
            where, "byte order", expected="little-endian elements", seen=reprlib.repr(parts[2])
        )
    first = Tensors()
    body = view[at:]
    loaded = pickles.load_here(
        body, where=where, persistent=first.persistent, rebuild=first.rebuilders()
    )
    keys = pickles.load_here(body[loaded.end :], where=where)
    problems: list[str] = []
    places = _places(
        stream, start + at + loaded.end + keys.end, end, _keys(keys.value, where), first, problems
    )
    placed = Tensors(places=places)
    again = pickles.load_here(
        body[: loaded.end], where=where, persistent=placed.persistent, rebuild=placed.rebuilders()
    )
    problems += placed.problems
    return Legacy(
        value=again.value,
        globals=again.globals,
        problems=tuple(f"{where}: {problem}" for problem in problems),
        whole=not placed.problems,
    )


def _keys(value: object, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise CorruptFileError(
            where, "storages", expected="a list of keys", seen=type(value).__name__
        )
    return value


def _places(
    stream: BinaryIO, at: int, end: int, keys: list[str], tensors: Tensors, problems: list[str]
) -> dict[str, Place]:
    """Where each storage lies: eight bytes with the number of its elements stand before them."""
    places: dict[str, Place] = {}
    for key in keys:
        storage = tensors.storages.get(key)
        header = os.pread(stream.fileno(), 8, at) if at + 8 <= end else b""
        size_bytes = -1
        if storage is not None and len(header) == 8:
            size_bytes = int.from_bytes(header, "little") * ITEM_BYTES[storage.dtype]
        at += 8
        if not 0 <= size_bytes <= end - at:
            problems.append(
                f"storage {key}: expected its elements at byte {at - 8}, found the end of the file"
            )
            return places
        places[key] = Place(start=at, end=at + size_bytes)
        at += size_bytes
    if at != end:
        problems.append(f"{end - at} bytes follow the last storage")
    return places
