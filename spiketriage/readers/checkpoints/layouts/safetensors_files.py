"""A safetensors file, or a folder of them with or without an index.

This module never reads a tensor's bytes: the format has no checksum that could be compared with
them.
"""

from __future__ import annotations

from pathlib import Path

from spiketriage.digests import of_bytes, of_mapping
from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, FieldFacts
from spiketriage.readers.checkpoints.building.builder import begin
from spiketriage.readers.checkpoints.building.state_tree import add_json_field
from spiketriage.readers.checkpoints.building.weight_files import (
    add_weights,
    checked_header,
    read_safetensors,
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
    if look(path).is_folder:
        return _read_folder(path)
    return _read_file(path)


def _read_file(path: Path) -> CheckpointFacts:
    builder = begin(path)
    builder.tensors += read_safetensors(path, "", builder.problems)
    builder.complete = not builder.problems
    metadata = checked_header(path, []).metadata
    if metadata:
        digests = {
            name: of_bytes(text.encode("utf-8", "surrogatepass")) for name, text in metadata.items()
        }
        builder.fields.append(
            FieldFacts(
                kind="other",
                name="__metadata__",
                rank=None,
                path="",
                digest=of_mapping(digests),
                values=dict(metadata),
            )
        )
    builder.notes += [NO_CHECKSUM, NO_STEP]
    return builder.finish(NAME)


def _read_folder(path: Path) -> CheckpointFacts:
    builder = begin(path)
    names = [name for name in builder.names if name.endswith(SUFFIX)]
    indexes = [name for name in builder.names if name.endswith(INDEX_SUFFIX)]
    if not names and not indexes:
        raise EvidenceError(f"{path}: holds no safetensors file")
    builder.notes += [NO_CHECKSUM, NO_STEP]
    add_weights(builder, names, indexes)
    if len(names) > 1 and not indexes:
        builder.notes.append("there is no index: which files belong together is not said")
    for name in CONFIGS:
        if name in builder.names:
            add_json_field(builder, name, "config")
    return builder.finish(NAME)
