"""A `checkpoint-N` folder of HF Trainer, with FSDP and DeepSpeed sub-folders and adapters.

This module never believes that the highest number is a finished checkpoint: nothing in the layout
says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, StatedStep
from spiketriage.readers.checkpoints.building.folder import json_field, read_json, sentence, some
from spiketriage.readers.checkpoints.layouts import hugging_face as hf
from spiketriage.readers.json_file import is_count
from spiketriage.readers.look import Look
from spiketriage.readers.pickles import attribute

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
_RESUMABLE = ("optimizer.pt", "optimizer.bin", "scheduler.pt")


def claims(seen: Look) -> float:
    """How sure this is a checkpoint of HF Trainer."""
    if not seen.is_folder:
        return 0.0
    has_state = any(name in seen.names for name in _RESUMABLE) or any(
        _RNG.match(name) for name in seen.names
    )
    if STATE in seen.names:
        return (
            0.97
            if has_state or hf.holds_weights(seen) or any(map(_DEEPSPEED.match, seen.names))
            else 0.3
        )
    if ARGUMENTS in seen.names and has_state:
        return 0.96
    is_named = _FOLDER.match(seen.path.name) is not None or seen.path.name.startswith(_STAGED)
    return 0.95 if is_named and has_state else 0.0


def read(path: Path) -> CheckpointFacts:
    """The checkpoint in folder `path`.

    Raises:
        EvidenceError: it is no folder, or cannot be read.
    """
    reading = hf.begin(path)
    named = _FOLDER.match(path.name)
    if named:
        reading.gathered.steps.append(
            StatedStep(source=f"the name {path.name}", step=int(named[1]))
        )
    if path.name.startswith(_STAGED):
        reading.lacks("still has the temporary name that it had while it was saved")
    state = _add_trainer_state(reading)
    arguments = _add_arguments(reading)
    hf.add_weights(reading)
    for name in sorted(filter(_DEEPSPEED.match, reading.names)):
        hf.add_deepspeed(reading, name)
    if not reading.has_weights:
        reading.lacks("there are no weights")
    model_only = _is_model_only(reading, arguments, is_named=named is not None)
    if model_only:
        reading.gathered.notes.append(
            f"{path}: the model alone was saved: training cannot be resumed from it"
        )
    else:
        _add_training(reading, state)
    hf.add_settings(reading)
    _add_adapter_note(reading)
    reading.gathered.notes.append(
        "the data cursor is the step alone: a resumed run skips that many batches"
    )
    return hf.facts(reading, NAME)


def _add_trainer_state(reading: hf.Reading) -> Mapping[str, Any]:
    path = reading.path / STATE
    try:
        state = read_json(path)
    except EvidenceError as error:
        reading.gathered.problems.append(
            f"{sentence(error)}: it is the last file that a save writes"
        )
        reading.complete = False
        return {}
    field = json_field(reading.path, STATE, "progress", reading.gathered.problems)
    reading.gathered.fields += [field] if field is not None else []
    step = state.get("global_step")
    if not is_count(step):
        reading.lacks(f"{STATE}: global_step: expected a count, found {step!r:.80}")
        return state
    reading.gathered.steps.append(StatedStep(source=f"{STATE}: global_step", step=step))
    history = state.get("log_history")
    if isinstance(history, list):
        logged = [
            row["step"] for row in history if isinstance(row, dict) and is_count(row.get("step"))
        ]
    else:
        logged = []
    if (
        logged and max(logged) >= step
    ):  # below it, the steps since the last log have just not been logged
        reading.gathered.steps.append(StatedStep(source=f"{STATE}: log_history", step=max(logged)))
    return state


def _add_arguments(reading: hf.Reading) -> Any:
    if ARGUMENTS not in reading.names:
        reading.gathered.notes.append(
            f"{ARGUMENTS} is missing: the world size is counted from the RNG files"
        )
        return None
    arguments = hf.add_state(reading, ARGUMENTS, "config")
    reading.gathered.fields = [
        replace(one, values=_without_secrets(one.values)) for one in reading.gathered.fields
    ]
    size = attribute(attribute(arguments, "distributed_state"), "num_processes")
    if is_count(size) and size:
        reading.world_size = size
    elif arguments is not None:
        reading.gathered.notes.append(
            f"{ARGUMENTS} does not say the world size: it is counted from the RNG files"
        )
    return arguments


def _without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    """The pickle holds the token for the hub as it is: what we show must not."""
    result: dict[str, str] = {}
    for name, value in values.items():
        result[name] = "(not shown)" if _SECRET.search(name) else value
    return result


def _is_model_only(reading: hf.Reading, arguments: Any, *, is_named: bool) -> bool:
    if any(name in reading.names for name in _RESUMABLE) or reading.matching(_RNG):
        return False
    return attribute(arguments, "save_only_model") is True or not is_named


def _add_training(reading: hf.Reading, state: Mapping[str, Any]) -> None:
    in_deepspeed = any(map(_DEEPSPEED.match, reading.names))
    sharded = in_deepspeed or any(name.startswith("optimizer_") for name in reading.names)
    optimizer = next(
        (name for name in ("optimizer.pt", "optimizer.bin") if name in reading.names), None
    )
    if optimizer is not None:
        hf.add_optimizer_file(reading, optimizer)
    elif not sharded:
        reading.lacks("optimizer.pt is missing")
    scheduler = None
    if "scheduler.pt" in reading.names:
        scheduler = hf.scheduler_step(hf.add_state(reading, "scheduler.pt", "scheduler"))
    elif not in_deepspeed:
        reading.lacks("scheduler.pt is missing")
    has_scaler = (
        "scaler.pt" in reading.names and hf.add_state(reading, "scaler.pt", "scaler") is not None
    )
    if scheduler is not None:
        reading.gathered.steps.append(StatedStep(source="scheduler.pt: last_epoch", step=scheduler))
    if has_scaler and optimizer is not None and scheduler is not None:
        _forgive_skipped(reading, state, optimizer, scheduler)
    _add_rng(reading)


def _forgive_skipped(
    reading: hf.Reading, state: Mapping[str, Any], optimizer: str, scheduler: int
) -> None:
    """With loss scaling, an overflow skips the optimizer and the scheduler, but not the trainer's count."""
    done, step = hf.optimizer_step(reading, optimizer), state.get("global_step")
    if done is None or done.step != scheduler or not is_count(step) or scheduler >= step:
        return
    gathered = reading.gathered
    gathered.steps = [
        one
        for one in gathered.steps
        if one is not done and one.source != "scheduler.pt: last_epoch"
    ]
    skipped = f"{step - scheduler} of {step} steps were skipped by loss scaling"
    gathered.notes.append(f"{optimizer} and scheduler.pt both state {scheduler} steps: {skipped}")


