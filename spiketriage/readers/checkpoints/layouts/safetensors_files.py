"""A safetensors file, or a folder of them with or without an index.

This module never reads a tensor's bytes: the format has no checksum that could be compared with
them.
"""

from __future__ import annotations

from pathlib import Path

from spiketriage.digests import of_bytes, of_mapping
from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, FieldFacts
from spiketriage.nouns.file import StoredFile
from spiketriage.readers.checkpoints.building.folder import json_field, stored_files
from spiketriage.readers.checkpoints.building.state_tree import Gathered
from spiketriage.readers.checkpoints.building.weight_files import (
    checked_header,
    read_safetensors,
    read_weights,
)
from spiketriage.readers.look import Look, look

NAME = "safetensors"
TELLS = (
    "Every tensor with dtype, shape and place, and a shard that is missing, cut short or not "
    "what the index expects."
)
CANNOT = "A changed byte (there is no checksum), the step, the optimizer or the rank."
SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
NO_CHECKSUM = (
    "safetensors has no checksum: a changed bit in a tensor shows only against a second copy "
    "or a freeze"
)
NO_STEP = "the step is not stated anywhere in this layout"
CONFIGS = ("config.json", "generation_config.json", "adapter_config.json", "quantize_config.json")


def claims(seen: Look) -> float:
    """How sure this is a safetensors file or a folder of them."""
    if seen.is_folder:
        if any(name.endswith(INDEX_SUFFIX) for name in seen.names):
            return 0.7
        if any(name.endswith(SUFFIX) for name in seen.names):
            return 0.6
        return 0.0
    if seen.path.name.endswith(SUFFIX):
        return 0.95
    length = int.from_bytes(seen.head[:8], "little")
    if seen.head[8:10] == b'{"' and 2 <= length <= seen.size_bytes - 8:
        return 0.9
    return 0.0


def read(path: Path) -> CheckpointFacts:
    """The file or folder at `path`.

    Raises:
        EvidenceError: it cannot be read, or holds no safetensors file.
    """
    seen = look(path)
    if seen.is_folder:
        return _read_folder(seen)
    return _read_file(seen)


def _read_file(seen: Look) -> CheckpointFacts:
    problems: list[str] = []
    tensors = read_safetensors(seen.path, "", problems)
    metadata = checked_header(seen.path, []).metadata
    fields: tuple[FieldFacts, ...] = ()
    if metadata:
        digest = of_mapping({name: of_bytes(text.encode()) for name, text in metadata.items()})
        fields = (
            FieldFacts(
                kind="other",
                name="__metadata__",
                rank=None,
                path="",
                digest=digest,
                values=dict(metadata),
            ),
        )
    return CheckpointFacts(
        layout=NAME,
        name=seen.path.name,
        path=seen.path,
        stated_steps=(),
        complete=not problems,
        world_size=None,
        files=(StoredFile(path="", size_bytes=seen.size_bytes),),
        tensors=tensors,
        fields=fields,
        problems=tuple(problems),
        notes=(NO_CHECKSUM, NO_STEP),
    )


def _read_folder(seen: Look) -> CheckpointFacts:
    names = [name for name in seen.names if name.endswith(SUFFIX)]
    indexes = [name for name in seen.names if name.endswith(INDEX_SUFFIX)]
    if not names and not indexes:
        raise EvidenceError(f"{seen.path}: holds no safetensors file")
    gathered = Gathered()
    complete = read_weights(gathered, seen.path, names, indexes)
    notes = [NO_CHECKSUM, NO_STEP, *gathered.notes]
    if len(names) > 1 and not indexes:
        notes.append("there is no index: which files belong together is not said")
    fields = [
        json_field(seen.path, name, "config", gathered.problems)
        for name in CONFIGS
        if name in seen.names
    ]
    return CheckpointFacts(
        layout=NAME,
        name=seen.path.name,
        path=seen.path,
        stated_steps=(),
        complete=complete,
        world_size=None,
        files=stored_files(seen.path),
        tensors=tuple(gathered.tensors),
        fields=tuple(field for field in fields if field is not None),
        problems=tuple(gathered.problems),
        notes=tuple(notes),
    )
