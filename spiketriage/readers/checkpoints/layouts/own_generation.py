"""A generation of ours as `inspect` and a run without settings meet it, held against its manifest.

This module never reads a tensor; a run with settings has its generations read by `native`, byte by
byte.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from spiketriage.digests import tree_of_file
from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, FieldKind, GenerationFacts, StatedStep
from spiketriage.readers.checkpoints import native
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder, begin
from spiketriage.readers.checkpoints.building.state_tree import Source, add_field
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
    builder = begin(path)
    generation = native.read_generation(path, verify=False)
    builder.complete = generation.complete
    builder.problems += generation.problems
    if not (path / wire.COMPLETE_NAME).exists() and builder.problems:
        builder.interrupted = builder.problems.pop(0)
    builder.steps += dcp.step_of_name(path.name)
    if generation.manifest is not None:
        builder.world_size = generation.manifest.world_size
        builder.steps.append(StatedStep(source=wire.MANIFEST_NAME, step=generation.manifest.step))
    _add_fields(builder)
    builder.problems += _changed(path, generation)
    tensors = dcp.read_inside(builder, f"{wire.TENSORS}/")
    dcp.drop_lower_bound(tensors)  # the manifest says the world size
    tensors.fields, tensors.steps = [], []  # and what each rank held is in its own file
    builder.add(tensors)
    return builder.finish(NAME)


def _add_fields(builder: CheckpointBuilder) -> None:
    """Take what each rank held beside its tensors."""
    ranks = {wire.rank_file(rank): rank for rank in range(len(builder.files))}
    for file in builder.files:
        if file.path not in ranks:
            continue
        path = builder.path / file.path
        try:
            state = parse_object(path, read_bytes(path))
        except EvidenceError as error:
            builder.problems.append(error.message)
            continue
        source = Source(path=path, relative=file.path, rank=ranks[file.path])
        for name, value in state.items():
            add_field(builder, _KINDS.get(name, "other"), name, value, source)


def _changed(path: Path, generation: GenerationFacts) -> Iterator[str]:
    """The small files that are not what the manifest says; of the large ones the scan will tell."""
    for entry in generation.manifest.files if generation.manifest else ():
        if entry.path.startswith(f"{wire.TENSORS}/__") or not os.path.isfile(path / entry.path):
            continue
        try:
            seen = tree_of_file(path / entry.path)
        except EvidenceError as error:
            yield error.message
            continue
        if seen != entry.digest:
            yield f"{path / entry.path}: digest: expected {entry.digest}, found {seen}"
