"""Generations: tensors through DCP, a file a rank for the rest, then the manifest and `COMPLETE`.

This module never overwrites a generation (one whose step is saved again is moved aside), and never
treats a folder without `COMPLETE` as one.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from spiketriage import digests, durable, redaction
from spiketriage.errors import CorruptFileError, EvidenceError, PartialError
from spiketriage.nouns.checkpoint import Manifest
from spiketriage.nouns.file import StoredFile
from spiketriage.train.generations import rank_file
from spiketriage.train.generations import tensors as generation_tensors
from spiketriage.train.generations.rank_state import (
    RankState,
    StateDigests,
    canonical,
    digest_state,
    model_digest,
)
from spiketriage.train.generations.tensors import NO_TENSORS
from spiketriage.train.generations.together import gathered, place, together
from spiketriage.train.generations.verify import field_problems, file_problems
from spiketriage.wire import generation as wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What produced a generation; goes into its manifest. An empty digest is not stated."""

    hparams: Mapping[str, Any]
    schedule: Mapping[str, Any]
    code_path: str
    code_digest: str
    config_digest: str
    index_digest: str
    tokenizer_digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A rank's part of a generation to be written, with the digests of what it must hold."""

    step: int
    state: RankState
    digests: StateDigests
    provenance: Provenance


def save(generations_folder: Path, *, step: int, state: RankState, provenance: Provenance) -> Path:
    """Write the generation of `step` and return its folder; collective over all ranks.

    `COMPLETE` exists only when every file of every rank is on disk.

    Raises:
        PartialError: a rank could not write (every rank raises); what was complete before still is.
    """
    return write(
        generations_folder,
        Staged(step=step, state=state, digests=digest_state(state), provenance=provenance),
        group=None,
    )


