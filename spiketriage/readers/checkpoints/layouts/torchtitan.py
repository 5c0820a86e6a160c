"""A step of torchtitan: a torch DCP folder `step-{N}`, or the same exported for Hugging Face.

This module never takes a model-only save for a damaged one: torchtitan's last save is one on
purpose.
"""

from __future__ import annotations

import re
from pathlib import Path

from spiketriage.nouns.checkpoint import CheckpointFacts
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder, begin_folder
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.building.weight_files import add_weights
from spiketriage.readers.checkpoints.dcp import layout as dcp
from spiketriage.readers.checkpoints.layouts.safetensors_files import NO_CHECKSUM
from spiketriage.readers.look import Look, look

NAME = "torchtitan"
TELLS = (
    "What torch DCP tells, with train_state, scheduler and the cursor of every data-parallel rank."
)
CANNOT = (
    "The random state and the settings; a last save of the model alone has no optimizer and no "
    "cursor either."
)
INDEX = "model.safetensors.index.json"
SHARDED = "sharded"
_FOLDER = re.compile(r"step-(?:0|[1-9]\d{0,17})\Z")
MAX_RANKS = 100_000
_NUM_CURSORS = ("dataloader.dp_world_size", "dataloader.world_size")  # the newer name, the older
_CURSOR = re.compile(r"dataloader\.dp_rank_(\d{1,9})\Z")


def claims(seen: Look) -> float:
    """How sure this is a step of torchtitan."""
    if not seen.is_folder or not _FOLDER.match(seen.path.name):
        return 0.0
    if dcp.claims(seen):
        return 0.93
    if INDEX in seen.names and SHARDED in seen.names:
        return 0.85
    return 0.0


def read(path: Path) -> CheckpointFacts:
    """The checkpoint in folder `path`.

    Raises:
        EvidenceError: it cannot be read, or holds neither DCP nor an export.
    """
    seen = look(path)
    if INDEX in seen.names and not dcp.claims(seen):
        return _read_export(path)
    builder = dcp.begin_dcp(path)
    builder.notes.append("torchtitan saves neither RNG state nor config")
    has_others = any(tensor.role != "parameter" for tensor in builder.tensors)
    if builder.tensors and not builder.fields and not has_others:
        builder.notes.append(
            "a model-only save: no optimizer, scheduler, cursor or step beside the folder's name"
        )
    _add_missing_cursors(builder)
    return dcp.finish(builder, NAME)


def _add_missing_cursors(builder: CheckpointBuilder) -> None:
    """Say which data-parallel ranks left no cursor, of as many as the data loader counts."""
    values = {field.name: field.values.get("value", "") for field in builder.fields}
    stated = next((values[key] for key in _NUM_CURSORS if key in values), "")
    if not stated.isdecimal() or len(stated) > 9:
        return
    held = set()
    for name in values:
        cursor = _CURSOR.match(name)
        if cursor:
            held.add(int(cursor[1]))
    # A file may claim any number: no further than to what a real run could have.
    missing = [f"dp_rank_{rank}" for rank in range(min(int(stated), MAX_RANKS)) if rank not in held]
    if missing:
        builder.problems.append(
            f"dataloader: {len(missing)} of the {stated} cursors are missing ({some(missing)})"
        )


def _read_export(path: Path) -> CheckpointFacts:
    builder = begin_folder(path)
    builder.notes += [
        NO_CHECKSUM,
        "an export for Hugging Face: the model only, no optimizer and no cursor",
    ]
    add_weights(builder, [name for name in builder.names if name.endswith(".safetensors")], [INDEX])
    num_shards = sum(file.path.startswith(f"{SHARDED}/") for file in builder.files)
    if num_shards:
        builder.notes.append(
            f"{SHARDED}/ holds the {num_shards} files of the ranks that the weights were put "
            "together from"
        )
    return dcp.finish(builder, NAME)
