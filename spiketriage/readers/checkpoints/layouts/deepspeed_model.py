"""A DeepSpeed `*_model_states.pt` file: the module, counters, and the order of what ZeRO flattened.

This module never imports what the file names and never reads a large tensor's bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spiketriage.nouns.checkpoint import FieldKind
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder
from spiketriage.readers.checkpoints.building.classification import add_scalars
from spiketriage.readers.checkpoints.building.optimizer_names import field_kind
from spiketriage.readers.checkpoints.building.optimizer_order import Named
from spiketriage.readers.checkpoints.building.optimizer_state import add_optimizer
from spiketriage.readers.checkpoints.building.state_fields import scalar_text
from spiketriage.readers.checkpoints.building.state_tree import (
    Source,
    add_field,
    add_file,
    add_parameters,
    add_steps,
)
from spiketriage.readers.checkpoints.building.torch_layout import opened
from spiketriage.readers.checkpoints.files.torch_values import TensorRef
from spiketriage.readers.inert import plain_text
from spiketriage.readers.json_file import is_count

_SHAPES = ("param_shapes", "frozen_param_shapes", "frozen_param_fragments", "shared_params")
_BOOKKEEPING = frozenset(
    ("module", "buffer_names", "optimizer", "sparse_tensor_module_names", *_SHAPES)
)
_KINDS: Mapping[str, FieldKind] = {
    "ds_config": "config",
    "data_sampler": "cursor",
    "random_ltd": "other",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """What the file says about the others: how many ranks there are, what each flat group holds."""

    num_data_ranks: int
    num_model_ranks: int
    num_skipped_steps: int
    holds_optimizer: bool
    groups: tuple[tuple[Named, ...], ...]


def add_model_state(
    builder: CheckpointBuilder, source: Source, *, part: str = ""
) -> ModelState | None:
    """Take a model file, `part` added to the names of its tensors; None if it cannot be read."""
    file = opened(builder, source)
    if file is None:
        return None
    value = file.value
    add_file(builder, file, source)
    if not isinstance(value, Mapping):
        builder.problems.append(f"{source.path}: expected a mapping, found {type(value).__name__}")
        return None
    _add_module(builder, value.get("module"), source, part)
    add_steps(builder, value, source, keys=("global_steps",))
    if isinstance(value.get("optimizer"), Mapping):
        add_optimizer(builder, value["optimizer"], source)
    for key, item in value.items():
        name = plain_text(key)
        if name in _BOOKKEEPING or item is None or scalar_text(item, source.contents) is not None:
            continue
        add_field(builder, _KINDS.get(name) or field_kind(name), name, item, source)
    add_scalars(builder, value, source)
    return ModelState(
        num_data_ranks=_count(value.get("dp_world_size")),
        num_model_ranks=_count(value.get("mp_world_size")),
        num_skipped_steps=_count(value.get("skipped_steps")),
        holds_optimizer=value.get("param_shapes") is None,
        groups=_groups(value.get("param_shapes")),
    )


def _add_module(builder: CheckpointBuilder, module: Any, source: Source, part: str) -> None:
    if not isinstance(module, Mapping):
        return
    # ZeRO-3 leaves an empty placeholder for each parameter: the weights are in flat fp32 groups.
    held = {}
    for key, item in module.items():
        if not (isinstance(item, TensorRef) and item.shape == (0,)):
            held[f"{plain_text(key)}{part}"] = item
    if len(held) < len(module):
        builder.notes.append(
            f"{source.label}: {len(module) - len(held)} parameters are partitioned: see fp32.*"
        )
    add_parameters(builder, held, source)


def _count(value: object) -> int:
    if isinstance(value, int) and is_count(value):
        return value
    return 0


def _groups(shapes: Any) -> tuple[tuple[Named, ...], ...]:
    """The groups of param_shapes, each in the order of its flat buffer; none if one is odd.

    A single mapping of names to shapes is one group.
    """
    groups = []
    for group in shapes if isinstance(shapes, (list, tuple)) else [shapes]:
        if not isinstance(group, Mapping) or not all(map(_is_shape, group.values())):
            return ()
        groups.append(
            tuple(Named(name=plain_text(name), shape=tuple(shape)) for name, shape in group.items())
        )
    return tuple(groups)


def _is_shape(shape: object) -> bool:
    return isinstance(shape, (tuple, list)) and all(
        is_count(length) and length < 1 << 48 for length in shape
    )
