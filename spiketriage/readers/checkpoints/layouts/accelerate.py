"""A folder that Accelerate's `save_state` wrote.

`checkpoint_i` with `random_states_0.pkl` and what was prepared.

This module never takes the number of a save, or a scheduler's count over all processes, for a step.
"""

from __future__ import annotations

import re
from pathlib import Path

from spiketriage.nouns.checkpoint import CheckpointFacts, StatedStep
from spiketriage.readers.checkpoints.layouts import hugging_face as hf
from spiketriage.readers.look import Look

NAME = "accelerate"
TELLS = (
    "Weights, optimizers, schedulers, samplers, scaler and random state by rank, and the "
    "step by the "
    "optimizer's own count."
)
CANNOT = (
    "A missing last rank, the world size, the step by its name (which counts saves), or a "
    "changed byte of the weights."
)
_SAVE = re.compile(r"checkpoint_(\d{1,18})\Z")
_STEP = re.compile(r"(?:checkpoint-|(?:global[_-]?)?step[_-]?)(\d{1,18})\Z")
_RNG = re.compile(r"random_states_(\d{1,9})\.pkl\Z")
_OPTIMIZER = re.compile(r"optimizer(?:_(\d{1,4}))?\.bin\Z")
_SCHEDULER = re.compile(r"scheduler(?:_(\d{1,4}))?\.bin\Z")
_CURSOR = re.compile(r"(?:sampler|dl_state_dict)(?:_(\d{1,4}))?\.bin\Z")
_DEEPSPEED = re.compile(r"pytorch_model(?:_\d{1,4})?\Z")
_CUSTOM = re.compile(r"custom_checkpoint_(\d{1,4})\.pkl\Z")


def claims(seen: Look) -> float:
    """How sure this is a folder of Accelerate."""
    if not seen.is_folder:
        return 0.0
    if any(_RNG.match(name) for name in seen.names):
        return 0.96
    parts = sum(
        any(pattern.match(name) for name in seen.names) for pattern in (_OPTIMIZER, _SCHEDULER)
    )
    if parts == 2:
        if _SAVE.match(seen.path.name):
            return 0.8
        return 0.6
    if parts and _SAVE.match(seen.path.name):
        return 0.5
    return 0.0


def read(path: Path) -> CheckpointFacts:
    """The checkpoint in folder `path`.

    Raises:
        EvidenceError: it is no folder, or cannot be read.
    """
    reading = hf.begin(path)
    notes = reading.gathered.notes
    step, save = _STEP.match(path.name), _SAVE.match(path.name)
    if step:
        reading.gathered.steps.append(StatedStep(source=f"the name {path.name}", step=int(step[1])))
    if save:
        notes.append(f"the number {save[1]} in the name counts saves, not steps")
    hf.add_weights(reading)
    for name in sorted(
        name for name in reading.names if _DEEPSPEED.match(name) and (path / name).is_dir()
    ):
        hf.add_deepspeed(reading, name)
    if not reading.has_weights:
        reading.lacks("there are no weights")
    _add_optimizers(reading)
    _add_rng(reading)
    _add_schedulers(reading)
    for pattern in (_CURSOR, _CUSTOM):
        for name in (name for name in sorted(reading.names) if pattern.match(name)):
            hf.add_state(reading, name, "cursor" if pattern is _CURSOR else "other")
    if "scaler.pt" in reading.names:
        hf.add_state(reading, "scaler.pt", "scaler")
    hf.add_settings(reading)
    return hf.facts(reading, NAME)


def _add_optimizers(reading: hf.Reading) -> None:
    names = reading.matching(_OPTIMIZER)
    for name in names.values():
        hf.add_optimizer_file(reading, name)
    if not names and not any(one.role == "optimizer" for one in reading.gathered.tensors):
        reading.gathered.notes.append(
            "there is no optimizer: none was prepared, or its file was removed"
        )


def _add_rng(reading: hf.Reading) -> None:
    """Take every rank's generators, and its count of micro steps, which says that the ranks saved together."""
    ranks = reading.matching(_RNG)
    if not ranks:
        reading.lacks(
            "there is no random_states file of any rank, which are the last files that a "
            "save writes"
        )
        return
    missing = [rank for rank in range(min(max(ranks), len(ranks) + 3)) if rank not in ranks]
    if missing:
        found = f"found {len(ranks)}: rank {', '.join(map(str, missing))} missing"
        reading.lacks(f"expected the random states of {max(ranks) + 1} ranks, {found}")
    reading.world_size = max(ranks) + 1
    reading.gathered.notes.append(
        "the world size is counted from the random_states files: a lower bound"
    )
    first: dict[int, int] = {}
    for rank, count in hf.add_rng(reading, ranks).items():
        first.setdefault(count, rank)
    if len(first) > 1:
        told = " and ".join(f"{count} (rank {rank})" for count, rank in sorted(first.items())[:3])
        reading.gathered.problems.append(
            f"{reading.path}: ranks saved at different moments: micro step {told}"
        )


def _add_schedulers(reading: hf.Reading) -> None:
    """Take the schedulers, and what they state where it can be a count of steps.

    A prepared scheduler steps once for every process unless batches are split, another one as the
    script likes.
    """
    optimizers = reading.matching(_OPTIMIZER)
    for number, name in reading.matching(_SCHEDULER).items():
        count = hf.scheduler_step(hf.add_state(reading, name, "scheduler"))
        optimizer = optimizers.get(number, optimizers.get(0, ""))
        if optimizer:
            done = hf.optimizer_step(reading, optimizer)
        else:
            done = None
        if count is None or done is None:
            continue
        world_size = reading.world_size or 1
        if count == done.step:
            reading.gathered.steps.append(StatedStep(source=f"{name}: last_epoch", step=count))
        elif count == done.step * world_size:
            by_all = f"{name}: last_epoch, by {world_size} processes"
            reading.gathered.steps.append(StatedStep(source=by_all, step=done.step))
        else:
            _note_other_pace(reading, name, count, done)


def _note_other_pace(reading: hf.Reading, name: str, count: int, done: StatedStep) -> None:
    told = f"{name} has made {count} steps, the optimizer {done.step}"
    if done.step and count % done.step == 0:
        processes = count // done.step
        told += (
            f": as {processes} processes would, but random states of {reading.world_size} are here"
        )
    else:
        told += (
            ": it may not step with the optimizer, so this is no proof that they are of "
            "different moments"
        )
    reading.gathered.notes.append(told)
