"""Reads a DeepSpeed universal checkpoint: `zero/<parameter>/fp32.pt` and so on, one tensor a file.

This module never follows `latest_universal` and never imports what the files name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from spiketriage.nouns.checkpoint import CheckpointFacts, StatedStep
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder, begin
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.building.state_tree import (
    Source,
    add_field,
    add_file,
    add_tensor,
    is_step,
)
from spiketriage.readers.checkpoints.building.torch_layout import add_named_step, opened
from spiketriage.readers.checkpoints.files.torch_values import TensorRef
from spiketriage.readers.checkpoints.layouts.deepspeed_model import ModelState, add_model_state
from spiketriage.readers.checkpoints.layouts.deepspeed_zero import MODEL
from spiketriage.readers.look import MAX_NAMES, Look

NAME = "deepspeed-universal"
TELLS = (
    "Weights and moments in fp32, whole and by parameter name, with the step of each, the "
    "settings and the scheduler."
)
CANNOT = "The random state and the world size of the run that wrote it."

_NAMED = re.compile(r"global_step(?P<step>\d{1,18})(?:_universal)?")
_STATES = ("fp32.pt", "exp_avg.pt", "exp_avg_sq.pt")


def claims(seen: Look, /) -> float:
    """How sure this reader is of a path."""
    if not seen.is_folder or "zero" not in seen.names:
        return 0.0
    if any(MODEL.fullmatch(name) for name in seen.names):
        return 0.97
    if _has_state(seen.path):
        return 0.6
    return 0.0


def read(path: Path, /) -> CheckpointFacts:
    """The checkpoint in the folder at `path`.

    Raises:
        EvidenceError: the folder cannot be read.
    """
    builder = begin(path)
    add_named_step(builder, _NAMED)
    models: list[ModelState] = []
    for name in filter(MODEL.fullmatch, builder.names):
        model = add_model_state(builder, Source(path=path / name, relative=name))
        if model is not None:
            models.append(model)
    held: dict[str, set[str]] = {}
    steps: set[int] = set()
    for folder, name in _state_files(path / "zero"):
        parameter = folder.relative_to(path / "zero").as_posix()
        if parameter == ".":
            _add_common(builder, name)
            continue
        held.setdefault(parameter, set()).add(name)
        _add_state(builder, folder / name, parameter, steps)
    if steps and models:  # the optimizer counts no skipped steps
        step = max(steps) + models[0].num_skipped_steps
        builder.steps.append(StatedStep(source="zero/*/step.pt + skipped_steps", step=step))
    if len(steps) > 1:
        first = ", ".join(map(str, sorted(steps)[:5]))
        builder.notes.append(f"the parameters' steps disagree: {first}")
    for sentence in _missing(models, held):
        builder.lacks(sentence)
    builder.complete = bool(models) and bool(held) and not builder.problems
    return builder.finish(NAME)


def _has_state(path: Path) -> bool:
    return next(_state_files(path / "zero"), None) is not None


def _state_files(zero: Path) -> Iterator[tuple[Path, str]]:
    """Folder and name of every .pt file below `zero`, at most `MAX_NAMES` of them."""
    num_left = MAX_NAMES
    for here, folders, names in os.walk(zero):
        folders.sort()
        for name in sorted(names):
            if not name.endswith(".pt"):
                continue
            yield Path(here), name
            num_left -= 1
            if not num_left:
                return


def _add_common(builder: CheckpointBuilder, name: str) -> None:
    source = Source(path=builder.path / "zero" / name, relative=f"zero/{name}")
    file = opened(builder, source)
    if file is None:
        return
    add_file(builder, file, source)
    if isinstance(file.value, Mapping) and "loss_scaler" in file.value:
        add_field(builder, "scaler", "loss_scaler", file.value["loss_scaler"], source)
    add_field(builder, "config", name.removesuffix(".pt"), file.value, source)


def _add_state(builder: CheckpointBuilder, path: Path, parameter: str, steps: set[int]) -> None:
    """Take one state of one parameter; the step that it states goes into `steps`."""
    source = Source(path=path, relative=path.relative_to(builder.path).as_posix())
    file = opened(builder, source)
    if file is None:
        return
    add_file(builder, file, source)
    state, value = path.name.removesuffix(".pt"), file.value
    if state == "step":
        step = source.contents.scalar(value)
        if step is not None and is_step(step):
            steps.add(int(step))
        return
    tensor = value.get("param") if isinstance(value, Mapping) else value
    if not isinstance(tensor, TensorRef):
        builder.problems.append(f"{path}: param: expected a tensor, found {type(tensor).__name__}")
        return
    add_tensor(builder, f"{state}.{parameter}", tensor, source, "optimizer", parameter=parameter)


def _missing(models: Collection[ModelState], held: Mapping[str, set[str]]) -> list[str]:
    sentences = []
    lost = set()
    for model in models:
        for group in model.groups:
            lost |= {parameter.name for parameter in group if parameter.name not in held}
    if lost:
        sentences.append(f"{len(lost)} parameters of param_shapes have no folder: {some(lost)}")
    partial = []
    for name, states in held.items():
        partial += [f"{name}/{state}" for state in _STATES if state not in states]
    if partial:
        sentences.append(f"{len(partial)} state files are missing: {some(partial)}")
    if not models:
        sentences.append("there is no readable mp_rank_*_model_states.pt")
    return sentences
