"""State that is no tensor, as facts: its digest, its scalars, and the small tensors inside it.

This module never reads a tensor larger than `SMALL_BYTES`.

    Contents(path)             the small tensors of one torch.save file
    digest(value, contents)    hex XXH3-128 of a canonical encoding of any unpickled value
    scalars(value, contents)   its scalars by dotted name, at most `MAX_VALUES`
    field(kind, name, value)   all of this as `FieldFacts`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from spiketriage.digests import open_regular
from spiketriage.nouns.checkpoint import FieldFacts, FieldKind
from spiketriage.readers.checkpoints.files.torch_values import TensorRef
from spiketriage.readers.inert import MAX_NODES, Stub, walk

SMALL_BYTES = 1 << 20
MAX_VALUES = 500
MAX_TEXT = 200
MAX_DIGESTED_BYTES = 1 << 30
_LONG = 1000
_MAX_ARGUMENTS = 8  # calls within calls
_NUMBERS = {
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "u1",
    "BOOL": "?",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The bytes behind small tensors of the torch.save file at `path`."""

    path: Path

    def bytes_of(self, tensor: TensorRef) -> bytes | None:
        """The elements of a small tensor; None where they are lost, many or not row-major."""
        if tensor.start is None or tensor.end is None or not tensor.contiguous:
            return None
        if tensor.end - tensor.start > SMALL_BYTES:
            return None
        try:
            with open_regular(self.path) as stream:
                stream.seek(tensor.start)
                data = stream.read(tensor.end - tensor.start)
        except OSError:
            return None  # the scan of the tensors, which reads all of them, says so
        if len(data) == tensor.end - tensor.start:
            return data
        return None

    def scalar(self, value: object) -> int | float | bool | None:
        """The number that `value` is or, for a tensor of one element, holds."""
        if isinstance(value, (int, float)):
            return value
        if not isinstance(value, TensorRef):
            return None
        if value.dtype not in _NUMBERS or value.shape not in ((), (1,)):
            return None
        data = self.bytes_of(value)
        if not data:
            return None
        number: int | float | bool = np.frombuffer(data, dtype=_NUMBERS[value.dtype])[0].item()
        return number


@dataclass(slots=True)
class _Budget:
    """What a digest may still take, however often the value holds the same thing."""

    num_leaves: int = MAX_NODES
    num_bytes: int = MAX_DIGESTED_BYTES


def digest(value: Any, contents: Contents | None = None) -> str:
    """Hex XXH3-128 of every leaf with its path and type, in stored order.

    A large tensor counts by dtype and shape. What lies beyond `MAX_NODES` leaves or
    `MAX_DIGESTED_BYTES` does not count; a long list of integers is one leaf.
    """
    return _digest(value, contents, 0, _Budget())


def _digest(value: Any, contents: Contents | None, depth: int, budget: _Budget) -> str:
    state = xxhash.xxh3_128()
    for leaf in walk(value, whole=_is_run):
        if budget.num_leaves <= 0 or budget.num_bytes <= 0:
            state.update(b"...")
            break
        encoded = _canonical(leaf.value, contents, depth, budget)
        budget.num_leaves -= 1
        budget.num_bytes -= len(encoded)
        state.update("\0".join((*leaf.path, "")).encode("utf-8", "surrogatepass"))
        state.update(encoded)
        state.update(b"\n")
    return state.hexdigest()


def scalars(value: Any, contents: Contents | None = None) -> dict[str, str]:
    """The scalars below `value` by dotted name, tensors of one element among them."""
    texts: dict[str, str] = {}
    for leaf in walk(value):
        text = scalar_text(leaf.value, contents)
        if text is None:
            continue
        texts[".".join(leaf.path) or "value"] = text
        if len(texts) == MAX_VALUES:
            break
    return texts


def scalar_text(value: object, contents: Contents | None = None) -> str | None:
    """A scalar as text, an enumeration's member by its value; None for everything else."""
    if isinstance(value, TensorRef):
        value = contents.scalar(value) if contents is not None else None
    if isinstance(value, Stub) and value.state is None and len(value.args) == 1:
        value = value.args[0]
    if isinstance(value, int) and not -(1 << 64) < value < 1 << 64:
        return None  # the random state of a generator, say
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()[:MAX_TEXT]
    if isinstance(value, (int, float)):
        return str(value)
    return None


def field(
    kind: FieldKind,
    name: str,
    value: Any,
    *,
    rank: int | None,
    path: str,
    contents: Contents | None = None,
) -> FieldFacts:
    """`value`, from the file `path` of the checkpoint, as a piece of state."""
    values: Mapping[str, str] = {}
    if kind != "rng":  # whose 624 numbers tell nobody anything
        values = scalars(value, contents)
    return FieldFacts(
        kind=kind, name=name, rank=rank, path=path, digest=digest(value, contents), values=values
    )


def _is_run(value: Any) -> bool:
    """Whether `value` is a long list of integers, such as a sampler's permutation: one thing."""
    if not isinstance(value, (list, tuple)) or len(value) <= _LONG:
        return False
    return set(map(type, value)) == {int}


def _canonical(value: Any, contents: Contents | None, depth: int, budget: _Budget) -> bytes:
    """One leaf in bytes, so that equal values have equal bytes, in every process."""
    kind = type(value).__name__.encode()
    if depth > _MAX_ARGUMENTS or budget.num_leaves <= 0:
        return b"..."
    if isinstance(value, TensorRef):
        data = contents.bytes_of(value) if contents is not None else None
        return b"tensor " + f"{value.dtype} {list(value.shape)} ".encode() + (data or b"")
    if isinstance(value, bytes):
        return b"bytes " + value
    if isinstance(value, str):
        return b"str " + value.encode("utf-8", "surrogatepass")
    if isinstance(value, int):
        return kind + b" " + hex(value).encode()
    if isinstance(value, (float, complex)) or value is None or value is ...:
        return kind + b" " + repr(value).encode()
    if _is_run(value):
        try:
            return kind + b" " + np.array(value, dtype="<i8").tobytes()
        except OverflowError:
            return kind + b" " + " ".join(map(hex, value)).encode()
    if isinstance(value, (set, frozenset)):
        budget.num_leaves -= len(value)
        items = sorted(_canonical(item, contents, depth + 1, budget) for item in value)
        return kind + b" " + b"\0".join(items)
    if isinstance(value, Stub):
        name = value.qualified.encode("utf-8", "surrogatepass")
        return name + b"(" + _digest(value.args, contents, depth + 1, budget).encode() + b")"
    if isinstance(value, type) and issubclass(value, Stub):
        return value.qualified.encode("utf-8", "surrogatepass")
    return kind
