"""Tells the parts of a whole checkpoint file apart by their top-level keys.

This module never decides what a layout can know better: `kinds` of a layout come before its own
guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from spiketriage.nouns.checkpoint import FieldKind
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder
from spiketriage.readers.checkpoints.building.optimizer_names import field_kind
from spiketriage.readers.checkpoints.building.optimizer_state import add_optimizer, is_optimizer
from spiketriage.readers.checkpoints.building.state_fields import scalar_text
from spiketriage.readers.checkpoints.building.state_tree import (
    Source,
    add_field,
    add_file,
    add_parameters,
    add_steps,
    add_tensors,
)
from spiketriage.readers.checkpoints.files.torch_values import TensorRef
from spiketriage.readers.checkpoints.files.torch_zip import TorchFile
from spiketriage.readers.inert import plain_text

MODEL_KEYS = frozenset(
    {"model", "state_dict", "model_state_dict", "module", "model_state", "net", "network"}
)
_NO_KINDS: Mapping[str, FieldKind] = MappingProxyType({})


def add_classified(
    builder: CheckpointBuilder,
    file: TorchFile,
    source: Source,
    *,
    kinds: Mapping[str, FieldKind] = _NO_KINDS,
) -> None:
    """Take everything in a file; `kinds` says what a top-level key is where its name does not."""
    add_file(builder, file, source)
    value = file.value
    if is_optimizer(value):
        add_optimizer(builder, value, source)
        return
    if not isinstance(value, Mapping) or _is_state_dict(value):
        add_parameters(builder, value, source)
        return
    # Parameters first: the optimizer's keys are matched with them.
    for key, item in sorted(value.items(), key=lambda pair: pair[0] not in MODEL_KEYS):
        _add_entry(builder, plain_text(key), item, source, kinds)
    add_steps(builder, value, source)
    add_scalars(builder, value, source)


def add_scalars(builder: CheckpointBuilder, value: Mapping[Any, Any], source: Source) -> None:
    """Take the scalars right in `value` together as one field, if there are any."""
    flat = {}
    for key, item in value.items():
        if scalar_text(item, source.contents) is not None:
            flat[plain_text(key)] = item
    if flat:
        add_field(builder, "progress", "progress", flat, source)


def _add_entry(
    builder: CheckpointBuilder,
    key: str,
    item: Any,
    source: Source,
    kinds: Mapping[str, FieldKind],
) -> None:
    """Take one top-level entry of a checkpoint."""
    if _is_loose_parameter(key, item):
        add_parameters(builder, {key: item}, source)
    elif is_optimizer(item):
        add_optimizer(builder, item, source, prefix=key)
    elif key in MODEL_KEYS:
        add_parameters(builder, item, source)
    elif isinstance(item, (list, tuple)) and item and all(map(is_optimizer, item)):
        for number, optimizer in enumerate(item):
            prefix = key if len(item) == 1 else f"{key}.{number}"
            add_optimizer(builder, optimizer, source, prefix=prefix)
    elif item is not None and scalar_text(item, source.contents) is None:
        kind = kinds.get(key) or field_kind(key)
        add_field(builder, kind, key, item, source)
        if kind != "rng":
            add_tensors(builder, item, source, "other", key)


def _is_loose_parameter(key: str, item: Any) -> bool:
    """Whether a floating-point tensor lies right in the checkpoint, and is no other known state."""
    if not isinstance(item, TensorRef) or not item.shape or field_kind(key) != "other":
        return False
    return item.dtype.startswith(("F", "BF"))


def _is_state_dict(value: Mapping[Any, Any]) -> bool:
    for key, item in value.items():
        if not isinstance(item, TensorRef) and "_extra_state" not in plain_text(key):
            return False
    return True
