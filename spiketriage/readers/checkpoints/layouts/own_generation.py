"""A generation of `spiketriage.train`, as `inspect` and a run without settings meet it.

Held against its own manifest.

This module never reads a tensor; a run with settings has its generations read by `native`, byte by
byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spiketriage.digests import tree_of_file
from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import (
    CheckpointFacts,
    FieldFacts,
    FieldKind,
    GenerationFacts,
    StatedStep,
)
from spiketriage.nouns.file import StoredFile
from spiketriage.readers.checkpoints import native
from spiketriage.readers.checkpoints.building.folder import stored_files
from spiketriage.readers.checkpoints.building.state_fields import field
from spiketriage.readers.checkpoints.dcp import layout as dcp
from spiketriage.readers.json_file import parse_object, read_bytes
from spiketriage.readers.look import Look
from spiketriage.wire import generation as wire

NAME = "spiketriage"
TELLS = (
    "Every file against its manifest, every tensor's chunks with a checksum each, and what "
    "each rank held beside them."
)
CANNOT = "What was wrong before it was saved: the manifest vouches for what was in memory then."
_KINDS: dict[str, FieldKind] = {
    "scheduler": "scheduler",
    "scaler": "scaler",
    "rng": "rng",
    "cursor": "cursor",
}


def claims(seen: Look) -> float:
    """How sure this is a generation of ours."""
    if not seen.is_folder or wire.TENSORS not in seen.names:
        return 0.0
    marks = {wire.MANIFEST_NAME, wire.COMPLETE_NAME, wire.rank_file(0)} & set(seen.names)
    if len(marks) > 1:
        return 0.97
    if marks:
        return 0.7
    return 0.0


def read(path: Path) -> CheckpointFacts:
    """The generation in folder `path`; a mark of completion that is missing is no damage.

    Raises:
        EvidenceError: it cannot be read at all.
    """
    files = stored_files(path)
    generation = native.read_generation(path, verify=False)
    problems: list[str] = list(generation.problems)
    interrupted = ""
    if not (path / wire.COMPLETE_NAME).exists() and problems:
        interrupted = problems.pop(0)
    try:
        part = dcp.read_part(path, files, under=f"{wire.TENSORS}/")
    except EvidenceError as error:
        part = dcp.Part(complete=False, world_size=None, problems=(error.message,))
    fields = tuple(_fields(path, files, problems))
    problems += _changed(path, generation)
    return CheckpointFacts(
        layout=NAME,
        name=path.name,
        path=path,
        stated_steps=(*dcp.step_of_name(path.name), *_stated(generation)),
        complete=generation.complete and part.complete,
        world_size=generation.manifest.world_size if generation.manifest else None,
        files=files,
        tensors=part.tensors,
        fields=fields,
        extents=part.extents,
        globals=part.globals,
        interrupted=interrupted,
        problems=tuple(dict.fromkeys((*problems, *part.problems))),
        notes=tuple(note for note in part.notes if note != dcp.LOWER_BOUND),  # the manifest says it
    )


def _stated(generation: GenerationFacts) -> Iterator[StatedStep]:
    if generation.manifest is not None:
        yield StatedStep(source=wire.MANIFEST_NAME, step=generation.manifest.step)


def _fields(path: Path, files: tuple[StoredFile, ...], problems: list[str]) -> Iterator[FieldFacts]:
    ranks = {wire.rank_file(rank): rank for rank in range(len(files))}
    for file in files:
        if file.path not in ranks:
            continue
        try:
            held = parse_object(path / file.path, read_bytes(path / file.path))
        except EvidenceError as error:
            problems.append(error.message)
            continue
        for name, value in held.items():
            yield field(
                _KINDS.get(name, "other"), name, value, rank=ranks[file.path], path=file.path
            )


def _changed(path: Path, generation: GenerationFacts) -> Iterator[str]:
    """The small files that are not what the manifest says.

    The large ones have checksums that the scan compares.
    """
    for entry in generation.manifest.files if generation.manifest else ():
        if entry.path.startswith(f"{wire.TENSORS}/__") or not (path / entry.path).is_file():
            continue
        try:
            seen = tree_of_file(path / entry.path)
        except EvidenceError as error:
            yield error.message
            continue
        if seen != entry.digest:
            yield f"{path / entry.path}: digest: expected {entry.digest}, found {seen}"
