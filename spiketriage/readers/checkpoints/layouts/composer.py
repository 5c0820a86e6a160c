"""Reads a checkpoint file of MosaicML Composer: state, timestamp and random states of a rank.

This module never reads a sharded checkpoint of Composer: that is a torch DCP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spiketriage.nouns.checkpoint import CheckpointFacts, FieldKind
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder, begin
from spiketriage.readers.checkpoints.building.optimizer_names import field_kind
from spiketriage.readers.checkpoints.building.optimizer_state import add_optimizer
from spiketriage.readers.checkpoints.building.state_tree import (
    Source,
    add_field,
    add_file,
    add_parameters,
    add_steps,
)
from spiketriage.readers.checkpoints.building.torch_layout import add_named_step, is_torch_file
from spiketriage.readers.checkpoints.files.torch_zip import read_torch_file
from spiketriage.readers.inert import attribute
from spiketriage.readers.look import Look

NAME = "composer"
TELLS = (
    "Batch by name and timestamp, optimizer by parameter name, schedulers, data cursor and "
    "every rank's random state."
)
CANNOT = "Whether the files of other ranks belong to the same save."

_NAMED = re.compile(r"ep\d{1,9}-ba(?P<step>\d{1,18})-rank(?P<rank>\d{1,9})\.pt")
_KINDS: Mapping[str, FieldKind] = {
    "timestamp": "progress",
    "dataset_state": "cursor",
    "metadata": "config",
    "integrations": "config",
}


def claims(seen: Look, /) -> float:
    """How sure this reader is of a path."""
    if not is_torch_file(seen):
        return 0.0
    if _NAMED.fullmatch(seen.path.name):
        return 0.97
    if b"composer" in seen.head and b"timestamp" in seen.head:
        return 0.9
    return 0.0


def read(path: Path, /) -> CheckpointFacts:
    """The checkpoint in the file at `path`.

    Raises:
        EvidenceError: it cannot be read at all.
    """
    file = read_torch_file(path)
    builder = begin(path)
    named = _NAMED.fullmatch(path.name)
    source = Source(path=path, relative="", rank=int(named["rank"]) if named else None)
    add_named_step(builder, _NAMED)
    add_file(builder, file, source)
    state, generators = attribute(file.value, "state"), attribute(file.value, "rng")
    builder.complete = file.whole and isinstance(state, Mapping)
    if isinstance(state, Mapping):
        _add_state(builder, state, source)
    else:
        builder.problems.append(f"{path}: state: expected a mapping, found {type(state).__name__}")
    if isinstance(generators, (list, tuple)):
        builder.world_size = len(generators) or None
        for rank, generator in enumerate(generators):
            add_field(builder, "rng", "rng", generator, replace(source, rank=rank))
    return builder.finish(NAME)


def _add_state(builder: CheckpointBuilder, state: Mapping[Any, Any], source: Source) -> None:
    add_parameters(builder, state.get("model"), source)
    optimizers = state.get("optimizers")
    if isinstance(optimizers, Mapping):
        for name, optimizer in optimizers.items():
            add_optimizer(builder, optimizer, source, prefix=f"optimizers.{name}")
    add_steps(builder, state.get("timestamp"), source, under="timestamp", keys=("batch",))
    for key, item in state.items():
        if isinstance(key, str) and key not in ("model", "optimizers"):
            add_field(builder, _KINDS.get(key) or field_kind(key), key, item, source)
