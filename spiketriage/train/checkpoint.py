"""Native generations: every rank writes its files, rank 0 the manifest and then `COMPLETE`; loading fails closed.

This module never loads a pickle and never treats a generation without `COMPLETE` as one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from spiketriage import digests, durable
from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.records import FileEntry, Manifest
from spiketriage.train.tensors import hex_digests
from spiketriage.wire import generation as wire


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """Everything that one rank needs to continue bit for bit.

    `optimizer` tensors are named `<parameter>/<moment>`; `rng` is the generator's state as hex.
    """

    params: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    scheduler: Mapping[str, Any]
    rng: str
    cursor: Mapping[str, Any]
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What produced a generation; goes into its manifest."""

    hparams: Mapping[str, Any]
    schedule: Mapping[str, Any]
    code_path: str
    code_digest: str
    config_digest: str
    index_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDigests:
    """Hex digests of a state: one per field, and one per tensor of params and optimizer."""

    fields: Mapping[str, str]
    tensors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def digest_state(state: RankState) -> StateDigests:
    """Digests of `state`, the same before a save and after a load."""
    tensors = {"params": hex_digests(state.params), "optimizer": hex_digests(state.optimizer)}
    fields = {name: digests.of_mapping(parts) for name, parts in tensors.items()}
    fields["scheduler"] = digests.of_bytes(_canonical(state.scheduler))
    fields["rng"] = digests.of_bytes(state.rng.encode())
    fields["cursor"] = digests.of_bytes(_canonical(state.cursor))
    return StateDigests(fields=fields, tensors=tensors)


def save(checkpoints: Path, *, step: int, state: RankState, provenance: Provenance) -> Path:
    """Write the generation of `step`; collective over all ranks of the default process group.

    Returns the generation's folder. `COMPLETE` exists only when every file of every rank is on disk.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    folder = checkpoints / wire.generation_name(step)
    folder.mkdir(parents=True, exist_ok=True)
    entries = _write_rank(folder, rank, state)
    taken = digest_state(state)
    gathered: list[Any] = [None] * world_size
    dist.all_gather_object(gathered, (rank, entries, taken))
    if rank == 0:
        manifest = Manifest(
            generation=folder.name,
            step=step,
            num_tokens=state.num_tokens,
            world_size=world_size,
            files=tuple(entry for _, part, _ in gathered for entry in part),
            fields={f"rank-{n}": dict(found.fields) for n, _, found in gathered},
            tensors={f"rank-{n}": dict(found.tensors) for n, _, found in gathered},
            scheduler=dict(state.scheduler),
            hparams=provenance.hparams,
            schedule=provenance.schedule,
            code_path=provenance.code_path,
            code_digest=provenance.code_digest,
            config_digest=provenance.config_digest,
            index_digest=provenance.index_digest,
        )
        _complete(folder, manifest)
    dist.barrier()
    return folder


def read_rank(folder: Path, rank: int) -> RankState:
    """This rank's state as the files hold it, unverified.

    Raises:
        EvidenceError: a file is missing or unreadable.
    """
    try:
        params = load_file(folder / wire.params_file(rank))
        optimizer = load_file(folder / wire.optimizer_file(rank))
        rest = json.loads((folder / wire.state_file(rank)).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{folder}: state of rank {rank} cannot be read: {error}") from error
    return RankState(params=params, optimizer=optimizer, **rest)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a complete generation.

    Raises:
        CorruptFileError: `COMPLETE` or the manifest is missing, damaged, or they disagree.
    """
    try:
        data = (folder / wire.MANIFEST_NAME).read_bytes()
        mark = (folder / wire.COMPLETE_NAME).read_text(encoding="ascii").strip()
        manifest = wire.from_json(json.loads(data))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(folder, "generation", expected="MANIFEST.json and COMPLETE", seen=error) from error
    if mark != digests.of_bytes(data):
        raise CorruptFileError(folder, "COMPLETE", expected=digests.of_bytes(data), seen=mark)
    return manifest


def load_verified(folder: Path, rank: int) -> RankState:
    """This rank's state, after every file that it needs and every field agreed with the manifest.

    Raises:
        EvidenceError: anything is missing or differs; the file or field is named.
    """
    manifest = read_manifest(folder)
    mine = {wire.params_file(rank), wire.optimizer_file(rank), wire.state_file(rank)}
    for entry in manifest.files:
        if entry.path in mine:
            seen = digests.of_file(folder / entry.path)
            if seen != entry.digest:
                raise CorruptFileError(folder / entry.path, "digest", expected=entry.digest, seen=seen)
    state = read_rank(folder, rank)
    expected = manifest.fields[f"rank-{rank}"]
    for name, seen in digest_state(state).fields.items():
        if seen != expected[name]:
            raise CorruptFileError(folder, f"field {name} of rank {rank}", expected=expected[name], seen=seen)
    return state


def newest_complete(checkpoints: Path) -> Path | None:
    """The complete generation with the highest step; incomplete and damaged ones are passed over."""
    for folder in sorted(checkpoints.glob("step-*"), reverse=True):
        try:
            read_manifest(folder)
        except EvidenceError:
            continue
        return folder
    return None


def _write_rank(folder: Path, rank: int, state: RankState) -> list[FileEntry]:
    params, optimizer, rest = (name(rank) for name in (wire.params_file, wire.optimizer_file, wire.state_file))
    save_file({key: value.contiguous() for key, value in state.params.items()}, folder / params)
    save_file({key: value.contiguous() for key, value in state.optimizer.items()}, folder / optimizer)
    text = {
        "scheduler": state.scheduler,
        "rng": state.rng,
        "cursor": state.cursor,
        "num_tokens": state.num_tokens,
    }
    (folder / rest).write_bytes(_canonical(text))
    entries = []
    for name in (params, optimizer, rest):
        durable.sync(folder / name)
        path = folder / name
        entries.append(FileEntry(path=name, size_bytes=path.stat().st_size, digest=digests.of_file(path)))
    return entries


def _complete(folder: Path, manifest: Manifest) -> None:
    data = json.dumps(wire.to_json(manifest), indent=1, sort_keys=True).encode()
    for name, content in ((wire.MANIFEST_NAME, data), (wire.COMPLETE_NAME, digests.of_bytes(data).encode())):
        durable.write(folder / name, content)


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