def write(generations_folder: Path, staged: Staged, *, group: dist.ProcessGroup | None) -> Path:
    """Write what was staged, as `save` does, with collectives of `group` alone."""
    folder = generations_folder / wire.generation_name(staged.step)
    contiguous = {}
    for kind, tensors in staged.state.groups.items():
        contiguous[kind] = {name: tensor.contiguous() for name, tensor in tensors.items()}
    rank = place(group).rank
    try:
        together(lambda: _make_room(folder, rank), group=group)
        together(lambda: generation_tensors.write(folder, contiguous, group=group), group=group)
        parts = gathered(lambda: _write_rest(folder, staged, rank), group=group)
        together(lambda: _complete(folder, staged, parts, rank), group=group)
    except EvidenceError as error:
        raise PartialError(
            f"{folder}: this generation was not saved: {error.message}",
            hint="older generations are as they were; free space or mend the file system, then "
            "save again",
        ) from error
    return folder


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a complete generation.

    Raises:
        CorruptFileError: `COMPLETE` or the manifest is missing, damaged, of another generation, or
        they disagree.
    """
    try:
        data = (folder / wire.MANIFEST_NAME).read_bytes()
        mark = (folder / wire.COMPLETE_NAME).read_text(encoding="ascii").strip()
        manifest = wire.from_json(json.loads(data))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(
            folder, "generation", expected="MANIFEST.json and COMPLETE", seen=error
        ) from error
    if mark != digests.of_bytes(data):
        raise CorruptFileError(folder, "COMPLETE", expected=digests.of_bytes(data), seen=mark)
    if manifest.generation != folder.name:
        seen = f"that of {manifest.generation}"
        raise CorruptFileError(
            folder / wire.MANIFEST_NAME, "content", expected=f"that of {folder.name}", seen=seen
        )
    return manifest


def load_verified(folder: Path, like: Mapping[str, Tensor] = NO_TENSORS) -> RankState:
    """This rank's state, after every file and every field agreed with the manifest; collective.

    Each rank reads its share of the files to verify them, and all ranks refuse together. `like` are
    the live parameters whose device and sharding the loaded tensors take (see
    `generation_tensors.read`). On another number of ranks than saved it, `rng` comes back empty
    (generators must be seeded anew: no number of ranks continues another's) and the guard's state
    is the first rank's with the recent batches of all; a cursor that is not global is refused.

    Raises:
        EvidenceError: anything is missing, extra or different; the file or field is named.
    """
    manifest = together(lambda: read_manifest(folder))
    together(lambda: _refuse(file_problems(folder, manifest)))
    state = read_state(folder, like)
    together(lambda: _refuse(field_problems(folder, manifest, digest_state(state))))
    return state


def read_state(folder: Path, like: Mapping[str, Tensor] = NO_TENSORS) -> RankState:
    """What `load_verified` returns, unverified: whatever the files hold. Collective.

    Raises:
        EvidenceError: a file is missing or unreadable, or this number of ranks cannot go on from
        it.
    """
    rest = together(lambda: rank_file.read(folder))
    room = together(lambda: generation_tensors.make_room(folder, like))
    together(lambda: generation_tensors.fill(room))
    groups = room.groups
    return RankState(
        params=groups["params"], optimizer=groups["optimizer"], buffers=groups["buffers"], **rest
    )


def generations(generations_folder: Path) -> tuple[Path, ...]:
    """Folders that are named as generations, complete or not, the newest first."""
    by_step: list[tuple[int, Path]] = []
    for path in generations_folder.glob("step-*"):
        step = wire.step_of(path.name)
        if step is not None:
            by_step.append((step, path))
    return tuple(path for _, path in sorted(by_step, reverse=True))


def newest_complete(generations_folder: Path) -> Path | None:
    """The complete generation with the highest step; damaged ones are passed over."""
    for folder in generations(generations_folder):
        if _manifest(folder) is not None:
            return folder
    return None


def newest_known_good(generations_folder: Path, before: int) -> Path | None:
    """The newest generation before step `before` that is complete, finite and agreed on by all.

    It reads manifests alone; `load_verified` then reads every byte.
    """
    for folder in generations(generations_folder):
        manifest = _manifest(folder)
        if manifest is None or manifest.step >= before:
            continue
        if not any(manifest.nonfinite.values()) and not wire.rank_disagreements(manifest):
            return folder
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one rank wrote: its files, and the digests of what it holds."""

    files: tuple[StoredFile, ...]
    digests: StateDigests
    cursor: str


def _manifest(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder)
    except EvidenceError:
        return None


def _make_room(folder: Path, rank: int) -> None:
    """The first rank makes an empty folder; what stood in its place is moved aside."""
    if rank != 0:
        return
    if folder.exists():
        aside = folder.parent / wire.SUPERSEDED
        aside.mkdir(exist_ok=True)
        number = sum(1 for _ in aside.glob(f"{folder.name}.*"))
        folder.rename(aside / f"{folder.name}.{number}")
        durable.sync(aside)
    (folder / wire.TENSORS).mkdir(parents=True)
    durable.sync(folder.parent)


def _write_rest(folder: Path, staged: Staged, rank: int) -> _Part:
    """Write this rank's file, and take the digest of every file that this rank has written."""
    own = rank_file.write(folder, staged.state, rank)
    durable.sync(folder / wire.TENSORS)
    written = [own]
    for path in sorted((folder / wire.TENSORS).iterdir()):
        if _writer_of(path.name) == rank:
            written.append(path)
    cursor = ""
    if staged.state.is_cursor_global:
        cursor = canonical(staged.state.cursor).decode()
    files = tuple(_entry(folder, path) for path in written)
    return _Part(files=files, digests=staged.digests, cursor=cursor)


def _writer_of(name: str) -> int:
    """The rank that has a tensor file in its own page cache; the rest is the first rank's."""
    named = re.match(r"__(\d+)_", name)
    if named:
        return int(named[1])
    return 0


def _entry(folder: Path, path: Path) -> StoredFile:
    name = path.relative_to(folder).as_posix()
    return StoredFile(path=name, size_bytes=path.stat().st_size, digest=digests.tree_of_file(path))


def _complete(folder: Path, staged: Staged, parts: list[_Part], rank: int) -> None:
    """The first rank writes the manifest and, when it is on disk, the mark of completion."""
    if rank != 0:
        return
    if len({part.cursor for part in parts}) > 1:
        raise EvidenceError("the data cursor is said to be global, but differs between ranks")
    by_rank = {wire.rank_name(rank): part.digests for rank, part in enumerate(parts)}
    stated = {name: getattr(staged.provenance, name) for name in Provenance.__slots__}
    stated["hparams"] = redaction.settings(staged.provenance.hparams)
    manifest = Manifest(
        generation=folder.name,
        step=staged.step,
        num_tokens=staged.state.num_tokens,
        world_size=len(parts),
        files=tuple(itertools.chain.from_iterable(part.files for part in parts)),
        fields={name: dict(held.fields) for name, held in by_rank.items()},
        tensors={name: dict(held.tensors) for name, held in by_rank.items()},
        scheduler=dict(staged.state.scheduler),
        model_digest=model_digest(staged.state.params),
        nonfinite={name: held.nonfinite for name, held in by_rank.items() if held.nonfinite},
        **stated,
    )
    data = json.dumps(wire.to_json(manifest), indent=1, sort_keys=True).encode()
    durable.write(folder / wire.MANIFEST_NAME, data)
    durable.write(folder / wire.COMPLETE_NAME, digests.of_bytes(data).encode())


def _refuse(problems: Iterator[CorruptFileError]) -> None:
    problem = next(problems, None)
    if problem:
        raise problem
