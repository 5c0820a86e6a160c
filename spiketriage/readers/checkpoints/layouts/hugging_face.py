"""What checkpoints of HF Trainer and Accelerate share: weights, optimizer, scheduler, RNG.

This module never decides whether a checkpoint is complete: each layout has its own rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, FieldKind, StatedStep, TensorFacts
from spiketriage.readers.checkpoints.building import weight_files
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.building.optimizer_order import Named
from spiketriage.readers.checkpoints.building.optimizer_state import add_optimizer, order_of
from spiketriage.readers.checkpoints.building.state_tree import (
    Source,
    add_field,
    add_file,
    add_json_field,
    add_parameters,
    is_step,
)
from spiketriage.readers.checkpoints.dcp import layout as dcp
from spiketriage.readers.checkpoints.files.torch_values import TensorRef
from spiketriage.readers.checkpoints.files.torch_zip import read_torch_file
from spiketriage.readers.checkpoints.layouts import deepspeed_zero
from spiketriage.readers.checkpoints.layouts.safetensors_files import NO_CHECKSUM
from spiketriage.readers.inert import attribute, plain_text
from spiketriage.readers.json_file import is_count
from spiketriage.readers.look import Look, look, refuse_pointer

_SAFETENSORS = re.compile(
    r"(?:model|adapter_model|diffusion_pytorch_model)(?:[-_].*)?\.safetensors\Z"
)
_TORCH = re.compile(r"\A(?:pytorch_model|adapter_model)(?:[-_].*)?\.bin\Z")
_SAFETENSORS_INDEX = re.compile(r"\A(?:model|adapter_model).*\.safetensors\.index\.json\Z")
_TORCH_INDEX = re.compile(r"\A(?:pytorch_model|adapter_model).*\.bin\.index\.json\Z")
_OTHER_MODEL = re.compile(r"(?:model|pytorch_model)_(\d+)\.(?:safetensors|bin)\Z")
_FSDP = re.compile(r"(?:pytorch_model_fsdp|optimizer)_\d+\Z")
_FSDP_MODEL = "pytorch_model_fsdp"
SETTINGS = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


def holds_weights(seen: Look) -> bool:
    """Whether a folder has weights of a model or an adapter, in whatever form."""
    for pattern in (_SAFETENSORS, _TORCH, _SAFETENSORS_INDEX, _TORCH_INDEX, _FSDP):
        if any(map(pattern.match, seen.names)):
            return True
    return False


def add_weights(builder: CheckpointBuilder) -> bool:
    """Take the model; whether there is one, readable or not.

    Safetensors files count if there are any, as for the libraries, else torch.save files; sharded
    FSDP weights come on top.
    """
    safetensors = [name for name in builder.names if _SAFETENSORS.match(name)]
    torch = [name for name in builder.names if _is_torch(name)]
    indexes = [name for name in builder.names if _SAFETENSORS_INDEX.match(name)]
    torch_indexes = [name for name in builder.names if _TORCH_INDEX.match(name)]
    has_weights = bool(safetensors or indexes or torch or torch_indexes)
    if safetensors or indexes:
        _add_named(builder, safetensors, indexes)
        builder.notes.append(NO_CHECKSUM)
        if torch or torch_indexes:
            _add_order(builder, torch, torch_indexes)
    elif has_weights:
        _add_named(builder, torch, torch_indexes)
        builder.order = order_of(builder)
    full = f"{_FSDP_MODEL}.bin"
    if full in builder.names and not has_weights:
        has_weights = True
        _add_full_model(builder, full)
    for name in builder.names:
        if _FSDP.match(name) and (builder.path / name).is_dir():
            has_weights |= _add_sharded(builder, name)
    return has_weights


def _is_torch(name: str) -> bool:
    return _TORCH.match(name) is not None and not name.startswith(_FSDP_MODEL)


def _add_named(builder: CheckpointBuilder, names: Sequence[str], indexes: Sequence[str]) -> None:
    """Take weight files; a second model's tensors, whose names may repeat, get its number."""
    others = [name for name in names if _OTHER_MODEL.match(name)]
    weight_files.add_weights(builder, [name for name in names if name not in others], indexes)
    for name in others:
        second = builder.part()
        weight_files.add_weights(second, [name], ())
        stem = name.partition(".")[0]
        renamed = []
        for tensor in second.tensors:
            renamed.append(replace(tensor, name=f"{stem}.{tensor.name}"))
        second.tensors = renamed
        builder.add(second)


