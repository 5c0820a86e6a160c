"""A `checkpoint-N` folder of HF Trainer, with FSDP and DeepSpeed sub-folders and adapters.

This module never believes that the highest number is a finished checkpoint: nothing in the layout
says so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, StatedStep
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder, begin_folder
from spiketriage.readers.checkpoints.building.folder import read_json, sentence, some
from spiketriage.readers.checkpoints.building.state_tree import add_json_field
from spiketriage.readers.checkpoints.layouts import hugging_face as hf
from spiketriage.readers.inert import attribute
from spiketriage.readers.json_file import is_count
from spiketriage.readers.look import Look

NAME = "hf-trainer"
TELLS = (
    "Step from every place that states it, weights, optimizer, scheduler, arguments, random state, "
    "missing ranks and shards."
)
CANNOT = (
    "Whether the save finished (there is no marker), the data cursor beyond its step, or a "
    "changed byte of the weights."
)
STATE = "trainer_state.json"
ARGUMENTS = "training_args.bin"
_FOLDER = re.compile(r"checkpoint-(\d{1,18})\Z")
_STAGED = "tmp-checkpoint-"
_RNG = re.compile(r"rng_state(?:_(\d{1,9}))?\.pth\Z")
_DEEPSPEED = re.compile(r"global_step\d+\Z")
_SECRET = re.compile(r"(?:^|[_.])(?:token|secret|password|api_?key)\Z", re.IGNORECASE)
_SCHEDULER_STEP = "scheduler.pt: last_epoch"
_RESUMABLE = ("optimizer.pt", "optimizer.bin", "scheduler.pt")


def claims(seen: Look) -> float:
    """How sure this is a checkpoint of HF Trainer."""
    if not seen.is_folder:
        return 0.0
    has_state = any(name in _RESUMABLE or _RNG.match(name) for name in seen.names)
    if STATE in seen.names:
        has_deepspeed = any(map(_DEEPSPEED.match, seen.names))
        if has_state or hf.holds_weights(seen) or has_deepspeed:
            return 0.97
        return 0.3
    if not has_state:
        return 0.0
    if ARGUMENTS in seen.names:
        return 0.96
    if _FOLDER.match(seen.path.name) or seen.path.name.startswith(_STAGED):
        return 0.95
    return 0.0


def read(path: Path) -> CheckpointFacts:
    """The checkpoint in folder `path`.

    Raises:
        EvidenceError: it is no folder, or cannot be read.
    """
    builder = begin_folder(path)
    named = _FOLDER.match(path.name)
    if named:
        builder.steps.append(StatedStep(source=f"the name {path.name}", step=int(named[1])))
    if path.name.startswith(_STAGED):
        builder.lacks("still has the temporary name that it had while it was saved")
    state = _add_trainer_state(builder)
    arguments = _add_arguments(builder)
    has_weights = hf.add_weights(builder)
    for name in filter(_DEEPSPEED.match, builder.names):
        has_weights |= hf.add_deepspeed(builder, name)
    if not has_weights:
        builder.lacks("there are no weights")
    model_only = _is_model_only(builder, arguments, is_named=named is not None)
    if model_only:
        builder.notes.append(
            f"{path}: the model alone was saved: training cannot be resumed from it"
        )
    else:
        _add_training(builder, state, arguments)
    hf.add_settings(builder)
    _add_adapter_note(builder)
    builder.notes.append("the data cursor is the step alone: a resumed run skips that many batches")
    return builder.finish(NAME)


def _add_trainer_state(builder: CheckpointBuilder) -> Mapping[str, Any]:
    path = builder.path / STATE
    try:
        state = read_json(path)
    except EvidenceError as error:
        builder.problems.append(f"{sentence(error)}: it is the last file that a save writes")
        builder.complete = False
        return {}
    add_json_field(builder, STATE, "progress")
    step = state.get("global_step")
    if not is_count(step):
        builder.lacks(f"{STATE}: global_step: expected a count, found {step!r:.80}")
        return state
    builder.steps.append(StatedStep(source=f"{STATE}: global_step", step=step))
    logged = _last_logged(state.get("log_history"))
    if logged >= step:  # below it, the steps since the last log have just not been logged
        builder.steps.append(StatedStep(source=f"{STATE}: log_history", step=logged))
    return state


def _last_logged(history: object) -> int:
    """The highest step in the log, -1 if there is none."""
    last = -1
    for row in history if isinstance(history, list) else ():
        step = row.get("step") if isinstance(row, dict) else None
        if is_count(step):
            last = max(last, step)
    return last


def _add_arguments(builder: CheckpointBuilder) -> Any:
    if ARGUMENTS not in builder.names:
        builder.notes.append(
            f"{ARGUMENTS} is missing: the world size is counted from the RNG files"
        )
        return None
    arguments = hf.add_state(builder, ARGUMENTS, "config")
    builder.fields = [
        replace(field, values=_without_secrets(field.values)) for field in builder.fields
    ]
    size = attribute(attribute(arguments, "distributed_state"), "num_processes")
    if is_count(size) and size:
        builder.world_size = size
    elif arguments is not None:
        builder.notes.append(
            f"{ARGUMENTS} does not say the world size: it is counted from the RNG files"
        )
    return arguments


def _without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    """The pickle holds the token for the hub as it is: what we show must not."""
    shown = {}
    for name, value in values.items():
        shown[name] = "(not shown)" if _SECRET.search(name) else value
    return shown


def _is_model_only(builder: CheckpointBuilder, arguments: Any, *, is_named: bool) -> bool:
    if any(name in builder.names for name in _RESUMABLE) or builder.numbered(_RNG):
        return False
    return attribute(arguments, "save_only_model") is True or not is_named


def _add_training(builder: CheckpointBuilder, state: Mapping[str, Any], arguments: Any) -> None:
    in_deepspeed = any(map(_DEEPSPEED.match, builder.names))
    in_shards = any(name.startswith("optimizer_") for name in builder.names)
    optimizer = _first_of(("optimizer.pt", "optimizer.bin"), builder.names)
    if optimizer:
        hf.add_optimizer_file(builder, optimizer)
    elif not in_deepspeed and not in_shards:
        builder.lacks("optimizer.pt is missing")
    scheduler = None
    if "scheduler.pt" in builder.names:
        scheduler = hf.scheduler_step(hf.add_state(builder, "scheduler.pt", "scheduler"))
    elif not in_deepspeed:
        builder.lacks("scheduler.pt is missing")
    has_scaler = False
    if "scaler.pt" in builder.names:
        has_scaler = hf.add_state(builder, "scaler.pt", "scaler") is not None
    why = "by loss scaling"
    if not has_scaler:
        why = "as loss scaling skips them; there is no scaler.pt that says so"
    if scheduler is not None:
        builder.steps.append(StatedStep(source=_SCHEDULER_STEP, step=scheduler))
    can_skip = has_scaler or not _is_without_scaling(arguments)
    if can_skip and optimizer and scheduler is not None:
        _forgive_skipped(builder, state, optimizer, scheduler, why)
    _add_rng(builder)


def _is_without_scaling(arguments: Any) -> bool:
    """Whether the arguments rule out that a step was skipped.

    `fp16=False` does not: Accelerate's own configuration may ask for fp16, too. A missing scaler.pt
    does not either: transformers before 4.46 saved none.
    """
    return attribute(arguments, "bf16") is True


def _first_of(candidates: Iterable[str], names: Collection[str]) -> str:
    for name in candidates:
        if name in names:
            return name
    return ""


def _forgive_skipped(
    builder: CheckpointBuilder,
    state: Mapping[str, Any],
    optimizer: str,
    scheduler: int,
    why: str,
) -> None:
    """Take back steps that loss scaling explains: on overflow the trainer alone counts on."""
    counted, step = hf.optimizer_step(builder, optimizer), state.get("global_step")
    if counted is None or counted.step != scheduler or not is_count(step) or scheduler >= step:
        return
    explained = (counted.source, _SCHEDULER_STEP)
    builder.steps = [stated for stated in builder.steps if stated.source not in explained]
    skipped = f"{step - scheduler} of {step} steps were skipped {why}"
    builder.notes.append(f"{optimizer} and scheduler.pt both state {scheduler} steps: {skipped}")


def _add_rng(builder: CheckpointBuilder) -> None:
    ranks = builder.numbered(_RNG)
    counted = max(ranks, default=-1) + 1
    expected = counted if builder.world_size is None else builder.world_size
    missing = _missing(ranks, expected, counted)
    if not ranks:
        builder.lacks("there is no rng_state file of any rank")
    elif "rng_state.pth" in builder.names and expected > 1:
        builder.lacks(f"there is rng_state.pth, as of one process, but {ARGUMENTS} says {expected}")
    elif missing:
        builder.lacks(
            f"expected the RNG state of {expected} ranks, found {len(ranks)}: {missing} missing"
        )
    if counted > expected:
        builder.lacks(
            f"expected the RNG state of {expected} ranks, found one of rank {counted - 1}"
        )
    if builder.world_size is None and counted:
        builder.world_size = counted
    hf.add_rng(builder, ranks)


def _missing(ranks: Mapping[int, str], expected: int, counted: int) -> str:
    """The ranks that have no file, in words.

    The numbers may lie, so nothing is counted beyond the files there are.
    """
    holes = [f"rank {rank}" for rank in range(min(counted, len(ranks) + 3)) if rank not in ranks]
    if expected == counted + 1:
        holes.append(f"rank {counted}")
    elif expected > counted:
        holes.append(f"ranks {counted} to {expected - 1}")
    return ", ".join(holes)


def _add_adapter_note(builder: CheckpointBuilder) -> None:
    adapters = [name for name in builder.names if name.startswith("adapter_model")]
    if not adapters:
        return
    base = ""
    for field in builder.fields:
        if field.name == "adapter_config.json":
            base = field.values.get("base_model_name_or_path", "")
            break
    of = f" of {base}" if base else ""
    builder.notes.append(f"{some(adapters)}: an adapter{of}; the base model's weights are not here")