def _add_rng(reading: hf.Reading) -> None:
    ranks = reading.matching(_RNG)
    single = "rng_state.pth" in reading.names
    counted = max(ranks, default=-1) + 1
    if reading.world_size is not None:
        expected = reading.world_size
    else:
        expected = counted
    missing = _missing(ranks, expected, counted)
    if not ranks:
        reading.lacks("there is no rng_state file of any rank")
    elif single and expected > 1:
        reading.lacks(f"there is rng_state.pth, as of one process, but {ARGUMENTS} says {expected}")
    elif missing:
        reading.lacks(
            f"expected the RNG state of {expected} ranks, found {len(ranks)}: {missing} missing"
        )
    if counted > expected:
        reading.lacks(
            f"expected the RNG state of {expected} ranks, found one of rank {counted - 1}"
        )
    if reading.world_size is None and counted:
        reading.world_size = counted
    hf.add_rng(reading, ranks)


def _missing(ranks: Mapping[int, str], expected: int, counted: int) -> str:
    """The ranks that have no file, in words.

    The numbers may lie, so nothing is counted beyond the files there are.
    """
    holes = [f"rank {rank}" for rank in range(min(counted, len(ranks) + 3)) if rank not in ranks]
    if expected > counted:
        holes.append(
            f"rank {counted}" if expected == counted + 1 else f"ranks {counted} to {expected - 1}"
        )
    return ", ".join(holes)


def _add_adapter_note(reading: hf.Reading) -> None:
    adapters = [name for name in reading.names if name.startswith("adapter_model")]
    if adapters:
        base = next(
            (
                one.values.get("base_model_name_or_path")
                for one in reading.gathered.fields
                if one.name == "adapter_config.json"
            ),
            None,
        )
        of = f" of {base}" if base else ""
        reading.gathered.notes.append(
            f"{some(adapters)}: an adapter{of}; the base model's weights are not here"
        )
