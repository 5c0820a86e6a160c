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

from spiketriage.nouns.checkpoint import CheckpointFacts
from spiketriage.readers.checkpoints.building.optimizer_names import field_kind
from spiketriage.readers.checkpoints.building.state_tree import (
    Gathered,
    Source,
    add_field,
    add_file,
    add_optimizer,
    add_parameters,
    add_steps,
    add_tensors,
)
from spiketriage.readers.checkpoints.building.torch_layout import facts, named_step, opened
from spiketriage.readers.json_file import is_count
from spiketriage.readers.look import Look, look
from spiketriage.readers.pickles import attribute, key_text

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


def claims(look: Look, /) -> float:
    """How sure this reader is of a path."""
    if not look.is_folder or not any(map(_PART.fullmatch, look.names)):
        return 0.0
    if _NAMED.fullmatch(look.path.name) or look.path.name == "release":
        return 0.97
    return 0.85


def read(path: Path, /) -> CheckpointFacts:
    """The checkpoint in the folder at `path`.

    Raises:
        EvidenceError: the folder cannot be read.
    """
    gathered = Gathered()
    parts = [name for name in look(path).names if _PART.fullmatch(name)]
    sizes: set[_Sizes] = set()
    for part in parts:
        found = _add_part(gathered, path, part, several=len(parts) > 1)
        if found is not None:
            sizes.add(found)
    if len(sizes) == 1:
        first = next(iter(sizes))
    else:
        first = _Sizes(num_parts=None, world_size=None)
    if len(sizes) > 1:
        gathered.problems.append(f"{path}: the parts' arguments disagree about the parallel sizes")
    if first.num_parts is None:
        gathered.notes.append("without arguments nobody can say how many parts there should be")
    elif first.num_parts != len(parts):
        gathered.problems.append(
            f"{path}: expected {first.num_parts} mp_rank folders, found {len(parts)}"
        )
    return facts(
        gathered,
        layout=NAME,
        path=path,
        complete=first.num_parts is not None and not gathered.problems,
        world_size=first.world_size,
        named=named_step(path.name, _NAMED),
    )


def _add_part(gathered: Gathered, path: Path, part: str, *, several: bool) -> _Sizes | None:
    suffix = f" [{part}]" if several else ""
    source = Source(path=path / part / _MAIN, relative=f"{part}/{_MAIN}")
    file = opened(gathered, source)
    sizes = None
    if file is not None:
        add_file(gathered, file, source)
        value = file.value
        if isinstance(value, Mapping):
            sizes = _add_main(gathered, value, source, suffix)
        else:
            gathered.problems.append(
                f"{source.path}: expected a mapping, found {type(value).__name__}"
            )
    for extra in sorted(_others(path / part)):
        flat = Source(path=path / part / extra, relative=f"{part}/{extra}")
        file = opened(gathered, flat)
        if file is not None:
            add_file(gathered, file, flat)
            add_tensors(
                gathered, file.value, flat, "optimizer", extra.removesuffix(".pt"), suffix=suffix
            )
            gathered.notes.append(
                f"{flat.label}: flat buffers, whose parameters the file does not name"
            )
    return sizes


def _others(folder: Path) -> list[str]:
    return [name for name in look(folder).names if name.endswith(".pt") and name != _MAIN]


def _add_main(gathered: Gathered, value: Mapping[Any, Any], source: Source, suffix: str) -> _Sizes:
    for key, item in value.items():
        name = key_text(key)
        if _MODEL.fullmatch(name):
            add_parameters(
                gathered, item, source, prefix="" if name == "model" else name, suffix=suffix
            )
        elif name == "optimizer":
            _add_optimizers(gathered, item, source, suffix)
        elif name == "rng_state":
            for number, one in enumerate(item if isinstance(item, (list, tuple)) else [item]):
                add_field(gathered, "rng", f"rng_state.{number}", one, source)
        elif isinstance(item, (int, float, str)):
            add_field(gathered, "progress", name, {name: item}, source)
        elif item is not None:
            add_field(
                gathered, "config" if name == "args" else field_kind(name), name, item, source
            )
    add_steps(gathered, value, source, keys=("iteration",))
    return _sizes(value.get("args"))


def _add_optimizers(gathered: Gathered, value: Any, source: Source, suffix: str) -> None:
    """The optimizer, or a list of chained ones.

    Torch's state inside, and the masters and the scaler around it.
    """
    chained = isinstance(value, (list, tuple))
    for number, one in enumerate(value if chained else [value]):
        prefix = f"optimizer.{number}" if chained else "optimizer"
        inner = attribute(one, "optimizer")
        if attribute(inner, "state") is not None:
            found = inner
        else:
            found = one
        add_optimizer(gathered, found, source, prefix=prefix, order=(), suffix=suffix)
        if not isinstance(one, Mapping):
            continue
        rest = {}
        for key, item in one.items():
            if key not in ("optimizer", "state", "param_groups"):
                rest[key] = item
        add_tensors(gathered, rest, source, "optimizer", prefix, suffix=suffix)
        if "grad_scaler" in rest:
            add_field(gathered, "scaler", "grad_scaler", rest["grad_scaler"], source)


def _sizes(arguments: Any) -> _Sizes:
    counts = []
    for name in _SIZES:
        counts.append(attribute(arguments, name, 1 if name.startswith("expert") else None))
    num_parts = 1
    for count in counts:
        num_parts *= count if isinstance(count, int) and is_count(count) else 0
    world_size = attribute(arguments, "world_size")
    return _Sizes(
        num_parts=num_parts or None,
        world_size=world_size if isinstance(world_size, int) and is_count(world_size) else None,
    )
