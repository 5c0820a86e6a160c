"""Where a shard of a nanotron parameter lies in the whole, by the text in its safetensors header.

This module never opens a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spiketriage.errors import CorruptFileError
from spiketriage.nouns.checkpoint import Chunk
from spiketriage.readers.checkpoints.files.safetensors_file import TensorEntry

_MAX_TEXT = 1 << 20
_INTEGER = re.compile(r"(?:np\.int\d*\()?(\d{1,18})\)?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of a parameter of shape `whole`."""

    dtype: str
    whole: tuple[int, ...]
    chunk: Chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    """A slice in every dimension."""

    start: tuple[int, ...]
    shape: tuple[int, ...]


def unsharded_shape(text: str | None, local: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that `(64, 8)` means; `local` where the parameter is not sharded."""
    if text is None or len(text) > _MAX_TEXT:
        return local
    parts = [part.strip() for part in text.strip().removeprefix("(").removesuffix(")").split(",")]
    sizes = []
    for part in filter(None, parts):
        number = _INTEGER.match(part)
        if number is None:
            return local
        sizes.append(int(number[1]))
    return tuple(sizes)


def pieces(
    text: str | None, data: TensorEntry, whole: tuple[int, ...], name: str, *, where: Path
) -> Iterator[Piece]:
    """The pieces of the tensor `data` of the file `name`, from `local#global;local#global…`.

    Raises:
        CorruptFileError: the slices cannot be read, or do not fit the shapes.
    """
    if text is None:
        whole_box = _Box(start=(0,) * len(data.shape), shape=data.shape)
        yield _piece(data, whole_box, whole_box, data.shape, name)
        return
    for pair in text[:_MAX_TEXT].split(";"):
        local_text, _, global_text = pair.partition("#")
        local, there = _box(local_text, data.shape), _box(global_text, whole)
        if local is None or there is None or local.shape != there.shape:
            expected = f"slices of {list(data.shape)} and of {list(whole)}"
        elif local.shape[1:] != data.shape[1:]:
            expected = "slices of whole rows of the file"
        else:
            yield _piece(data, local, there, whole, name)
            continue
        raise CorruptFileError(
            where, "local_global_slices_pairs", expected=expected, seen=f"{pair:.200}"
        )


def _piece(data: TensorEntry, local: _Box, there: _Box, whole: tuple[int, ...], name: str) -> Piece:
    """The rows `local` of the tensor in the file, which are `there` in the whole parameter."""
    start, end = data.start, data.end
    if data.shape:
        row_bytes = (data.end - data.start) // data.shape[0] if data.shape[0] else 0
        start += local.start[0] * row_bytes
        end = start + local.shape[0] * row_bytes
    chunk = Chunk(path=name, start=start, end=end, offset=there.start, shape=there.shape)
    return Piece(dtype=data.dtype, whole=whole, chunk=chunk)


def _box(text: str, shape: tuple[int, ...]) -> _Box | None:
    """The box that `0,32,None|0,8,None` means in a tensor of `shape`; None if it is none."""
    slices = text.split("|")
    if len(slices) != len(shape):
        return None
    starts, sizes = [], []
    for part, size in zip(slices, shape, strict=True):
        bounds = part.split(",")
        if len(bounds) != 3 or bounds[2] not in ("None", "1"):
            return None
        start, stop = _bound(bounds[0], 0), _bound(bounds[1], size)
        if not 0 <= start <= stop <= size:
            return None
        starts.append(start)
        sizes.append(stop - start)
    return _Box(start=tuple(starts), shape=tuple(sizes))


def _bound(text: str, otherwise: int) -> int:
    """One end of a slice; -1 where the text is no number that an end could be."""
    if text == "None":
        return otherwise
    if text.isdecimal() and len(text) < 19:
        return int(text)
    return -1
