"""Reads a checkpoint folder of litgpt: `step-N/lit_model.pth` with its settings beside it.

This module never reads a folder whose weights are sharded: those are a torch DCP.
"""

from __future__ import annotations

import re
from pathlib import Path

from spiketriage.nouns.checkpoint import CheckpointFacts
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.building.state_tree import Gathered, Source, gather
from spiketriage.readers.checkpoints.building.torch_layout import facts, named_step, opened
from spiketriage.readers.look import Look

NAME = "litgpt"
TELLS = (
    "Step by name and step_count, tensors with places and checksums, the data loader's state "
    "and the settings."
)
CANNOT = "The random state and the world size, neither of which litgpt stores."

_FILE = "lit_model.pth"
_NAMED = re.compile(r"step-(?P<step>\d{1,18})")
_SETTINGS = ("model_config.yaml", "hyperparameters.yaml")


def claims(look: Look, /) -> float:
    """How sure this reader is of a path."""
    if look.is_folder and _FILE in look.names and (look.path / _FILE).is_file():
        return 0.96
    return 0.0


def read(path: Path, /) -> CheckpointFacts:
    """The checkpoint in the folder at `path`.

    Complete when the weights are whole and the model's settings are there.

    Raises:
        EvidenceError: the folder cannot be read.
    """
    gathered = Gathered()
    source = Source(path=path / _FILE, relative=_FILE)
    file = opened(gathered, source)
    if file is not None:
        gather(gathered, file, source)
        gathered.steps = [
            step for step in gathered.steps if not step.source.endswith("iter_num")
        ]  # micro-batches
    missing = [name for name in _SETTINGS if not (path / name).is_file()]
    if missing:
        gathered.notes.append(f"{some(missing)}, which litgpt writes after the weights, is missing")
    complete = file is not None and file.whole and _SETTINGS[0] not in missing
    return facts(
        gathered, layout=NAME, path=path, complete=complete, named=named_step(path.name, _NAMED)
    )
