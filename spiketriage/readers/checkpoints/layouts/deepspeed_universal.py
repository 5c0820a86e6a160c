"""Reads a DeepSpeed universal checkpoint.

`zero/<parameter>/{fp32,exp_avg,exp_avg_sq,step}.pt`, one tensor a file.

This module never follows `latest_universal` and never imports what the files name.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from spiketriage.nouns.checkpoint import CheckpointFacts, StatedStep
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.building.state_tree import (
    Gathered,
    Source,
    add_field,
    add_file,
    add_tensor,
    is_step,
)
from spiketriage.readers.checkpoints.building.torch_layout import facts, named_step, opened
from spiketriage.readers.checkpoints.files.torch_values import TensorRef
from spiketriage.readers.checkpoints.layouts.deepspeed_model import ModelState, add_model_state
from spiketriage.readers.checkpoints.layouts.deepspeed_zero import MODEL
from spiketriage.readers.look import MAX_NAMES, Look, look

NAME = "deepspeed-universal"
TELLS = (
    "Weights and moments in fp32, whole and by parameter name, with the step of each, the "
    "settings and the scheduler."
)
CANNOT = "The random state and the world size of the run that wrote it."

_NAMED = re.compile(r"global_step(?P<step>\d{1,18})(?:_universal)?")
_STATES = ("fp32", "exp_avg", "exp_avg_sq")


def claims(look: Look, /) -> float:
    """How sure this reader is of a path."""
    if not look.is_folder or "zero" not in look.names:
        return 0.0
    if any(MODEL.fullmatch(name) for name in look.names):
        return 0.97
    if _has_state(look.path):
        return 0.6
    return 0.0


def read(path: Path, /) -> CheckpointFacts:
    """The checkpoint in the folder at `path`.

    Raises:
        EvidenceError: the folder cannot be read.
    """
    gathered = Gathered()
    models: list[ModelState] = []
    for name in look(path).names:
        if MODEL.fullmatch(name):
            model = add_model_state(gathered, Source(path=path / name, relative=name))
            models += [] if model is None else [model]
    held: dict[str, set[str]] = {}
    steps: Counter[int] = Counter()
    for folder, name in _state_files(path / "zero"):
        parameter = folder.relative_to(path / "zero").as_posix()
        if parameter == ".":
            _add_common(gathered, path, name)
            continue
        held.setdefault(parameter, set()).add(name)
        _add_state(gathered, path, folder / name, parameter, steps)
    if steps and models:  # the optimizer counts no skipped steps
        step = max(steps) + models[0].num_skipped_steps
        gathered.steps.append(StatedStep(source="zero/*/step.pt + skipped_steps", step=step))
    if len(steps) > 1:
        gathered.notes.append(
            f"the parameters' steps disagree: {', '.join(map(str, sorted(steps)[:5]))}"
        )
    missing = _missing(models, held)
    gathered.problems += [f"{path}: {sentence}" for sentence in missing]
    complete = bool(models) and bool(held) and not gathered.problems
    return facts(
        gathered, layout=NAME, path=path, complete=complete, named=named_step(path.name, _NAMED)
    )


def _has_state(path: Path) -> bool:
    return next(_state_files(path / "zero"), None) is not None


def _state_files(zero: Path) -> Iterator[tuple[Path, str]]:
    def below() -> Iterator[tuple[Path, str]]:
        for here, folders, names in os.walk(zero):
            folders.sort()
            for name in sorted(names):
                if name.endswith(".pt"):
                    yield Path(here), name

    return islice(below(), MAX_NAMES)


def _add_common(gathered: Gathered, path: Path, name: str) -> None:
    source = Source(path=path / "zero" / name, relative=f"zero/{name}")
    file = opened(gathered, source)
    if file is None:
        return
    add_file(gathered, file, source)
    if isinstance(file.value, Mapping) and "loss_scaler" in file.value:
        add_field(gathered, "scaler", "loss_scaler", file.value["loss_scaler"], source)
    add_field(gathered, "config", name.removesuffix(".pt"), file.value, source)


def _add_state(
    gathered: Gathered, path: Path, file: Path, parameter: str, steps: Counter[int]
) -> None:
    state = file.name.removesuffix(".pt")
    source = Source(path=file, relative=file.relative_to(path).as_posix())
    read_file = opened(gathered, source)
    if read_file is None:
        return
    add_file(gathered, read_file, source)
    value: Any = read_file.value
    if state == "step":
        step = source.contents.scalar(value)
        if step is not None and is_step(step):
            steps[int(step)] += 1
        return
    if isinstance(value, Mapping):
        tensor = value.get("param")
    else:
        tensor = value
    if not isinstance(tensor, TensorRef):
        gathered.problems.append(f"{file}: param: expected a tensor, found {type(tensor).__name__}")
        return
    add_tensor(gathered, f"{state}.{parameter}", tensor, source, "optimizer", parameter=parameter)


def _missing(models: list[ModelState], held: Mapping[str, set[str]]) -> list[str]:
    sentences = []
    wanted = set()
    for model in models:
        for group in model.groups:
            for one in group:
                wanted.add(one.name)
    lost = wanted - held.keys()
    if lost:
        sentences.append(f"{len(lost)} parameters of param_shapes have no folder: {some(lost)}")
    partial = sorted(
        f"{name}/{state}.pt"
        for name, states in held.items()
        for state in _STATES
        if f"{state}.pt" not in states
    )
    if partial:
        sentences.append(f"{len(partial)} state files are missing: {some(partial)}")
    if not models:
        sentences.append("there is no readable mp_rank_*_model_states.pt")
    return sentences
