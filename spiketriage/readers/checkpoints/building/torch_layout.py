"""What the layouts made of torch.save files share: first claims, opening a file, a name's step.

This module never decides whether a checkpoint is complete: that rule is each layout's own.
"""

from __future__ import annotations

import re

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import StatedStep
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder
from spiketriage.readers.checkpoints.building.state_tree import Source
from spiketriage.readers.checkpoints.files import torch_legacy
from spiketriage.readers.checkpoints.files.torch_zip import TorchFile, read_torch_file
from spiketriage.readers.checkpoints.files.zip_records import LOCAL
from spiketriage.readers.look import Look

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pyt", ".th")


def is_torch_zip(seen: Look) -> bool:
    """Whether a file begins as torch.save's archives do: a zip whose first record is data.pkl."""
    name_len = int.from_bytes(seen.head[26:28], "little")
    return seen.head.startswith(LOCAL) and seen.head[30 : 30 + name_len].endswith(b"data.pkl")


def is_torch_file(seen: Look) -> bool:
    """Whether a file begins as any torch.save file does."""
    return not seen.is_folder and (is_torch_zip(seen) or torch_legacy.is_legacy(seen.head))


def opened(builder: CheckpointBuilder, source: Source) -> TorchFile | None:
    """The file at `source`; None, and a problem that says why, where it cannot be read."""
    try:
        return read_torch_file(source.path)
    except EvidenceError as error:
        builder.failed(error)
        return None


def add_named_step(builder: CheckpointBuilder, pattern: re.Pattern[str]) -> None:
    """Take the step that the file's or folder's name states: the group `step` of `pattern`."""
    name = builder.path.name
    named = pattern.fullmatch(name)
    if named is not None:
        builder.steps.append(StatedStep(source=f"name {name}", step=int(named["step"])))
