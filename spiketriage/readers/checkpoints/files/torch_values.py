"""Inert tensors for the unpickler: where a tensor's elements lie is kept, none is read.

This module never imports torch and never opens a file.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spiketriage.readers.checkpoints.files.torch_dtypes import ITEM_BYTES, dtype_of
from spiketriage.readers.json_file import is_count

_MAX_DIMENSIONS = 64  # as in torch and numpy


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the bytes of a storage lie in the file."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRef:
    """A tensor of a torch.save file, whose elements span the bytes `start` to `end`.

    Both are None where the elements are lost. Where the tensor is not `contiguous` (row-major,
    without gaps) that range holds other elements too, or its own transposed.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int | None
    end: int | None
    contiguous: bool
    storage_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A storage as a persistent id names it; `skip_bytes` is where a legacy view of it begins."""

    key: str
    dtype: str
    size_bytes: int
    skip_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class Tensors:
    """Makes a `TensorRef` of every tensor of one file; `places` are known for its storages."""

    places: Mapping[str, Place] = field(default_factory=dict)
    problems: dict[str, None] = field(default_factory=dict)  # in first-seen order
    storages: dict[str, Storage] = field(default_factory=dict)

    def persistent(self, pid: Any) -> Storage:
        """The storage of an id (kind, class, key, device, number of elements[, legacy view])."""
        if not isinstance(pid, tuple) or len(pid) not in (5, 6) or pid[0] != "storage":
            raise ValueError(f"a persistent id that is no storage: {_short(pid)}")
        dtype, key, numel = dtype_of(pid[1]), pid[2], pid[4]
        if dtype is None or not isinstance(key, str) or not is_count(numel):
            raise ValueError(f"a storage of unknown kind: {_short(pid)}")
        item_bytes = ITEM_BYTES[dtype]
        self.storages.setdefault(key, Storage(key=key, dtype=dtype, size_bytes=numel * item_bytes))
        view = pid[5] if len(pid) == 6 else None
        skip = 0
        if isinstance(view, tuple) and len(view) == 3 and is_count(view[1]):
            skip = view[1] * item_bytes
        return Storage(key=key, dtype=dtype, size_bytes=numel * item_bytes, skip_bytes=skip)

    def rebuilders(self) -> Mapping[str, Callable[..., Any]]:
        """What stands in for torch's functions that rebuild a tensor."""
        return {
            "torch._utils._rebuild_tensor": self._tensor,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_tensor_v3": self._tensor_of_dtype,
            "torch._utils._rebuild_parameter": _first,
            "torch._utils._rebuild_parameter_with_state": _first,
            "torch._tensor._rebuild_from_type_v2": _of_type,
        }

    def _tensor_of_dtype(
        self,
        storage: Any,
        offset: Any,
        shape: Any,
        stride: Any,
        gradient: Any,
        hooks: Any,
        dtype: Any,
        *rest: Any,
    ) -> TensorRef:
        return self._tensor(storage, offset, shape, stride, dtype=dtype_of(dtype) or "")

    def _tensor(
        self, storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any, dtype: str = ""
    ) -> TensorRef:
        counts = (offset, *shape, *stride)
        is_odd = len(shape) != len(stride) or len(shape) > _MAX_DIMENSIONS
        if is_odd or not isinstance(storage, Storage):
            raise ValueError(
                f"a tensor of storage, shape and stride {_short(storage, shape, stride)}"
            )
        if not all(is_count(count) and count < 1 << 62 for count in counts):
            raise ValueError(f"a tensor with offset, shape and stride {_short(*counts)}")
        dtype = dtype or storage.dtype
        item_bytes = ITEM_BYTES[dtype]
        is_empty = 0 in shape
        last = 0
        if not is_empty:
            last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1
        low = storage.skip_bytes + offset * item_bytes
        place = self._place(storage, low, low + last * item_bytes)
        return TensorRef(
            dtype=dtype,
            shape=tuple(shape),
            stride=tuple(stride),
            start=place.start if place else None,
            end=place.end if place else None,
            contiguous=is_empty or _is_row_major(shape, stride),
            storage_key=storage.key,
        )

    def _place(self, storage: Storage, low: int, high: int) -> Place | None:
        place = self.places.get(storage.key)
        if place is None:
            self.problems[f"storage {storage.key}: its bytes are not in the file"] = None
            return None
        if high > place.end - place.start:
            problem = (
                f"storage {storage.key}: a tensor spans bytes {low} to {high} of it, "
                f"{place.end - place.start} bytes are in the file"
            )
            self.problems[problem] = None
            return None
        return Place(start=place.start + low, end=place.start + high)


def _short(*foreign: object) -> str:
    """Foreign objects in a few words, whatever they hold."""
    return ", ".join(map(reprlib.repr, foreign[:_MAX_DIMENSIONS]))


def _is_row_major(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    for axis, (size, step) in enumerate(zip(shape, stride, strict=True)):
        if size != 1 and step != math.prod(shape[axis + 1 :]):
            return False
    return True


def _first(data: Any, *rest: Any) -> Any:
    return data


def _of_type(function: Any, kind: Any, args: Any, state: Any) -> Any:
    # Whatever a pickle can hold that is callable is inert: a stub's class, one of our functions, an
    # allowed type.
    if callable(function):
        return function(*args)
    return None
