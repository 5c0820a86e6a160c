"""Turns the `.metadata` pickle of torch DCP into tensors with their chunks, and slices that hold other objects.

This module never opens a file and never believes a path, an offset or a shape that it has not
checked.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from spiketriage.errors import CorruptFileError
from spiketriage.nouns.checkpoint import Chunk, TensorFacts
from spiketriage.readers import pickles
from spiketriage.readers.checkpoints.building import tiling
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.building.optimizer_names import owner
from spiketriage.readers.checkpoints.files.torch_dtypes import dtype_of
from spiketriage.readers.json_file import is_inside
from spiketriage.readers.pickles import Stub

MAX_POSITION = 1 << 62
MAX_PROBLEMS = 100
_MAX_DIMENSIONS = 64  # as in torch and numpy
_SHOWN_BITS = 200
# What a pickle can do harm with.
_ABLE = frozenset(
    f"builtins.{name}" for name in ("eval", "exec", "compile", "open", "__import__", "breakpoint")
)
_ABLE_MODULES = frozenset(
    (
        "os",
        "posix",
        "nt",
        "subprocess",
        "sys",
        "shutil",
        "socket",
        "runpy",
        "pty",
        "importlib",
        "ctypes",
        "webbrowser",
    )
)
_PACKAGE = "torch.distributed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The bytes `start` to `end` of the file at `path`.

    One object that is no tensor, a torch.save archive.
    """

    key: str
    path: str
    start: int
    end: int


@dataclass(slots=True, kw_only=True)
class Metadata:
    """What `.metadata` says. `tensors` have one zip chunk per slice.

    `states` is key to optimizer state name.

    `transformed` are keys whose bytes went through an extension (compression) and cannot be read.
    """

    tensors: list[TensorFacts] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    objects: list[Slice] = field(default_factory=list)
    transformed: set[str] = field(default_factory=set)
    globals: tuple[str, ...] = ()
    version: str = ""
    problems: list[str] = field(default_factory=list)

    def slices(self) -> Iterator[Slice | Chunk]:
        """Everything that lies in a file."""
        yield from self.objects
        for tensor in self.tensors:
            yield from tensor.chunks


class _WrongError(Exception):
    """One entry of the metadata is not what it should be."""


@dataclass(slots=True, kw_only=True)
class _Reader:
    where: object
    under: str
    metadata: Metadata = field(default_factory=Metadata)
    files: dict[str, str] = field(default_factory=dict)
    num_more: int = 0

    def wrong(self, what: str) -> None:
        """Keep a problem."""
        if len(self.metadata.problems) < MAX_PROBLEMS:
            self.metadata.problems.append(f"{self.where}: {what}")
        else:
            self.num_more += 1

    def file(self, path: object) -> str:
        """The path in the checkpoint; one string for all slices of a file."""
        if type(path) is str:
            known = self.files.get(path)
        else:
            known = None
        if known is None:
            if not is_inside(path):
                raise _WrongError(
                    f"is said to lie in {_shown(path)}, which is not inside the checkpoint"
                )
            self.files[str(path)] = known = f"{self.under}{path}"
        return known


def parse(data: bytes, *, where: object, under: str = "") -> Metadata:
    """The metadata in `data`, which came from `where`.

    `under` is put before the path of every file.

    Raises:
        CorruptFileError: it is no intact pickle of a DCP `Metadata`.
    """
    with _collector_off():  # it would visit two million living objects again and again
        return _parse(data, where, under)


@contextmanager
def _collector_off() -> Iterator[None]:
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _parse(data: bytes, where: object, under: str) -> Metadata:
    loaded = pickles.load(data, where=where)
    state = loaded.value.state if isinstance(loaded.value, Stub) else None
    held = state.get("state_dict_metadata") if isinstance(state, dict) else None
    if (
        not isinstance(state, dict)
        or not isinstance(held, dict)
        or not _is(loaded.value, "Metadata")
    ):
        raise CorruptFileError(
            where, "content", expected="the Metadata of torch DCP", seen=_shown(loaded.value)
        )
    reader = _Reader(where=where, under=under)
    reader.metadata.globals = loaded.globals
    reader.metadata.version = str(state.get("version") or "")[:40]
    wanting = [
        name for name in loaded.globals if name in _ABLE or name.partition(".")[0] in _ABLE_MODULES
    ]
    if wanting:
        reader.wrong(
            f"asks for {some(wanting)}, which metadata has no use for: it must not be "
            "loaded by torch"
        )
    if loaded.end != len(data):
        reader.wrong(
            f"{len(data) - loaded.end} bytes follow its pickle, which torch would not notice"
        )
    places = _places(reader, state.get("storage_data"))
    named = {key: value for key, value in held.items() if _is_text(key)}
    if len(named) < len(held):
        reader.wrong(f"{len(held) - len(named)} keys are no text, and what they name is left out")
    _take(reader, named, places)
    if reader.num_more:
        reader.metadata.problems.append(f"{where}: and {reader.num_more} problems more")
    return reader.metadata


def _is(value: object, name: str) -> bool:
    if isinstance(value, Stub):
        qualified = value.qualified
    else:
        qualified = ""
    return qualified.startswith(_PACKAGE) and qualified.rpartition(".")[2] == name


