"""Writes a `.metadata` pickle opcode by opcode, so that a test can put anything into it without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PACKAGE = "torch.distributed.checkpoint.metadata"
STORAGE = "torch.distributed.checkpoint.filesystem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An object of a class by name; `state` is its dict or tuple, `args` make it a call instead."""

    name: str
    state: Any = None
    args: tuple[Any, ...] | None = None


def size(*numbers: Any) -> Made:
    """A torch.Size."""
    return Made(name="torch.Size", args=(tuple(numbers),))


def chunk(offsets: Made, sizes: Made) -> Made:
    """A ChunkStorageMetadata."""
    return Made(name=f"{PACKAGE}.ChunkStorageMetadata", state={"offsets": offsets, "sizes": sizes})


def tensor(shape: Made, chunks: list[Made], dtype: str = "torch.float32") -> Made:
    """A TensorStorageMetadata."""
    properties = Made(
        name=f"{PACKAGE}.TensorProperties", state=(Made(name=dtype), None, False, None, False)
    )
    return Made(
        name=f"{PACKAGE}.TensorStorageMetadata",
        state={"properties": properties, "size": shape, "chunks": chunks},
    )


def index(fqn: Any, offset: Any = None) -> Made:
    """A MetadataIndex."""
    return Made(
        name=f"{PACKAGE}.MetadataIndex", state={"fqn": fqn, "offset": offset, "index": None}
    )


def place(path: Any, offset: Any, length: Any, **more: Any) -> Made:
    """A _StorageInfo."""
    state = {"relative_path": path, "offset": offset, "length": length, **more}
    return Made(name=f"{STORAGE}._StorageInfo", state=state)


def metadata(held: Any, storage: Any, **more: Any) -> bytes:
    """The pickle of a Metadata; `storage` may be pairs, since the keys cannot be hashed here."""
    state = {
        "state_dict_metadata": held,
        "planner_data": {},
        "storage_data": storage,
        "version": "1.0.0",
        **more,
    }
    return dumps(Made(name=f"{PACKAGE}.Metadata", state=state))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """A dict, from pairs."""

    pairs: tuple[tuple[Any, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opcodes:
    """A value by its own opcodes."""

    raw: bytes


def dumps(value: Any) -> bytes:
    """The pickle of `value`."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: Any) -> bytes:
    if isinstance(value, Made):
        module, _, name = value.name.rpartition(".")
        named = b"c" + f"{module}\n{name}\n".encode()
        if value.args is not None:
            return named + _opcodes(value.args) + b"R"
        return named if value.state is None else named + b")\x81" + _opcodes(value.state) + b"b"
    if isinstance(value, Opcodes):
        return value.raw
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return f"I{value}\n".encode()
    if isinstance(value, float):
        return f"F{value!r}\n".encode()
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        return b"X" + len(data).to_bytes(4, "little") + data
    if isinstance(value, (tuple, list)):
        items = b"".join(map(_opcodes, value))
        return b"(" + items + b"t" if isinstance(value, tuple) else b"](" + items + b"e"
    pairs = value.pairs if isinstance(value, Pairs) else tuple(value.items())
    return b"}(" + b"".join(_opcodes(part) for pair in pairs for part in pair) + b"u"
