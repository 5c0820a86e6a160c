"""Turns the `.metadata` pickle of torch DCP into tensors with their chunks, and other slices.

This module never opens a file and never believes a path, an offset or a shape that it has not
checked.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from spiketriage.errors import CorruptFileError
from spiketriage.nouns.checkpoint import Chunk, TensorFacts
from spiketriage.readers import inert, pickles
from spiketriage.readers.checkpoints.building import tiling
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.building.optimizer_names import owner
from spiketriage.readers.checkpoints.files.torch_dtypes import dtype_of
from spiketriage.readers.inert import Stub
from spiketriage.readers.json_file import is_inside
from spiketriage.readers.limited import limited

MAX_POSITION = 1 << 62
MAX_PROBLEMS = 100
_MAX_DIMENSIONS = 64  # as in torch and numpy
_SHOWN_BITS = 200
# What a pickle can do harm with.
_HARMFUL = frozenset(
    (
        "builtins.eval",
        "builtins.exec",
        "builtins.compile",
        "builtins.open",
        "builtins.__import__",
        "builtins.breakpoint",
    )
)
_HARMFUL_MODULES = frozenset(
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
    """One object that is no tensor: the bytes `start` to `end` of a file, a torch.save archive."""

    key: str
    path: str
    start: int
    end: int


@dataclass(slots=True, kw_only=True)
class Metadata:
    """What `.metadata` says; `tensors` have one zip chunk for each slice.

    `states` gives the state (`exp_avg`, `step` …) that an optimizer's key holds. `transformed` are
    keys whose bytes went through an extension (compression) and cannot be read.
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
        if type(path) is str and path in self.files:
            return self.files[path]
        if not is_inside(path):
            raise _WrongError(
                f"is said to lie in {_shown(path)}, which is not inside the checkpoint"
            )
        return self.files.setdefault(str(path), f"{self.under}{path}")


@limited
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
    loaded = pickles.load_here(data, where=where)
    state = loaded.value.state if _is(loaded.value, "Metadata") else None
    described = state.get("state_dict_metadata") if isinstance(state, dict) else None
    if not isinstance(state, dict) or not isinstance(described, dict):
        raise CorruptFileError(
            where, "content", expected="the Metadata of torch DCP", seen=_shown(loaded.value)
        )
    reader = _Reader(where=where, under=under)
    reader.metadata.globals = loaded.globals
    reader.metadata.version = inert.plain_text(state.get("version") or "")[:40]
    harmful = list(filter(_is_harmful, loaded.globals))
    if harmful:
        reader.wrong(
            f"asks for {some(harmful)}, which metadata has no use for: it must not be "
            "loaded by torch"
        )
    if loaded.end != len(data):
        reader.wrong(
            f"{len(data) - loaded.end} bytes follow its pickle, which torch would not notice"
        )
    places = _places(reader, state.get("storage_data"))
    named = {key: value for key, value in described.items() if _is_text(key)}
    if len(named) < len(described):
        num_odd = len(described) - len(named)
        reader.wrong(f"{num_odd} keys are no text, and what they name is left out")
    _take(reader, named, places)
    if reader.num_more:
        reader.metadata.problems.append(f"{where}: and {reader.num_more} problems more")
    return reader.metadata


def _is_harmful(name: str) -> bool:
    return name in _HARMFUL or name.partition(".")[0] in _HARMFUL_MODULES


def _is(value: object, name: str) -> TypeGuard[Stub]:
    """Whether a value is an object of the class `name` of torch DCP."""
    if not isinstance(value, Stub):
        return False
    qualified = value.qualified
    return qualified.startswith(_PACKAGE) and qualified.rpartition(".")[2] == name


def _places(reader: _Reader, storage: object) -> dict[Any, Mapping[str, Any]]:
    """What is said of the place of each (key, offset), checked.

    A broken entry is a problem and left out.
    """
    places: dict[Any, Mapping[str, Any]] = {}
    if not isinstance(storage, dict):
        reader.wrong("storage_data is no mapping: it does not say where anything lies")
        return places
    for index, info in storage.items():
        try:
            key, offset, place = index.state["fqn"], index.state.get("offset"), info.state
            # Checked before it is hashed: it could be nested deeply.
            if not _is_text(key) or (offset is not None and not _are_counts(offset)):
                raise _WrongError("has no name or no offset")
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
            places[key, offset] = place
        except _WrongError as error:
            reader.wrong(f"{_named(index)} {error}")
        except (AttributeError, KeyError, TypeError, RecursionError):
            reader.wrong(f"storage_data has an entry that is no place of a slice ({_named(index)})")
    return places


def _named(index: object) -> str:
    fqn, offset = inert.attribute(index, "fqn"), inert.attribute(index, "offset")
    text = str(fqn)[:_SHOWN_BITS] if _is_text(fqn) else "an entry"
    if offset and _are_counts(offset):
        return f"{text} at {list(offset)}"
    return text


def _take(
    reader: _Reader, described: Mapping[str, object], places: Mapping[Any, Mapping[str, Any]]
) -> None:
    """Take every object and every tensor that is described, at the place of each."""
    tensors = {}
    for key, value in described.items():
        if _is(value, "BytesStorageMetadata"):
            _take_object(reader, key, places)
        else:
            tensors[key] = value
    owners = {key: owner(key, ()) for key in tensors}
    parameters = {key for key, guess in owners.items() if guess.role == "parameter"}
    for key, value in tensors.items():
        own = owners[key]
        if own.role == "optimizer":
            own = owner(key, parameters)
        if own.state:
            reader.metadata.states[key] = own.state
        try:
            dtype, shape, chunks = _tensor(reader, key, value, places)
        except _WrongError as error:
            reader.wrong(f"{key} {error}")
            continue
        except (AttributeError, LookupError, TypeError, RecursionError):
            reader.wrong(f"{key} is described in no known way")
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


def _take_object(reader: _Reader, key: str, places: Mapping[Any, Mapping[str, Any]]) -> None:
    place = places.get((key, None))
    if place is None:
        reader.wrong(f"{key} is promised, but not said where it lies")
        return
    start = place["offset"]
    path = reader.file(place["relative_path"])
    reader.metadata.objects.append(
        Slice(key=key, path=path, start=start, end=start + place["length"])
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
