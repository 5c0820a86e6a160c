"""A folder that Accelerate's `save_state` wrote: random states, and whatever was prepared.

This module never takes the number of a save, or a scheduler's count over all processes, for a step.
"""

from __future__ import annotations

import re
from pathlib import Path

from spiketriage.nouns.checkpoint import CheckpointFacts, StatedStep
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder, begin_folder
from spiketriage.readers.checkpoints.layouts import hugging_face as hf
from spiketriage.readers.look import Look

NAME = "accelerate"
TELLS = (
    "Weights, optimizers, schedulers, samplers, scaler and random state by rank, and the "
    "step by the optimizer's own count."
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
    has_optimizer = any(map(_OPTIMIZER.match, seen.names))
    has_scheduler = any(map(_SCHEDULER.match, seen.names))
    is_named = _SAVE.match(seen.path.name) is not None
    if has_optimizer and has_scheduler:
        return 0.8 if is_named else 0.6
    if is_named and (has_optimizer or has_scheduler):
        return 0.5
    return 0.0


def read(path: Path) -> CheckpointFacts:
    """The checkpoint in folder `path`.

    Raises:
        EvidenceError: it is no folder, or cannot be read.
    """
    builder = begin_folder(path)
    step, save = _STEP.match(path.name), _SAVE.match(path.name)
    if step:
        builder.steps.append(StatedStep(source=f"the name {path.name}", step=int(step[1])))
    if save:
        builder.notes.append(f"the number {save[1]} in the name counts saves, not steps")
    has_weights = hf.add_weights(builder)
    for name in builder.names:
        if _DEEPSPEED.match(name) and (path / name).is_dir():
            has_weights |= hf.add_deepspeed(builder, name)
    if not has_weights:
        builder.lacks("there are no weights")
    _add_optimizers(builder)
    _add_rng(builder)
    _add_schedulers(builder)
    for name in filter(_CURSOR.match, builder.names):
        hf.add_state(builder, name, "cursor")
    for name in filter(_CUSTOM.match, builder.names):
        hf.add_state(builder, name, "other")
    if "scaler.pt" in builder.names:
        hf.add_state(builder, "scaler.pt", "scaler")
    hf.add_settings(builder)
    return builder.finish(NAME)


def _add_optimizers(builder: CheckpointBuilder) -> None:
    names = builder.numbered(_OPTIMIZER)
    for name in names.values():
        hf.add_optimizer_file(builder, name)
    if not names and not any(tensor.role == "optimizer" for tensor in builder.tensors):
        builder.notes.append("there is no optimizer: none was prepared, or its file was removed")


def _add_rng(builder: CheckpointBuilder) -> None:
    """Take every rank's generators, and its count of micro steps: all must have saved together."""
    ranks = builder.numbered(_RNG)
    if not ranks:
        builder.lacks(
            "there is no random_states file of any rank, which are the last files that a "
            "save writes"
        )
        return
    # The number in a name may be any: no further than to a few beyond the files that are there.
    missing = [str(rank) for rank in range(min(max(ranks), len(ranks) + 3)) if rank not in ranks]
    if missing:
        held = f"found {len(ranks)}: rank {', '.join(missing)} missing"
        builder.lacks(f"expected the random states of {max(ranks) + 1} ranks, {held}")
    builder.world_size = max(ranks) + 1
    builder.notes.append("the world size is counted from the random_states files: a lower bound")
    first: dict[int, int] = {}
    for rank, count in hf.add_rng(builder, ranks).items():
        first.setdefault(count, rank)
    if len(first) > 1:
        counts = [f"{count} (rank {rank})" for count, rank in sorted(first.items())[:3]]
        builder.problems.append(
            f"{builder.path}: ranks saved at different moments: micro step {' and '.join(counts)}"
        )


def _add_schedulers(builder: CheckpointBuilder) -> None:
    """Take the schedulers, and what they state where it can be a count of steps.

    A prepared scheduler steps once for every process unless batches are split, another one as the
    script likes.
    """
    optimizers = builder.numbered(_OPTIMIZER)
    for number, name in builder.numbered(_SCHEDULER).items():
        count = hf.scheduler_step(hf.add_state(builder, name, "scheduler"))
        optimizer = optimizers.get(number, optimizers.get(0, ""))
        done = hf.optimizer_step(builder, optimizer) if optimizer else None
        if count is None or done is None:
            continue
        world_size = builder.world_size or 1
        if count == done.step:
            builder.steps.append(StatedStep(source=f"{name}: last_epoch", step=count))
        elif count == done.step * world_size:
            by_all = f"{name}: last_epoch, by {world_size} processes"
            builder.steps.append(StatedStep(source=by_all, step=done.step))
        else:
            _note_other_pace(builder, name, count, done)


def _note_other_pace(builder: CheckpointBuilder, name: str, count: int, done: StatedStep) -> None:
    paces = f"{name} has made {count} steps, the optimizer {done.step}"
    if done.step and count % done.step == 0:
        processes = count // done.step
        why = f"as {processes} processes would, but random states of {builder.world_size} are here"
    else:
        why = (
            "it may not step with the optimizer, so this is no proof that they are of "
            "different moments"
        )
    builder.notes.append(f"{paces}: {why}")
