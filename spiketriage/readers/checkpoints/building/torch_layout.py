"""What the layouts made of torch.save files share.

First claims, opening a file into `Gathered`, and the final facts.

This module never decides whether a checkpoint is complete: that rule is each layout's own.
"""

from __future__ import annotations

import re
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, StatedStep
from spiketriage.nouns.file import StoredFile
from spiketriage.readers.checkpoints.building.folder import stored_files
from spiketriage.readers.checkpoints.building.state_tree import Gathered, Source
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


def opened(gathered: Gathered, source: Source) -> TorchFile | None:
    """The file at `source`; what is wrong with one that cannot be read becomes a problem."""
    try:
        return read_torch_file(source.path)
    except EvidenceError as error:
        gathered.problems.append(error.message + (f" ({error.hint})" if error.hint else ""))
        return None


def named_step(name: str, pattern: re.Pattern[str]) -> tuple[StatedStep, ...]:
    """The step that a file's or folder's name states: the group `step` of `pattern`."""
    found = pattern.fullmatch(name)
    if found is not None:
        return (StatedStep(source=f"name {name}", step=int(found["step"])),)
    return ()


def facts(
    gathered: Gathered,
    *,
    layout: str,
    path: Path,
    complete: bool,
    world_size: int | None = None,
    named: tuple[StatedStep, ...] = (),
) -> CheckpointFacts:
    """What has been gathered of the checkpoint at `path`, the step of its name first."""
    folder = path.is_dir()
    if folder:
        files = stored_files(path)
    else:
        files = (StoredFile(path="", size_bytes=path.stat().st_size),)
    return CheckpointFacts(
        layout=layout,
        name=path.name,
        path=path,
        stated_steps=(*named, *dict.fromkeys(gathered.steps)),
        complete=complete,
        world_size=world_size,
        files=files,
        tensors=tuple(gathered.tensors),
        fields=tuple(gathered.fields),
        extents=tuple(gathered.extents),
        globals=tuple(gathered.globals),
        problems=tuple(dict.fromkeys(gathered.problems)),
        notes=tuple(dict.fromkeys(gathered.notes)),
    )
