"""A step of OLMo-core.

`train/rank{r}.pt`, a torch DCP folder `model_and_optim`, and `.metadata.json`.

This module never takes `.metadata.json` for a proof: OLMo-core writes it even when an asynchronous
save failed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, StatedStep
from spiketriage.nouns.file import StoredFile
from spiketriage.readers.checkpoints.building.folder import json_field, some, stored_files
from spiketriage.readers.checkpoints.building.state_tree import Gathered, Source, gather, is_step
from spiketriage.readers.checkpoints.dcp import layout
from spiketriage.readers.checkpoints.files.torch_zip import read_torch_file
from spiketriage.readers.look import Look
from spiketriage.readers.pickles import attribute

NAME = "olmo-core"
TELLS = (
    "What torch DCP tells, with the world size, and each rank's step, tokens, data "
    "fingerprint, cursor "
    "and random state."
)
CANNOT = "The settings, unless a callback saved them; there is no loss scaler."
DCP_FOLDER, RANKS, METADATA = "model_and_optim", "train", ".metadata.json"
MAX_RANKS = 100_000
_RANK = re.compile(rf"{RANKS}/rank(\d{{1,9}})\.pt\Z")
_FOLDER = re.compile(r"step\d+(?:-tmp)?\Z")


def claims(seen: Look) -> float:
    """How sure this is a step of OLMo-core."""
    if not seen.is_folder or DCP_FOLDER not in seen.names:
        return 0.0
    marks = (RANKS in seen.names, METADATA in seen.names, _FOLDER.match(seen.path.name) is not None)
    return (0.4, 0.8, 0.95, 0.98)[sum(marks)]


def read(path: Path) -> CheckpointFacts:
    """The checkpoint in folder `path`.

    Raises:
        EvidenceError: it cannot be read.
    """
    files = stored_files(path)
    beside = Gathered()
    problems: list[str] = []
    if any(file.path == METADATA for file in files):
        said = json_field(path, METADATA, "other", problems)
        beside.fields += [said] if said is not None else []
    world_size = _read_ranks(path, files, beside, problems)
    try:
        part = layout.read_part(path, files, under=f"{DCP_FOLDER}/")
    except EvidenceError as error:
        part = layout.Part(complete=False, world_size=None, problems=(error.message,))
    if world_size is not None:
        notes = tuple(note for note in part.notes if note != layout.LOWER_BOUND)
        part = replace(part, world_size=max(world_size, part.world_size or 0), notes=notes)
    interrupted = " ".join(filter(None, (part.interrupted, _interrupted(path, files))))
    part = replace(
        part, complete=part.complete and not problems and not interrupted, interrupted=interrupted
    )
    beside.problems += problems
    return layout.facts(path, NAME, part, files, beside)


def _interrupted(path: Path, files: tuple[StoredFile, ...]) -> str:
    """Why OLMo-core itself would take this for no checkpoint."""
    if path.name.endswith("-tmp"):
        return (
            f"{path}: is the folder of a save that did not finish: OLMo-core renames it at the end"
        )
    held = {file.path for file in files}
    missing = [one for one in (f"{RANKS}/rank0.pt", METADATA) if one not in held]
    if not missing:
        return ""
    return (
        f"{path}: {' and '.join(missing)} missing, so the save did not finish: OLMo-core "
        "itself would not load it"
    )


def _read_ranks(
    path: Path, files: tuple[StoredFile, ...], beside: Gathered, problems: list[str]
) -> int | None:
    """The trainer state of every rank; the world size that they state."""
    ranks = {int(found[1]): file.path for file in files if (found := _RANK.match(file.path))}
    stated: dict[int, str] = {}
    sizes: set[int] = set()
    for rank, relative in sorted(ranks.items()):
        try:
            file = read_torch_file(path / relative)
        except EvidenceError as error:
            problems.append(f"the state of rank {rank} is lost: {error.message}")
            continue
        before = len(beside.steps)
        source = Source(path=path / relative, relative=relative, rank=rank)
        gather(beside, file, source)
        for step in beside.steps[before:]:
            stated.setdefault(step.step, step.source)
        del beside.steps[before:]
        size = source.contents.scalar(attribute(file.value, "world_size"))
        sizes |= {int(size or 0)} if is_step(size) else set()
    beside.steps += [StatedStep(source=source, step=step) for step, source in stated.items()]
    if len(sizes) > 1:
        problems.append(
            f"{path / RANKS}: the ranks state different world sizes: {sorted(sizes)[:5]}"
        )
    world_size = max(sizes, default=None)
    missing = [
        f"rank{rank}.pt" for rank in range(min(world_size or 0, MAX_RANKS)) if rank not in ranks
    ]
    if missing and ranks:
        problems.append(
            f"{path / RANKS}: {len(missing)} of {world_size} ranks' files are missing "
            f"({some(missing)})"
        )
    return world_size
