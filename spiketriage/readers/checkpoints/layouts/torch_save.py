"""Reads any single file that torch.save or pickle wrote: .pt, .pth, .bin, .ckpt, .pkl.

This module never imports what the file names and never reads a large tensor's bytes.
"""

from __future__ import annotations

from pathlib import Path

from spiketriage.nouns.checkpoint import CheckpointFacts
from spiketriage.readers.checkpoints.building.builder import begin
from spiketriage.readers.checkpoints.building.classification import add_classified
from spiketriage.readers.checkpoints.building.state_tree import Source
from spiketriage.readers.checkpoints.building.torch_layout import SUFFIXES, is_torch_file
from spiketriage.readers.checkpoints.files.torch_zip import read_torch_file
from spiketriage.readers.look import Look

NAME = "torch-save"
TELLS = (
    "Every tensor with its place, scalars and settings, stated steps, and a checksum for each "
    "record of a zip file."
)
CANNOT = (
    "Whether other files belong to it, and whose state an optimizer's integer keys hold where "
    "shapes repeat."
)

_PICKLES = tuple(bytes((0x80, protocol)) for protocol in (2, 3, 4, 5))


def claims(seen: Look, /) -> float:
    """How sure this reader is of a path."""
    if seen.is_folder:
        return 0.0
    if is_torch_file(seen):
        return 0.7
    if seen.is_lfs_pointer and seen.path.suffix in (".pt", ".pth", ".ckpt"):
        return 0.6
    suffixed = seen.path.suffix in SUFFIXES
    if seen.head.startswith(_PICKLES):
        if suffixed:
            return 0.4
        return 0.3
    if suffixed and (seen.is_lfs_pointer or seen.path.suffix != ".bin"):
        return 0.3
    return 0.0


def read(path: Path, /) -> CheckpointFacts:
    """The file at `path` as a checkpoint of one file.

    Raises:
        EvidenceError: it cannot be read at all.
    """
    file = read_torch_file(path)
    builder = begin(path)
    builder.complete = file.whole
    add_classified(builder, file, Source(path=path, relative=""))
    if not file.records:
        builder.notes.append(
            "this format has no checksum: a flipped bit in a tensor cannot be told from "
            "the file alone"
        )
    return builder.finish(NAME)
