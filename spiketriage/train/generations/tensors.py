"""A generation's tensors through `torch.distributed.checkpoint`: any sharding reads any other.

This module never converts a dtype, and never trusts what it reads: whoever needs trust verifies the
files first.

torch reads the folder's `.metadata` by pickle, which executes what a hostile file says: a job loads
what it has saved itself, and the desk reads the same files with its inert reader.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.nouns.listing import listed
from spiketriage.wire import generation as wire

Groups = Mapping[str, Mapping[str, Tensor]]  # `params`, `optimizer`, `buffers`: tensors by name
NO_TENSORS: Mapping[str, Tensor] = {}
_SHOWN = 3


def write(folder: Path, groups: Groups, *, group: dist.ProcessGroup | None = None) -> None:
    """Write every tensor below `folder`; collective, and one rank of several writes a replica.

    Raises:
        CheckpointException, OSError: a rank could not write.
    """
    with _one_process_is_meant():
        save(
            _flat(groups),
            storage_writer=FileSystemWriter(folder / wire.TENSORS),
            process_group=group,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Tensors by group and name that are about to be filled, and the files that will fill them."""

    groups: dict[str, dict[str, Tensor]]
    path: Path


def make_room(folder: Path, like: Mapping[str, Tensor]) -> Room:
    """Room for what the generation in `folder` holds; local, reads the metadata alone.

    A parameter, and a moment of its shape, takes device and sharding of the one in `like`;
    everything else, and everything if `like` is empty, is whole and on the host. The model's own
    memory is not touched: until the caller has copied them there are two copies of the parameters
    (moments can be handed to the optimizer as they are).

    Raises:
        EvidenceError: the files cannot be read, or are those of another model: names, shapes and
        dtypes are compared.
    """
    path = folder / wire.TENSORS
    try:
        stored = FileSystemReader(path).read_metadata().state_dict_metadata
    except (
        OSError,
        EOFError,
        ValueError,
        AttributeError,
        ImportError,
        IndexError,
        pickle.UnpicklingError,
    ) as error:
        raise EvidenceError(f"{path / '.metadata'}: cannot be read: {error}") from error
    groups: dict[str, dict[str, Tensor]] = {name: {} for name in wire.GROUPS}
    for key, facts in stored.items():
        named = wire.group_and_name(key)
        if named is None or not isinstance(facts, TensorStorageMetadata):
            raise CorruptFileError(
                path, "key", expected="a parameter, a moment or a buffer", seen=key
            )
        group, name = named
        groups[group][name] = _empty(facts, _owner(group, name, like))
    _same_model(path, groups["params"], like)
    return Room(groups=groups, path=path)


def fill(room: Room) -> None:
    """Read every tensor; collective.

    Raises:
        CheckpointException: a file could not be read on some rank.
    """
    with _one_process_is_meant():
        load(_flat(room.groups), storage_reader=FileSystemReader(room.path))


def _flat(groups: Groups) -> dict[str, Any]:
    by_key: dict[str, Any] = {}
    for group, tensors in groups.items():
        for name, tensor in tensors.items():
            by_key[wire.tensor_key(group, name)] = tensor
    return by_key


def _owner(group: str, name: str, like: Mapping[str, Tensor]) -> Tensor | None:
    """The live parameter whose placement a tensor takes; step counts stay on the host."""
    if group == "params":
        return like.get(name)
    parameter, _, moment = name.rpartition("/")
    if group == "optimizer" and moment != "step":
        return like.get(parameter)
    return None


def _empty(facts: TensorStorageMetadata, owner: Tensor | None) -> Tensor:
    dtype = facts.properties.dtype
    if owner is None or owner.shape != facts.size:
        return torch.empty(facts.size, dtype=dtype)
    return torch.empty_like(owner.detach(), dtype=dtype)


def _same_model(path: Path, params: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    if not like:
        return
    missing = sorted(like.keys() - params.keys())
    if missing:
        raise CorruptFileError(
            path, "parameters", expected=_some(missing), seen="none of these names"
        )
    extra = sorted(params.keys() - like.keys())
    if extra:
        raise CorruptFileError(
            path, "parameters", expected="those of the model alone", seen=f"{_some(extra)} as well"
        )
    for name, live in like.items():
        expected, seen = _kind(live), _kind(params[name])
        if expected != seen:
            raise CorruptFileError(
                path, f"parameter {name}", expected=f"{expected}, as in the model", seen=seen
            )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _some(names: list[str]) -> str:
    return listed(names, most=_SHOWN)


@contextmanager
def _one_process_is_meant() -> Iterator[None]:
    """Without a process group torch warns that it assumes what we mean."""
    if dist.is_initialized():
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="torch.distributed is disabled, unavailable or uninitialized"
        )
        yield
