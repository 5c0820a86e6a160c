"""Reads llm.c checkpoints.

`model_N.bin`, `state_N_RRRRR.bin` for each rank, and the marker `DONE_N`.

This module never reads a parameter's bytes: the headers and the sizes of the files are enough.
"""

from __future__ import annotations

import math
import re
import struct
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
from spiketriage.readers.checkpoints.building.state_tree import Gathered
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
_MAX_SIZE = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sized:
    """A tensor by name and shape, in the order of the file."""

    name: str
    shape: tuple[int, ...]


def claims(look: Look, /) -> float:
    """How sure this reader is of a path."""
    if look.is_folder:
        if any(map(_MODEL.fullmatch, look.names)) and any(map(_STATE.fullmatch, look.names)):
            return 0.95
        return 0.0
    if len(look.head) >= _HEADER.size:
        magic = int.from_bytes(look.head[:4], "little")
    else:
        magic = 0
    if magic == MODEL_MAGIC:
        if _MODEL.fullmatch(look.path.name):
            return 0.97
        return 0.9
    if _MODEL.fullmatch(look.path.name):
        return 0.3
    return 0.0


def read(path: Path, /) -> CheckpointFacts:
    """The checkpoint whose `model_N.bin` is at `path`, or the latest one in the folder at `path`.

    Raises:
        EvidenceError: there is none, or its model file cannot be read.
    """
    folder = path if path.is_dir() else path.parent
    names = look(folder).names
    models = [name for name in names if _MODEL.fullmatch(name)]
    chosen = models[-1] if path.is_dir() and models else path.name
    found = _MODEL.fullmatch(chosen)
    if path.is_dir() and found is None:
        raise EvidenceError(f"{path}: there is no model_N.bin")
    gathered = Gathered()
    if len(models) > 1 and path.is_dir():
        gathered.notes.append(
            f"the folder holds {len(models)} checkpoints: this is {chosen}; name another's file"
        )
    sized = _add_model(gathered, folder / chosen, chosen)
    step = int(found["step"]) if found else None
    states = [
        name for name in names if (state := _STATE.fullmatch(name)) and step == int(state["step"])
    ]
    world_sizes = {_add_state(gathered, folder / name, name, sized) for name in states} - {None}
    world_size = world_sizes.pop() if len(world_sizes) == 1 else None
    done = step is not None and f"DONE_{step:08d}" in names
    if not done:
        gathered.problems.append(
            f"{folder}: DONE_{step or 0:08d} is missing: the save was not finished"
        )
    if len(states) != world_size:
        expected = "as many as each says" if world_size is None else world_size
        gathered.problems.append(f"{folder}: expected {expected} state files, found {len(states)}")
    files = [chosen, *states, *([f"DONE_{step:08d}"] if done else [])]
    named = () if step is None else (StatedStep(source=f"name {chosen}", step=step),)
    return CheckpointFacts(
        layout=NAME,
        name=chosen,
        path=folder,
        stated_steps=(*named, *gathered.steps),
        complete=done and not gathered.problems,
        world_size=world_size,
        files=tuple(StoredFile(path=name, size_bytes=_size(folder / name)) for name in files),
        tensors=tuple(gathered.tensors),
        fields=tuple(gathered.fields),
        problems=tuple(gathered.problems),
        notes=(
            *gathered.notes,
            "llm.c writes no checksum: a flipped bit cannot be told from the files alone",
        ),
    )


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


def _add_model(gathered: Gathered, path: Path, name: str) -> tuple[_Sized, ...]:
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
    at = _add_run(gathered, sized, name, _HEADER.size, size_bytes, (dtype, item_bytes), "parameter")
    if at != size_bytes:
        gathered.problems.append(f"{path}: size: expected {at} bytes, found {size_bytes}")
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
    gathered: Gathered,
    sized: tuple[_Sized, ...],
    file: str,
    at: int,
    size_bytes: int,
    item: tuple[str, int],
    role: TensorRole,
    prefix: str = "",
) -> int:
    """Take tensors that lie one after another from byte `at` on.

    Those beyond the file's end have no place.
    """
    dtype, item_bytes = item
    for one in sized:
        end = at + math.prod(one.shape) * item_bytes
        chunk = Chunk(path=file, start=at, end=end, offset=(0,) * len(one.shape), shape=one.shape)
        if role == "optimizer" and not one.name.startswith("shard"):
            owner = one.name
        else:
            owner = ""
        gathered.tensors.append(
            TensorFacts(
                name=prefix + one.name,
                dtype=dtype,
                shape=one.shape,
                role=role,
                chunks=(chunk,) if end <= size_bytes else (),
                parameter=owner,
            )
        )
        at = end
    return at


def _add_state(gathered: Gathered, path: Path, name: str, sized: tuple[_Sized, ...]) -> int | None:
    """Take one rank's state file; returns the number of processes that it states."""
    try:
        data, header = _header(path, STATE_MAGIC)
        size_bytes = _size(path)
    except EvidenceError as error:
        gathered.problems.append(error.message)
        return None
    num_ranks, rank, masters, shuffled, step = (
        header[2],
        header[3],
        header[4],
        header[5],
        header[10],
    )
    found = _STATE.fullmatch(name)
    if found is not None and rank != int(found["rank"]):
        gathered.problems.append(
            f"{path}: rank: expected {int(found['rank'])} as in its name, found {rank}"
        )
    if step < 0 or num_ranks < 1:
        gathered.problems.append(
            f"{path}: header: expected a step and ranks, found {step} and {num_ranks}"
        )
        return None
    gathered.steps.append(StatedStep(source=f"{name}: header", step=step))
    _add_fields(gathered, data, name, rank)
    states = ("m", "v", "master") if masters else ("m", "v")
    whole = sum(math.prod(one.shape) for one in sized)
    room = (size_bytes - _HEADER.size) // (4 * len(states))
    layout = sized if room >= whole else (_Sized(name="shard", shape=(whole // num_ranks,)),)
    if layout is not sized:
        gathered.notes.append(f"{name}: the optimizer is sharded: its tensors have no names")
    at = _HEADER.size
    for state in states:
        suffix = "" if num_ranks == 1 else f"{rank:05d}."
        at = _add_run(
            gathered, layout, name, at, size_bytes, ("F32", 4), "optimizer", f"{state}.{suffix}"
        )
    if at > size_bytes or (at < size_bytes and not shuffled):
        gathered.problems.append(f"{path}: size: expected {at} bytes, found {size_bytes}")
    return num_ranks


def _add_fields(gathered: Gathered, data: bytes, name: str, rank: int) -> None:
    random, cursor = data[80:96], data[120:136]
    shard, sample = struct.unpack("<2Q", cursor)
    values = {"shard": str(shard), "sample": str(sample)}
    gathered.fields.append(
        FieldFacts(kind="rng", name="rng_state", rank=rank, path=name, digest=of_bytes(random))
    )
    gathered.fields.append(
        FieldFacts(
            kind="cursor", name="data", rank=rank, path=name, digest=of_bytes(cursor), values=values
        )
    )
