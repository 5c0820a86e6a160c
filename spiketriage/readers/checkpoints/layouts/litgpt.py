"""Reads a checkpoint folder of litgpt: `step-N/lit_model.pth` with its settings beside it.

This module never reads a folder whose weights are sharded: those are a torch DCP.
"""

from __future__ import annotations

import re
from pathlib import Path

from spiketriage.nouns.checkpoint import CheckpointFacts, StatedStep
from spiketriage.readers.checkpoints.building.builder import begin
from spiketriage.readers.checkpoints.building.classification import add_classified
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.building.state_tree import Source
from spiketriage.readers.checkpoints.building.torch_layout import add_named_step, opened
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


def claims(seen: Look, /) -> float:
    """How sure this reader is of a path."""
    if seen.is_folder and _FILE in seen.names and (seen.path / _FILE).is_file():
        return 0.96
    return 0.0


def read(path: Path, /) -> CheckpointFacts:
    """The checkpoint in the folder at `path`.

    Complete when the weights are whole and the model's settings are there.

    Raises:
        EvidenceError: the folder cannot be read.
    """
    builder = begin(path)
    add_named_step(builder, _NAMED)
    source = Source(path=path / _FILE, relative=_FILE)
    file = opened(builder, source)
    if file is not None:
        builder.complete = file.whole
        add_classified(builder, file, source)
        builder.steps = [step for step in builder.steps if not _counts_micro_batches(step)]
    missing = [name for name in _SETTINGS if not (path / name).is_file()]
    if missing:
        builder.notes.append(f"{some(missing)}, which litgpt writes after the weights, is missing")
    builder.complete &= _SETTINGS[0] not in missing
    return builder.finish(NAME)


def _counts_micro_batches(stated: StatedStep) -> bool:
    return stated.source.endswith("iter_num")
