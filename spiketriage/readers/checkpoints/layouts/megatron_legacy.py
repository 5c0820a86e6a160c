"""Reads Megatron's legacy `torch` checkpoint: `iter_N/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt`.

This module never trusts `latest_checkpointed_iteration.txt` and never counts to a size that the
arguments merely claim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spiketriage.nouns.checkpoint import CheckpointFacts, FieldKind
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder, begin
from spiketriage.readers.checkpoints.building.optimizer_names import field_kind
from spiketriage.readers.checkpoints.building.optimizer_state import add_optimizer
from spiketriage.readers.checkpoints.building.state_tree import (
    Source,
    add_field,
    add_file,
    add_parameters,
    add_steps,
    add_tensors,
)
from spiketriage.readers.checkpoints.building.torch_layout import add_named_step, opened
from spiketriage.readers.inert import attribute, plain_text
from spiketriage.readers.json_file import is_count
from spiketriage.readers.look import Look, look

NAME = "megatron-legacy"
TELLS = (
    "Iteration, tensors of every part, arguments with parallel sizes and samples consumed, "
    "scheduler and random states."
)
CANNOT = "The parameters in flat buffers of the distributed optimizer, and the step of a release."

_NAMED = re.compile(r"iter_(?P<step>\d{1,18})")
_PART = re.compile(r"mp_rank_\d{2,6}(?:_\d{3,6}){0,2}")
_MAIN = "model_optim_rng.pt"
_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
)
_MODEL = re.compile(r"model\d*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """What the arguments say: how many parts there are, and how many ranks."""

    num_parts: int | None
    world_size: int | None


def claims(seen: Look, /) -> float:
    """How sure this reader is of a path."""
    if not seen.is_folder or not any(map(_PART.fullmatch, seen.names)):
        return 0.0
    if _NAMED.fullmatch(seen.path.name) or seen.path.name == "release":
        return 0.97
    return 0.85


def read(path: Path, /) -> CheckpointFacts:
    """The checkpoint in the folder at `path`.

    Raises:
        EvidenceError: the folder cannot be read.
    """
    builder = begin(path)
    add_named_step(builder, _NAMED)
    parts = [name for name in builder.names if _PART.fullmatch(name)]
    stated: set[_Sizes] = set()
    for part in parts:
        sizes = _add_part(builder, part, several=len(parts) > 1)
        if sizes is not None:
            stated.add(sizes)
    agreed = _Sizes(num_parts=None, world_size=None)
    if len(stated) == 1:
        agreed = stated.pop()
    elif stated:
        builder.problems.append(f"{path}: the parts' arguments disagree about the parallel sizes")
    if agreed.num_parts is None:
        builder.notes.append("without arguments nobody can say how many parts there should be")
    elif agreed.num_parts != len(parts):
        builder.problems.append(
            f"{path}: expected {agreed.num_parts} mp_rank folders, found {len(parts)}"
        )
    builder.world_size = agreed.world_size
    builder.complete = agreed.num_parts is not None and not builder.problems
    return builder.finish(NAME)


def _add_part(builder: CheckpointBuilder, part: str, *, several: bool) -> _Sizes | None:
    """Take one part; the parallel sizes that its arguments state."""
    suffix = f" [{part}]" if several else ""
    folder = builder.path / part
    source = Source(path=folder / _MAIN, relative=f"{part}/{_MAIN}")
    file = opened(builder, source)
    sizes = None
    if file is not None:
        add_file(builder, file, source)
        if isinstance(file.value, Mapping):
            sizes = _add_main(builder, file.value, source, suffix)
        else:
            builder.problems.append(
                f"{source.path}: expected a mapping, found {type(file.value).__name__}"
            )
    for name in _others(folder):
        _add_flat(builder, Source(path=folder / name, relative=f"{part}/{name}"), suffix)
    return sizes


def _add_flat(builder: CheckpointBuilder, source: Source, suffix: str) -> None:
    """Take a file of the distributed optimizer, which lies beside the main one."""
    file = opened(builder, source)
    if file is None:
        return
    add_file(builder, file, source)
    stem = source.path.name.removesuffix(".pt")
    add_tensors(builder, file.value, source, "optimizer", stem, suffix=suffix)
    builder.notes.append(f"{source.label}: flat buffers, whose parameters the file does not name")


def _others(folder: Path) -> list[str]:
    """The sorted names of the files beside the main one."""
    return [name for name in look(folder).names if name.endswith(".pt") and name != _MAIN]


def _add_main(
    builder: CheckpointBuilder, value: Mapping[Any, Any], source: Source, suffix: str
) -> _Sizes:
    for key, item in value.items():
        name = plain_text(key)
        if _MODEL.fullmatch(name):
            prefix = "" if name == "model" else name
            add_parameters(builder, item, source, prefix=prefix, suffix=suffix)
        elif name == "optimizer":
            _add_optimizers(builder, item, source, suffix)
        elif name == "rng_state":
            states = item if isinstance(item, (list, tuple)) else [item]
            for number, state in enumerate(states):
                add_field(builder, "rng", f"rng_state.{number}", state, source)
        elif isinstance(item, (int, float, str)):
            add_field(builder, "progress", name, {name: item}, source)
        elif item is not None:
            kind: FieldKind = "config" if name == "args" else field_kind(name)
            add_field(builder, kind, name, item, source)
    add_steps(builder, value, source, keys=("iteration",))
    return _sizes(value.get("args"))


def _add_optimizers(builder: CheckpointBuilder, value: Any, source: Source, suffix: str) -> None:
    """Take the optimizer, or a list of chained ones."""
    if not isinstance(value, (list, tuple)):
        _add_optimizer(builder, value, source, "optimizer", suffix)
        return
    for number, chained in enumerate(value):
        _add_optimizer(builder, chained, source, f"optimizer.{number}", suffix)


def _add_optimizer(
    builder: CheckpointBuilder, value: Any, source: Source, prefix: str, suffix: str
) -> None:
    """Take torch's state inside, and the masters and the scaler around it."""
    inner = attribute(value, "optimizer")
    state = inner if attribute(inner, "state") is not None else value
    add_optimizer(builder, state, source, prefix=prefix, order=(), suffix=suffix)
    if not isinstance(value, Mapping):
        return
    rest = {}
    for key, item in value.items():
        if key not in ("optimizer", "state", "param_groups"):
            rest[key] = item
    add_tensors(builder, rest, source, "optimizer", prefix, suffix=suffix)
    if "grad_scaler" in rest:
        add_field(builder, "scaler", "grad_scaler", rest["grad_scaler"], source)


def _sizes(arguments: Any) -> _Sizes:
    num_parts = 1
    for name in _SIZES:
        # older versions know no experts
        size = attribute(arguments, name, 1 if name.startswith("expert") else None)
        num_parts *= _count(size) or 0
    return _Sizes(
        num_parts=num_parts or None, world_size=_count(attribute(arguments, "world_size"))
    )


def _count(value: object) -> int | None:
    if isinstance(value, int) and is_count(value):
        return value
    return None
