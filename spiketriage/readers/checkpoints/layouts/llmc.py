"""Reads llm.c checkpoints: `model_N.bin`, a state file for each rank, and the marker `DONE_N`.

This module never reads a parameter's bytes: the headers and the sizes of the files are enough.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spiketriage.digests import of_bytes
from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.nouns.checkpoint import (
    CheckpointFacts,
    Chunk,
    FieldFacts,
    StatedStep,
    TensorFacts,
    TensorRole,
)
from spiketriage.nouns.file import StoredFile
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder
from spiketriage.readers.look import Look, look, refuse_pointer

NAME = "llmc"
TELLS = (
    "Step, world size, every parameter with its place, and by rank optimizer moments, random "
    "state and data position."
)
CANNOT = (
    "A changed byte (there is no checksum), and the parameters behind the moments of a sharded "
    "optimizer."
)

MODEL_MAGIC, STATE_MAGIC = 20240326, 20240527
_MODEL = re.compile(r"model_(?P<step>\d{8,10})\.bin")
_STATE = re.compile(r"state_(?P<step>\d{8,10})_(?P<rank>\d{5,7})\.bin")
_HEADER = struct.Struct("<256i")
_DTYPES = {3: ("F32", 4), 5: ("BF16", 2)}
_SHARD = "shard"  # what a rank keeps of a sharded optimizer, all parameters in one run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sized:
    """A tensor by name and shape, in the order of the file."""

    name: str
    shape: tuple[int, ...]


def claims(seen: Look, /) -> float:
    """How sure this reader is of a path."""
    if seen.is_folder:
        if any(map(_MODEL.fullmatch, seen.names)) and any(map(_STATE.fullmatch, seen.names)):
            return 0.95
        return 0.0
    if len(seen.head) >= _HEADER.size:
        magic = int.from_bytes(seen.head[:4], "little")
    else:
        magic = 0
    if magic == MODEL_MAGIC:
        if _MODEL.fullmatch(seen.path.name):
            return 0.97
        return 0.9
    if _MODEL.fullmatch(seen.path.name):
        return 0.3
    return 0.0


def read(path: Path, /) -> CheckpointFacts:
    """The checkpoint whose `model_N.bin` is at `path`, or the latest one in the folder at `path`.

    Raises:
        EvidenceError: there is none, or its model file cannot be read.
    """
    is_folder = path.is_dir()
    folder = path if is_folder else path.parent
    names = look(folder).names
    models = [name for name in names if _MODEL.fullmatch(name)]
    model = path.name
    if is_folder:
        if not models:
            raise EvidenceError(f"{path}: there is no model_N.bin")
        model = models[-1]
    builder = CheckpointBuilder(path=folder, names=names)
    if is_folder and len(models) > 1:
        builder.notes.append(
            f"the folder holds {len(models)} checkpoints: this is {model}; name another's file"
        )
    sized = _add_model(builder, folder / model, model)
    step = _step(_MODEL, model)
    if step is not None:
        builder.steps.append(StatedStep(source=f"name {model}", step=step))
    states = [] if step is None else [name for name in names if _step(_STATE, name) == step]
    _add_states(builder, states, sized)
    done = f"DONE_{step or 0:08d}"
    is_done = step is not None and done in names
    if not is_done:
        builder.lacks(f"{done} is missing: the save was not finished")
    if len(states) != builder.world_size:
        expected = "as many as each says" if builder.world_size is None else builder.world_size
        builder.lacks(f"expected {expected} state files, found {len(states)}")
    files = [model, *states, done] if is_done else [model, *states]
    builder.files = tuple(StoredFile(path=name, size_bytes=_size(folder / name)) for name in files)
    builder.complete = is_done and not builder.problems
    builder.notes.append(
        "llm.c writes no checksum: a flipped bit cannot be told from the files alone"
    )
    return builder.finish(NAME, name=model)


def _step(pattern: re.Pattern[str], name: str) -> int | None:
    named = pattern.fullmatch(name)
    return int(named["step"]) if named else None


def _add_states(
    builder: CheckpointBuilder, names: Iterable[str], sized: tuple[_Sized, ...]
) -> None:
    """Take the state file of each rank, and the world size if they agree on it."""
    world_sizes = set()
    for name in names:
        num_ranks = _add_state(builder, builder.path / name, name, sized)
        if num_ranks is not None:
            world_sizes.add(num_ranks)
    if len(world_sizes) == 1:
        builder.world_size = world_sizes.pop()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _header(path: Path, magic: int) -> tuple[bytes, tuple[int, ...]]:
    seen = look(path)
    refuse_pointer(path, seen.head)
    if seen.is_folder or len(seen.head) < _HEADER.size:
        raise CorruptFileError(
            path, "header", expected=f"{_HEADER.size} bytes", seen=f"{len(seen.head)} bytes"
        )
    data = seen.head[: _HEADER.size]
    header = _HEADER.unpack(data)
    if header[0] != magic:
        raise CorruptFileError(path, "magic number", expected=magic, seen=header[0])
    return data, header


def _add_model(builder: CheckpointBuilder, path: Path, name: str) -> tuple[_Sized, ...]:
    """Take the parameters of the model file; what it should hold follows from its header."""
    _, header = _header(path, MODEL_MAGIC)
    version, length, vocab, layers, _, channels, padded = header[1:8]
    if version not in _DTYPES:
        raise CorruptFileError(
            path, "version", expected="3 (float32) or 5 (bfloat16)", seen=version
        )
    if min(length, vocab, layers, channels, padded) < 1:
        raise CorruptFileError(path, "header", expected="positive sizes", seen=header[2:8])
    dtype, item_bytes = _DTYPES[version]
    sized = _parameters(length, layers, channels, padded)
    size_bytes = _size(path)
    at = _add_run(builder, sized, name, _HEADER.size, size_bytes, (dtype, item_bytes), "parameter")
    if at != size_bytes:
        builder.problems.append(f"{path}: size: expected {at} bytes, found {size_bytes}")
    return sized


def _parameters(length: int, layers: int, channels: int, padded: int) -> tuple[_Sized, ...]:
    """The tensors of GPT-2 as llm.c lays them out, each one for all layers."""
    c, n = channels, layers
    shapes: dict[str, tuple[int, ...]] = {
        "wte": (padded, c),
        "wpe": (length, c),
        "ln1w": (n, c),
        "ln1b": (n, c),
        "qkvw": (n, 3 * c, c),
        "qkvb": (n, 3 * c),
        "attprojw": (n, c, c),
        "attprojb": (n, c),
        "ln2w": (n, c),
        "ln2b": (n, c),
        "fcw": (n, 4 * c, c),
        "fcb": (n, 4 * c),
        "fcprojw": (n, c, 4 * c),
        "fcprojb": (n, c),
        "lnfw": (c,),
        "lnfb": (c,),
    }
    return tuple(_Sized(name=name, shape=shape) for name, shape in shapes.items())


def _add_run(
    builder: CheckpointBuilder,
    sized: tuple[_Sized, ...],
    file: str,
    at: int,
    size_bytes: int,
    item: tuple[str, int],
    role: TensorRole,
    prefix: str = "",
) -> int:
    """Take tensors that lie one after another from byte `at` on; returns where they end.

    Those beyond the file's end have no place.
    """
    dtype, item_bytes = item
    for tensor in sized:
        end = at + math.prod(tensor.shape) * item_bytes
        origin = (0,) * len(tensor.shape)
        chunk = Chunk(path=file, start=at, end=end, offset=origin, shape=tensor.shape)
        owner = ""
        if role == "optimizer" and tensor.name != _SHARD:
            owner = tensor.name
        builder.tensors.append(
            TensorFacts(
                name=prefix + tensor.name,
                dtype=dtype,
                shape=tensor.shape,
                role=role,
                chunks=(chunk,) if end <= size_bytes else (),
                parameter=owner,
            )
        )
        at = end
    return at


def _add_state(
    builder: CheckpointBuilder, path: Path, name: str, sized: tuple[_Sized, ...]
) -> int | None:
    """Take one rank's state file; returns the number of processes that it states."""
    try:
        data, header = _header(path, STATE_MAGIC)
        size_bytes = _size(path)
    except EvidenceError as error:
        builder.problems.append(error.message)
        return None
    num_ranks, rank, has_masters, is_shuffled = header[2:6]
    step = header[10]
    named = _STATE.fullmatch(name)
    if named is not None and rank != int(named["rank"]):
        builder.problems.append(
            f"{path}: rank: expected {int(named['rank'])} as in its name, found {rank}"
        )
    if step < 0 or num_ranks < 1:
        builder.problems.append(
            f"{path}: header: expected a step and ranks, found {step} and {num_ranks}"
        )
        return None
    builder.steps.append(StatedStep(source=f"{name}: header", step=step))
    _add_fields(builder, data, name, rank)
    states = ("m", "v", "master") if has_masters else ("m", "v")
    whole = sum(math.prod(tensor.shape) for tensor in sized)
    room = (size_bytes - _HEADER.size) // (4 * len(states))
    if room < whole:
        sized = (_Sized(name=_SHARD, shape=(whole // num_ranks,)),)
        builder.notes.append(f"{name}: the optimizer is sharded: its tensors have no names")
    of_rank = "" if num_ranks == 1 else f"{rank:05d}."
    at = _HEADER.size
    for state in states:
        prefix = f"{state}.{of_rank}"
        at = _add_run(builder, sized, name, at, size_bytes, ("F32", 4), "optimizer", prefix)
    if at > size_bytes or (at < size_bytes and not is_shuffled):
        builder.problems.append(f"{path}: size: expected {at} bytes, found {size_bytes}")
    return num_ranks


def _add_fields(builder: CheckpointBuilder, data: bytes, name: str, rank: int) -> None:
    """Take a rank's random state and its position in the data, from fixed places in the header."""
    random, cursor = data[80:96], data[120:136]
    shard, sample = struct.unpack("<2Q", cursor)
    values = {"shard": str(shard), "sample": str(sample)}
    builder.fields.append(
        FieldFacts(kind="rng", name="rng_state", rank=rank, path=name, digest=of_bytes(random))
    )
    builder.fields.append(
        FieldFacts(
            kind="cursor", name="data", rank=rank, path=name, digest=of_bytes(cursor), values=values
        )
    )
