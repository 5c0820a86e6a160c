"""What the checkpoints of HF Trainer and of Accelerate have in common.

Weights, optimizer, scheduler, RNG, sub-folders.

This module never decides whether a checkpoint is complete: each layout has its own rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, FieldKind, StatedStep, TensorFacts
from spiketriage.nouns.file import StoredFile
from spiketriage.readers.checkpoints.building.folder import json_field, sentence, some, stored_files
from spiketriage.readers.checkpoints.building.optimizer_order import Named
from spiketriage.readers.checkpoints.building.state_tree import (
    Gathered,
    Source,
    add_field,
    add_file,
    add_optimizer,
    add_parameters,
    is_step,
    order_of,
)
from spiketriage.readers.checkpoints.building.weight_files import read_weights
from spiketriage.readers.checkpoints.dcp import layout as dcp
from spiketriage.readers.checkpoints.files.torch_values import TensorRef
from spiketriage.readers.checkpoints.files.torch_zip import read_torch_file
from spiketriage.readers.checkpoints.layouts import deepspeed_zero
from spiketriage.readers.checkpoints.layouts.safetensors_files import NO_CHECKSUM
from spiketriage.readers.json_file import is_count
from spiketriage.readers.look import Look, look, refuse_pointer
from spiketriage.readers.pickles import attribute, key_text

_SAFETENSORS = re.compile(
    r"(?:model|adapter_model|diffusion_pytorch_model)(?:[-_].*)?\.safetensors\Z"
)
_TORCH = re.compile(r"(?:pytorch_model|adapter_model)(?:[-_].*)?\.bin\Z")
_SAFETENSORS_INDEX = re.compile(r"(?:model|adapter_model).*\.safetensors\.index\.json\Z")
_TORCH_INDEX = re.compile(r"(?:pytorch_model|adapter_model).*\.bin\.index\.json\Z")
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


@dataclass(slots=True, kw_only=True)
class Reading:
    """A checkpoint folder as far as it has been read.

    `order` is the model's parameters in module order, if known.
    """

    path: Path
    names: frozenset[str]
    files: tuple[StoredFile, ...]
    gathered: Gathered = field(default_factory=Gathered)
    complete: bool = True
    world_size: int | None = None
    has_weights: bool = False
    order: list[Named] = field(default_factory=list)

    def failed(self, error: EvidenceError) -> None:
        """Note that a part cannot be read."""
        self.gathered.problems.append(sentence(error))
        self.complete = False

    def lacks(self, sentence: str) -> None:
        """Note that the checkpoint is incomplete."""
        self.gathered.problems.append(f"{self.path}: {sentence}")
        self.complete = False

    def matching(self, pattern: re.Pattern[str]) -> dict[int, str]:
        """The files of the folder by the number in their name (0 where the pattern's group is absent)."""
        found = ((pattern.match(name), name) for name in sorted(self.names))
        return {int(match[1] or 0): name for match, name in found if match}


def begin(path: Path) -> Reading:
    """Begin to read the folder `path`.

    Raises:
        EvidenceError: it is no folder, or cannot be read.
    """
    seen = look(path)
    if not seen.is_folder:
        raise EvidenceError(f"{path}: is a file, not a checkpoint folder")
    return Reading(path=path, names=frozenset(seen.names), files=stored_files(path))


def facts(reading: Reading, layout: str) -> CheckpointFacts:
    """What has been read."""
    gathered = reading.gathered
    return CheckpointFacts(
        layout=layout,
        name=reading.path.name,
        path=reading.path,
        stated_steps=tuple(gathered.steps),
        complete=reading.complete,
        world_size=reading.world_size,
        files=reading.files,
        tensors=tuple(gathered.tensors),
        fields=tuple(gathered.fields),
        extents=tuple(gathered.extents),
        globals=tuple(gathered.globals),
        problems=tuple(gathered.problems),
        notes=tuple(gathered.notes),
    )


def holds_weights(seen: Look) -> bool:
    """Whether a folder has weights of a model or an adapter, in whatever form."""
    patterns = (_SAFETENSORS, _TORCH, _SAFETENSORS_INDEX, _TORCH_INDEX, _FSDP)
    return any(pattern.match(name) for name in seen.names for pattern in patterns)


def add_weights(reading: Reading) -> None:
    """Take the model: safetensors if there are any, as the libraries do, else torch.save files.

    And sharded FSDP.
    """
    safetensors = [name for name in reading.names if _SAFETENSORS.match(name)]
    torch = [
        name for name in reading.names if _TORCH.match(name) and not name.startswith(_FSDP_MODEL)
    ]
    indexes = [name for name in reading.names if _SAFETENSORS_INDEX.match(name)]
    torch_indexes = [name for name in reading.names if _TORCH_INDEX.match(name)]
    if safetensors or indexes:
        reading.complete &= _add_named(reading, reading.gathered, safetensors, indexes)
        reading.gathered.notes.append(NO_CHECKSUM)
        if torch or torch_indexes:
            _add_order(reading, torch, torch_indexes)
    elif torch or torch_indexes:
        reading.complete &= _add_named(reading, reading.gathered, torch, torch_indexes)
        reading.order = order_of(reading.gathered)
    reading.has_weights |= bool(safetensors or indexes or torch or torch_indexes)
    full = f"{_FSDP_MODEL}.bin"
    if full in reading.names and not reading.has_weights:
        reading.has_weights = True
        _add_full_model(reading, full)
    for name in sorted(reading.names):
        if _FSDP.match(name) and (reading.path / name).is_dir():
            _add_sharded(reading, name)


def _add_named(
    reading: Reading, into: Gathered, names: Sequence[str], indexes: Sequence[str]
) -> bool:
    """Take weight files.

    The tensors of a second model get its number before their names, which may repeat.
    """
    others = [name for name in names if _OTHER_MODEL.match(name)]
    complete = read_weights(
        into, reading.path, [name for name in names if name not in others], indexes
    )
    for name in sorted(others):
        second = Gathered()
        complete &= read_weights(second, reading.path, [name], ())
        second.tensors = [
            replace(one, name=f"{name.partition('.')[0]}.{one.name}") for one in second.tensors
        ]
        merge(into, second)
    return complete


def _add_order(reading: Reading, names: Sequence[str], indexes: Sequence[str]) -> None:
    """Take from torch.save files, beside safetensors ones of the same model, only what those cannot tell."""
    second = Gathered()
    reading.complete &= read_weights(second, reading.path, names, indexes)
    reading.order = order_of(second)
    reading.gathered.notes.append(
        f"{some(names or indexes)}: the weights a second time; the safetensors files count"
    )
    second.tensors = []
    merge(reading.gathered, second)


def merge(into: Gathered, other: Gathered) -> None:
    """Take all that `other` has gathered."""
    into.tensors += other.tensors
    into.fields += other.fields
    into.steps += other.steps
    into.extents += other.extents
    into.globals.update(other.globals)
    into.problems += other.problems
    into.notes += other.notes


def _add_full_model(reading: Reading, name: str) -> None:
    value = add_torch_file(reading, name)
    if value is not None:
        add_parameters(reading.gathered, value, Source(path=reading.path / name, relative=name))
        reading.order = order_of(reading.gathered)


def _add_sharded(reading: Reading, name: str) -> None:
    """Take a DCP sub-folder: its keys are `model.<name>` and `optimizer.state.<name>.<state>`."""
    try:
        part = dcp.read_part(reading.path, reading.files, under=f"{name}/")
    except EvidenceError as error:
        reading.failed(error)
        return
    reading.complete &= part.complete
    reading.has_weights |= name.startswith(_FSDP_MODEL)
    gathered = reading.gathered
    gathered.tensors += [
        _bare(one) if name.startswith(_FSDP_MODEL) else one for one in part.tensors
    ]
    gathered.fields += part.fields
    gathered.steps += part.steps
    gathered.globals.update(dict.fromkeys(part.globals))
    gathered.problems += part.problems
    gathered.notes += (note for note in part.notes if note != dcp.LOWER_BOUND)


def add_deepspeed(reading: Reading, name: str) -> None:
    """Take a sub-folder that DeepSpeed wrote, with its paths as seen from the checkpoint."""
    try:
        inner = deepspeed_zero.read(reading.path / name)
    except EvidenceError as error:
        reading.failed(error)
        return
    reading.complete &= inner.complete
    reading.has_weights |= bool(inner.tensors)
    if reading.world_size is None:
        reading.world_size = inner.world_size
    merge(reading.gathered, _seen_from_above(inner, name))


def _seen_from_above(inner: CheckpointFacts, name: str) -> Gathered:
    def under(path: str) -> str:
        return f"{name}/{path}"

    return Gathered(
        tensors=[
            replace(
                one, chunks=tuple(replace(chunk, path=under(chunk.path)) for chunk in one.chunks)
            )
            for one in inner.tensors
        ],
        fields=[replace(one, path=under(one.path)) for one in inner.fields],
        steps=[replace(one, source=under(one.source)) for one in inner.stated_steps],
        extents=[replace(one, path=under(one.path)) for one in inner.extents],
        globals=dict.fromkeys(inner.globals),
        problems=list(inner.problems),
        notes=list(inner.notes),
    )


def _bare(tensor: TensorFacts) -> TensorFacts:
    return replace(tensor, name=tensor.name.removeprefix("model."))


def add_torch_file(reading: Reading, name: str) -> Any:
    """The value in a torch.save file of the folder, None if it cannot be read, which makes it incomplete."""
    source = Source(path=reading.path / name, relative=name)
    num_problems = len(reading.gathered.problems)
    try:
        refuse_pointer(
            source.path, look(source.path).head
        )  # which also refuses a pipe: it would wait for a writer
        file = read_torch_file(source.path)
        add_file(reading.gathered, file, source)
    except EvidenceError as error:
        reading.failed(error)
        return None
    reading.complete &= len(reading.gathered.problems) == num_problems
    return file.value


def add_state(reading: Reading, name: str, kind: FieldKind, *, rank: int | None = None) -> Any:
    """Take a torch.save file as one piece of state, named by the file's stem; returns its value."""
    value = add_torch_file(reading, name)
    if value is not None:
        source = Source(path=reading.path / name, relative=name, rank=rank)
        add_field(reading.gathered, kind, name.partition(".")[0], value, source)
    return value


def add_rng(reading: Reading, ranks: Mapping[int, str]) -> dict[int, int]:
    """Take the generators in the file of each rank, one field each.

    `rng.python`, `rng.numpy`, `rng.cpu` ….

    Returns the `step` of each rank's file, where there is one: it is no generator, but stands
    beside them.
    """
    steps = {}
    for rank, name in sorted(ranks.items()):
        value = add_torch_file(reading, name)
        source = Source(path=reading.path / name, relative=name, rank=rank)
        for key, item in value.items() if isinstance(value, Mapping) else (("", value),):
            text = key_text(key)
            if text == "step" and is_count(item):
                steps[rank] = item
                add_field(reading.gathered, "progress", "micro_steps", {"step": item}, source)
            elif item is not None:
                add_field(reading.gathered, "rng", f"rng.{text}".rstrip("."), item, source)
    return steps


def add_optimizer_file(reading: Reading, name: str) -> None:
    """Take an optimizer's file, its tensors with the parameter's names where those can be proved."""
    value = add_torch_file(reading, name)
    if value is None:
        return
    source = Source(path=reading.path / name, relative=name)
    if not isinstance(attribute(value, "state"), Mapping):
        reading.lacks(f"{name} holds no optimizer state")
        return
    order = reading.order or _order_by_shape(value, reading.gathered.tensors)
    add_optimizer(reading.gathered, value, source, prefix=name.partition(".")[0], order=order)


def _order_by_shape(optimizer: Any, tensors: Sequence[TensorFacts]) -> list[Named]:
    """The parameters in the optimizer's order, if no two of them have the same shape.

    Safetensors keeps no order.
    """
    names = {one.shape: one.name for one in tensors if one.role == "parameter"}
    groups = attribute(optimizer, "param_groups")
    if isinstance(groups, (list, tuple)):
        listed = [attribute(group, "params") for group in groups]
    else:
        listed = []
    keys = [key for params in listed if isinstance(params, (list, tuple)) for key in params]
    shapes = [_shape(attribute(optimizer, "state"), key) for key in keys]
    num_parameters = sum(one.role == "parameter" for one in tensors)
    if len({*shapes}) != len(shapes) or len(names) != num_parameters or {*shapes} != names.keys():
        return []
    return [Named(name=names[shape], shape=shape) for shape in shapes if shape is not None]


def _shape(state: Any, key: Any) -> tuple[int, ...] | None:
    if isinstance(key, int) and isinstance(state, Mapping):
        entry = state.get(key)
    else:
        entry = None
    if isinstance(entry, Mapping):
        shapes = [item.shape for item in entry.values() if isinstance(item, TensorRef)]
    else:
        shapes = []
    return max(shapes, key=len, default=None)


def add_settings(reading: Reading) -> None:
    """Take the model's and the tokenizer's settings."""
    for name in SETTINGS:
        if name in reading.names:
            one = json_field(reading.path, name, "config", reading.gathered.problems)
            if one is not None:
                reading.gathered.fields.append(one)


def scheduler_step(value: Any) -> int | None:
    """How many steps a scheduler's state says it has made.

    None for one that counts something else.
    """
    step = attribute(value, "last_epoch")
    if attribute(value, "num_bad_epochs") is not None or not is_step(
        step
    ):  # ReduceLROnPlateau counts evaluations
        return None
    return int(step)


def optimizer_step(reading: Reading, name: str) -> StatedStep | None:
    """What `add_optimizer_file` has found the optimizer in the file `name` to state."""
    return next((one for one in reading.gathered.steps if one.source.startswith(f"{name}: ")), None)