def _places(reader: _Reader, storage: object) -> dict[Any, Mapping[str, Any]]:
    """What is said of the place of each (key, offset), checked.

    A broken entry is a problem and left out.
    """
    found: dict[Any, Mapping[str, Any]] = {}
    if not isinstance(storage, dict):
        reader.wrong("storage_data is no mapping: it does not say where anything lies")
        return found
    for index, info in storage.items():
        try:
            key, offset, place = index.state["fqn"], index.state.get("offset"), info.state
            if not _is_text(key) or (offset is not None and not _are_counts(offset)):
                raise _WrongError(
                    "has no name or no offset"
                )  # and must not be hashed: it could be nested deeply
            start, length = place["offset"], place["length"]
            if (
                type(start) is not int
                or type(length) is not int
                or not 0 <= start <= start + length < MAX_POSITION
            ):
                raise _WrongError(
                    f"is said to lie at byte {_shown(start)}, {_shown(length)} bytes long"
                )
            reader.file(place["relative_path"])
            if place.get("transform_descriptors"):
                reader.metadata.transformed.add(key)
            found[key, offset] = place
        except _WrongError as error:
            reader.wrong(f"{_named(index)} {error}")
        except (AttributeError, KeyError, TypeError, RecursionError):
            reader.wrong(f"storage_data has an entry that is no place of a slice ({_named(index)})")
    return found


def _named(index: object) -> str:
    fqn, offset = pickles.attribute(index, "fqn"), pickles.attribute(index, "offset")
    if _is_text(fqn):
        text = str(fqn)[:_SHOWN_BITS]
    else:
        text = "an entry"
    if offset and _are_counts(offset):
        return f"{text} at {list(offset)}"
    return text


def _take(
    reader: _Reader, held: Mapping[str, object], places: Mapping[Any, Mapping[str, Any]]
) -> None:
    owners = {key: owner(key, ()) for key in held}
    parameters = {key for key, one in owners.items() if one.role == "parameter"}
    for key, value in held.items():
        if _is(value, "BytesStorageMetadata"):
            place = places.get((key, None))
            if place is None:
                reader.wrong(f"{key} is promised, but not said where it lies")
            else:
                reader.metadata.objects.append(
                    Slice(
                        key=key,
                        path=reader.file(place["relative_path"]),
                        start=place["offset"],
                        end=place["offset"] + place["length"],
                    )
                )
            continue
        try:
            if owners[key].role == "optimizer":
                own = owner(key, parameters)
            else:
                own = owners[key]
            if own.state:
                reader.metadata.states[key] = own.state
            dtype, shape, chunks = _tensor(reader, key, value, places)
        except (_WrongError, AttributeError, LookupError, TypeError, RecursionError) as error:
            reader.wrong(
                f"{key} "
                f"{error if isinstance(error, _WrongError) else 'is described in no known way'}"
            )
            continue
        reader.metadata.tensors.append(
            TensorFacts(
                name=key,
                dtype=dtype,
                shape=shape,
                role=own.role,
                parameter=own.parameter,
                chunks=chunks,
            )
        )


def _tensor(
    reader: _Reader, key: str, value: Any, places: Mapping[Any, Mapping[str, Any]]
) -> tuple[str, tuple[int, ...], tuple[Chunk, ...]]:
    state = value.state
    shape = state["size"]
    named = state["properties"].state[0]
    dtype = dtype_of(named) or str(getattr(named, "qualified", "?")).rpartition(".")[2].upper()
    parts = [part.state for part in state["chunks"]]
    offsets, sizes = [part["offsets"] for part in parts], [part["sizes"] for part in parts]
    _check_numbers((shape, *offsets, *sizes))
    flaw = tiling.flaw(shape, offsets, sizes)
    if flaw:
        reader.wrong(f"{key}: the chunks do not cover its shape {list(shape)} exactly: {flaw}")
    chunks: list[Chunk] = []
    lost: list[str] = []
    for offset, size in zip(offsets, sizes, strict=True):
        place = places.get((key, offset))
        if place is not None:
            start = place["offset"]
            chunks.append(
                Chunk(
                    path=reader.files[place["relative_path"]],
                    start=start,
                    end=start + place["length"],
                    offset=offset,
                    shape=size,
                    container="zip",
                )
            )
        elif 0 not in size:
            lost.append(str(list(offset)))
    if lost:
        reader.wrong(f"{key}: it is not said where the chunks at {some(lost)} lie")
    return dtype, shape, tuple(chunks)


def _check_numbers(groups: tuple[object, ...]) -> None:
    for group in groups:
        if not _are_counts(group):
            raise _WrongError(f"has the shape or offset {_shown(group)}, expected counts")


def _is_text(value: object) -> bool:
    if type(value) is not str:
        return False
    try:
        return value.isascii() or value.encode() != b""
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _are_counts(group: object) -> bool:
    if type(group) is not tuple or len(group) > _MAX_DIMENSIONS:
        return False
    # Three calls a chunk: a generator would cost a second for the largest runs.
    return not group or (
        set(map(type, group)) == {int} and min(group) >= 0 and max(group) < MAX_POSITION
    )


def _shown(value: object) -> str:
    if type(value) is int:
        if value.bit_length() < _SHOWN_BITS:
            return str(value)
        return "a number of thousands of digits"
    if isinstance(value, str):
        return repr(value[:_SHOWN_BITS])
    return f"a {type(value).__name__}"
