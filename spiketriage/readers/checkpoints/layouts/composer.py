"""Reads a checkpoint file of MosaicML Composer.

`ep1-ba100-rank0.pt`, with state, timestamp and random states.

This module never reads a sharded checkpoint of Composer: that is a torch DCP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, FieldKind
from spiketriage.readers.checkpoints.building.optimizer_names import field_kind
from spiketriage.readers.checkpoints.building.state_tree import (
    Gathered,
    Source,
    add_field,
    add_file,
    add_optimizer,
    add_parameters,
    add_steps,
)
from spiketriage.readers.checkpoints.building.torch_layout import facts, is_torch_file, named_step
from spiketriage.readers.checkpoints.files.torch_zip import read_torch_file
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


def claims(look: Look, /) -> float:
    """How sure this reader is of a path."""
    if not is_torch_file(look):
        return 0.0
    if _NAMED.fullmatch(look.path.name):
        return 0.97
    if b"composer" in look.head and b"timestamp" in look.head:
        return 0.9
    return 0.0


def read(path: Path, /) -> CheckpointFacts:
    """The checkpoint in the file at `path`.

    Raises:
        EvidenceError: it cannot be read at all.
    """
    gathered = Gathered()
    file = read_torch_file(path)
    named = _NAMED.fullmatch(path.name)
    source = Source(path=path, relative="", rank=int(named["rank"]) if named else None)
    add_file(gathered, file, source)
    if isinstance(file.value, Mapping):
        value = file.value
    else:
        value = {}
    state = value.get("state")
    if isinstance(state, Mapping):
        _add_state(gathered, state, source)
    else:
        gathered.problems.append(f"{path}: state: expected a mapping, found {type(state).__name__}")
    ranks = value.get("rng")
    states = ranks if isinstance(ranks, (list, tuple)) else []
    for rank, one in enumerate(states):
        add_field(gathered, "rng", "rng", one, Source(path=path, relative="", rank=rank))
    try:
        return facts(
            gathered,
            layout=NAME,
            path=path,
            complete=file.whole and isinstance(state, Mapping),
            world_size=len(states) or None,
            named=named_step(path.name, _NAMED),
        )
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _add_state(gathered: Gathered, state: Mapping[Any, Any], source: Source) -> None:
    add_parameters(gathered, state.get("model"), source)
    optimizers = state.get("optimizers")
    for name, one in optimizers.items() if isinstance(optimizers, Mapping) else ():
        add_optimizer(gathered, one, source, prefix=f"optimizers.{name}")
    add_steps(gathered, state.get("timestamp"), source, under="timestamp", keys=("batch",))
    for key, item in state.items():
        if key in ("model", "optimizers") or not isinstance(key, str):
            continue
        add_field(gathered, _KINDS.get(key) or field_kind(key), key, item, source)
