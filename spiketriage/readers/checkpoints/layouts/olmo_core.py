"""A step of OLMo-core: `train/rank{r}.pt`, a torch DCP folder, and `.metadata.json`.

This module never takes `.metadata.json` for a proof: OLMo-core writes it even when an asynchronous
save failed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, StatedStep
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder, begin
from spiketriage.readers.checkpoints.building.classification import add_classified
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.building.state_tree import Source, add_json_field, is_step
from spiketriage.readers.checkpoints.dcp import layout as dcp
from spiketriage.readers.checkpoints.files.torch_zip import read_torch_file
from spiketriage.readers.inert import attribute
from spiketriage.readers.look import Look

NAME = "olmo-core"
TELLS = (
    "What torch DCP tells, with the world size, and each rank's step, tokens, data "
    "fingerprint, cursor and random state."
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
    builder = begin(path)
    held = {file.path for file in builder.files}
    beside = builder.part()
    if METADATA in held:
        beside.complete = add_json_field(beside, METADATA, "other")
    world_size = _add_ranks(beside)
    inside = dcp.read_inside(builder, f"{DCP_FOLDER}/")
    if world_size is not None:
        dcp.know_world_size(inside, max(world_size, inside.world_size or 0))
    reasons = (inside.interrupted, _interrupted(path, held))
    inside.interrupted = " ".join(reason for reason in reasons if reason)
    inside.complete &= not inside.interrupted
    return dcp.finish(inside, NAME, beside=beside)


def _interrupted(path: Path, held: Collection[str]) -> str:
    """Why OLMo-core itself would take this for no checkpoint."""
    if path.name.endswith("-tmp"):
        return (
            f"{path}: is the folder of a save that did not finish: OLMo-core renames it at the end"
        )
    missing = [name for name in (f"{RANKS}/rank0.pt", METADATA) if name not in held]
    if not missing:
        return ""
    return (
        f"{path}: {' and '.join(missing)} missing, so the save did not finish: OLMo-core "
        "itself would not load it"
    )


def _add_ranks(beside: CheckpointBuilder) -> int | None:
    """Take the trainer state of every rank; the world size that they state."""
    ranks: dict[int, str] = {}
    for file in beside.files:
        named = _RANK.match(file.path)
        if named:
            ranks[int(named[1])] = file.path
    sources: dict[int, str] = {}  # by step, the first file that states it: all ranks state the same
    sizes: set[int] = set()
    for rank, relative in sorted(ranks.items()):
        source = Source(path=beside.path / relative, relative=relative, rank=rank)
        try:
            state = read_torch_file(source.path)
        except EvidenceError as error:
            beside.problems.append(f"the state of rank {rank} is lost: {error.message}")
            beside.complete = False
            continue
        of_rank = beside.part()
        add_classified(of_rank, state, source)
        for stated in of_rank.steps:
            sources.setdefault(stated.step, stated.source)
        of_rank.steps = []
        beside.add(of_rank)
        size = source.contents.scalar(attribute(state.value, "world_size"))
        if is_step(size):
            sizes.add(int(size or 0))
    beside.steps += [StatedStep(source=source, step=step) for step, source in sources.items()]
    _check_ranks(beside, ranks, sizes)
    return max(sizes, default=None)


def _check_ranks(beside: CheckpointBuilder, ranks: Collection[int], sizes: Collection[int]) -> None:
    """Say where the ranks do not agree how many they are, or some have no file."""
    folder = beside.path / RANKS
    if len(sizes) > 1:
        beside.problems.append(
            f"{folder}: the ranks state different world sizes: {sorted(sizes)[:5]}"
        )
        beside.complete = False
    world_size = max(sizes, default=0)
    expected = range(min(world_size, MAX_RANKS))
    missing = [f"rank{rank}.pt" for rank in expected if rank not in ranks]
    if missing and ranks:
        beside.problems.append(
            f"{folder}: {len(missing)} of {world_size} ranks' files are missing ({some(missing)})"
        )
        beside.complete = False