def _add_order(builder: CheckpointBuilder, names: Sequence[str], indexes: Sequence[str]) -> None:
    """Take from torch.save files what the safetensors files of the same model cannot tell."""
    second = builder.part()
    weight_files.add_weights(second, names, indexes)
    builder.order = order_of(second)
    builder.notes.append(
        f"{some(names or indexes)}: the weights a second time; the safetensors files count"
    )
    second.tensors = []
    builder.add(second)


def _add_full_model(builder: CheckpointBuilder, name: str) -> None:
    value = add_torch_file(builder, name)
    if value is not None:
        add_parameters(builder, value, Source(path=builder.path / name, relative=name))
        builder.order = order_of(builder)


def _add_sharded(builder: CheckpointBuilder, name: str) -> bool:
    """Take a DCP sub-folder; whether it holds weights, readable or not.

    Its keys are `model.<name>` and `optimizer.state.<name>.<state>`.
    """
    part = dcp.read_inside(builder, f"{name}/")
    dcp.drop_lower_bound(part)
    is_model = name.startswith(_FSDP_MODEL) and dcp.claims(look(builder.path / name)) > 0
    if is_model:
        bare = []
        for tensor in part.tensors:
            bare.append(replace(tensor, name=tensor.name.removeprefix("model.")))
        part.tensors = bare
    builder.add(part)
    return is_model


def add_deepspeed(builder: CheckpointBuilder, name: str) -> bool:
    """Take a sub-folder that DeepSpeed wrote; whether it holds weights."""
    try:
        inner = deepspeed_zero.read(builder.path / name)
    except EvidenceError as error:
        builder.failed(error)
        return False
    if builder.world_size is None:
        builder.world_size = inner.world_size
    builder.add(_seen_from_above(builder, inner, name))
    return bool(inner.tensors)


def _seen_from_above(
    builder: CheckpointBuilder, inner: CheckpointFacts, folder: str
) -> CheckpointBuilder:
    """A checkpoint in a sub-folder as a part of the one around it, with the paths of that."""
    part = builder.part()
    part.complete = inner.complete
    part.globals = dict.fromkeys(inner.globals)
    part.problems += inner.problems
    part.notes += inner.notes
    for stated in inner.stated_steps:
        part.steps.append(replace(stated, source=f"{folder}/{stated.source}"))
    for field in inner.fields:
        part.fields.append(replace(field, path=f"{folder}/{field.path}"))
    for extent in inner.extents:
        part.extents.append(replace(extent, path=f"{folder}/{extent.path}"))
    for tensor in inner.tensors:
        chunks = [replace(chunk, path=f"{folder}/{chunk.path}") for chunk in tensor.chunks]
        part.tensors.append(replace(tensor, chunks=tuple(chunks)))
    return part


def add_torch_file(builder: CheckpointBuilder, name: str) -> Any:
    """The value in a torch.save file of the folder; None, and incomplete, if it cannot be read."""
    source = Source(path=builder.path / name, relative=name)
    num_problems = len(builder.problems)
    try:
        # Looking first refuses a pipe, which would wait for a writer, and a pointer.
        refuse_pointer(source.path, look(source.path).head)
        file = read_torch_file(source.path)
        add_file(builder, file, source)
    except EvidenceError as error:
        builder.failed(error)
        return None
    builder.complete &= len(builder.problems) == num_problems
    return file.value


