"""A step of torchtitan: a torch DCP folder `step-{N}`, or the same exported for Hugging Face.

This module never takes a model-only save for a damaged one: torchtitan's last save is one on
purpose.
"""

from __future__ import annotations

import re
from pathlib import Path

from spiketriage.nouns.checkpoint import CheckpointFacts
from spiketriage.nouns.file import StoredFile
from spiketriage.readers.checkpoints.building.folder import some, stored_files
from spiketriage.readers.checkpoints.building.state_tree import Gathered
from spiketriage.readers.checkpoints.building.weight_files import read_weights
from spiketriage.readers.checkpoints.dcp import layout
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
_NUM_CURSORS = (
    "dataloader.dp_world_size",
    "dataloader.world_size",
)  # the newer name, and the older
_CURSOR = re.compile(r"dataloader\.dp_rank_(\d{1,9})\Z")


def claims(seen: Look) -> float:
    """How sure this is a step of torchtitan."""
    if not seen.is_folder or not _FOLDER.match(seen.path.name):
        return 0.0
    if layout.claims(seen):
        return 0.93
    if INDEX in seen.names and SHARDED in seen.names:
        return 0.85
    return 0.0


def read(path: Path) -> CheckpointFacts:
    """The checkpoint in folder `path`.

    Raises:
        EvidenceError: it cannot be read, or holds neither DCP nor an export.
    """
    seen, files = look(path), stored_files(path)
    if INDEX in seen.names and not layout.claims(seen):
        return _read_export(seen, files)
    part = layout.read_part(path, files)
    beside = Gathered(notes=["torchtitan saves neither RNG state nor config"])
    is_bare = not part.fields and not any(tensor.role != "parameter" for tensor in part.tensors)
    if part.tensors and is_bare:
        beside.notes.append(
            "a model-only save: no optimizer, scheduler, cursor or step beside the folder's name"
        )
    beside.problems += _missing_cursors(part)
    return layout.facts(path, NAME, part, files, beside)


def _missing_cursors(part: layout.Part) -> list[str]:
    values = {field.name: field.values.get("value", "") for field in part.fields}
    said = next((values[key] for key in _NUM_CURSORS if key in values), "")
    if not said.isdecimal() or len(said) > 9:
        return []
    held = {int(found[1]) for name in values if (found := _CURSOR.match(name))}
    missing = [f"dp_rank_{rank}" for rank in range(min(int(said), 100_000)) if rank not in held]
    if not missing:
        return []
    return [f"dataloader: {len(missing)} of the {said} cursors are missing ({some(missing)})"]


def _read_export(seen: Look, files: tuple[StoredFile, ...]) -> CheckpointFacts:
    names = [name for name in seen.names if name.endswith(".safetensors")]
    beside = Gathered(
        notes=[
            NO_CHECKSUM,
            "an export for Hugging Face: the model only, no optimizer and no cursor",
        ]
    )
    complete = read_weights(beside, seen.path, names, [INDEX])
    shards = [file.path for file in files if file.path.startswith(f"{SHARDED}/")]
    if shards:
        told = (
            f"{SHARDED}/ holds the {len(shards)} files of the ranks that the weights were put "
            "together from"
        )
        beside.notes.append(told)
    return layout.facts(
        seen.path, NAME, layout.Part(complete=complete, world_size=None), files, beside
    )