def add_state(
    builder: CheckpointBuilder, name: str, kind: FieldKind, *, rank: int | None = None
) -> Any:
    """Take a torch.save file as one piece of state, named by the file's stem; returns its value."""
    value = add_torch_file(builder, name)
    if value is not None:
        source = Source(path=builder.path / name, relative=name, rank=rank)
        add_field(builder, kind, name.partition(".")[0], value, source)
    return value


def add_rng(builder: CheckpointBuilder, ranks: Mapping[int, str]) -> dict[int, int]:
    """Take the generators in the file of each rank as fields: `rng.python`, `rng.numpy` ….

    Returns the `step` of each rank's file, where there is one: it is no generator, but stands
    beside them.
    """
    steps = {}
    for rank, name in sorted(ranks.items()):
        value = add_torch_file(builder, name)
        source = Source(path=builder.path / name, relative=name, rank=rank)
        generators = value if isinstance(value, Mapping) else {"": value}
        for key, item in generators.items():
            text = plain_text(key)
            if text == "step" and is_count(item):
                steps[rank] = item
                add_field(builder, "progress", "micro_steps", {"step": item}, source)
            elif item is not None:
                add_field(builder, "rng", f"rng.{text}".rstrip("."), item, source)
    return steps


def add_optimizer_file(builder: CheckpointBuilder, name: str) -> None:
    """Take an optimizer's file, with the names of parameters where those can be proved."""
    value = add_torch_file(builder, name)
    if value is None:
        return
    source = Source(path=builder.path / name, relative=name)
    if not isinstance(attribute(value, "state"), Mapping):
        builder.lacks(f"{name} holds no optimizer state")
        return
    order = builder.order or _order_by_shape(value, builder.tensors)
    add_optimizer(builder, value, source, prefix=name.partition(".")[0], order=order)


def _order_by_shape(optimizer: Any, tensors: Sequence[TensorFacts]) -> list[Named]:
    """The parameters in the optimizer's order, if no two of them have the same shape.

    Safetensors keeps no order.
    """
    parameters = [tensor for tensor in tensors if tensor.role == "parameter"]
    names = {tensor.shape: tensor.name for tensor in parameters}
    shapes = _shapes_in_order(optimizer)
    if len(set(shapes)) != len(shapes) or len(names) != len(parameters):
        return []
    if set(shapes) != names.keys():
        return []
    return [Named(name=names[shape], shape=shape) for shape in shapes if shape is not None]


def _shapes_in_order(optimizer: Any) -> list[tuple[int, ...] | None]:
    """The shape behind each key, in the order of the optimizer's groups; None where it has none."""
    state, groups = attribute(optimizer, "state"), attribute(optimizer, "param_groups")
    shapes: list[tuple[int, ...] | None] = []
    for group in groups if isinstance(groups, (list, tuple)) else ():
        keys = attribute(group, "params")
        for key in keys if isinstance(keys, (list, tuple)) else ():
            shapes.append(_shape(state, key))
    return shapes


def _shape(state: Any, key: Any) -> tuple[int, ...] | None:
    if not isinstance(key, int) or not isinstance(state, Mapping):
        return None
    entry = state.get(key)
    if not isinstance(entry, Mapping):
        return None
    shapes = [item.shape for item in entry.values() if isinstance(item, TensorRef)]
    return max(shapes, key=len, default=None)


def add_settings(builder: CheckpointBuilder) -> None:
    """Take the model's and the tokenizer's settings."""
    for name in SETTINGS:
        if name in builder.names:
            add_json_field(builder, name, "config")


def scheduler_step(value: Any) -> int | None:
    """How many steps a scheduler's state says it has made; None for one that counts otherwise."""
    step = attribute(value, "last_epoch")
    counts_evaluations = attribute(value, "num_bad_epochs") is not None  # ReduceLROnPlateau
    if counts_evaluations or not is_step(step):
        return None
    return int(step)


def optimizer_step(builder: CheckpointBuilder, name: str) -> StatedStep | None:
    """What `add_optimizer_file` has found the optimizer in the file `name` to state."""
    for stated in builder.steps:
        if stated.source.startswith(f"{name}: "):
            return stated
    return None
