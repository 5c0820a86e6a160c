"""The tree that a checkpoint file unpickles to, as facts: tensors with their roles, fields with
digests, stated steps.

This module never reads a tensor larger than `state_fields.SMALL_BYTES` and never guesses whose an
optimizer tensor is.

For the layouts that have torch.save files (a `TorchFile` from `torch_zip.read_torch_file`):

    gathered = Gathered()
    source = Source(path=folder / "x.pt", relative="x.pt", rank=None)     # relative: as in
    facts.Chunk.path, may be ""
    gather(gathered, file, source)                          # classify a whole checkpoint by its
    top-level keys, or:
    add_file(gathered, file, source)                        # only CRC extents, globals, problems
    add_parameters(gathered, file.value, source)            # a state_dict or a module, as
    TensorFacts of parameters
    add_optimizer(gathered, file.value, source, prefix="optimizer")   # {"state":…,
    "param_groups":…}, after parameters
    add_field(gathered, "scheduler", "scheduler", file.value, source)     # its digest and scalars
    add_steps(gathered, file.value, source, under="scheduler.pt")         # global_step, iteration,
    last_epoch, …
    order_of(gathered)                                      # list[Named]: parameters in module
    order

`add_optimizer` maps integer keys with `optimizer_order.assign` against `order` (default:
`order_of(gathered)`), else
leaves `parameter=""` and adds a note. Its tensors are named `<prefix>.state.<parameter or
key>.<state>`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from spiketriage.nouns.checkpoint import (
    Chunk,
    Extent,
    FieldFacts,
    FieldKind,
    StatedStep,
    TensorFacts,
    TensorRole,
)
from spiketriage.readers.checkpoints.building import state_fields
from spiketriage.readers.checkpoints.building.optimizer_names import field_kind
from spiketriage.readers.checkpoints.building.optimizer_order import Named, assign
from spiketriage.readers.checkpoints.building.state_fields import Contents
from spiketriage.readers.checkpoints.files.torch_values import TensorRef
from spiketriage.readers.checkpoints.files.torch_zip import TorchFile, ZipRecord, extents
from spiketriage.readers.json_file import is_count
from spiketriage.readers.pickles import Stub, attribute, key_text, walk

STEP_KEYS = (
    "global_step",
    "global_steps",
    "iteration",
    "step",
    "step_count",
    "iter_num",
    "last_epoch",
)
MODEL_KEYS = frozenset(
    {"model", "state_dict", "model_state_dict", "module", "model_state", "net", "network"}
)
_SAME_SHAPE = frozenset(
    {
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "momentum_buffer",
        "square_avg",
        "sum",
        "acc_delta",
        "exp_inf",
    }
)
_MODULE_PARTS = frozenset({"_parameters", "_modules", "_buffers"})
_NO_KINDS: Mapping[str, FieldKind] = MappingProxyType({})
_BUFFERS = (".running_mean", ".running_var", ".inv_freq")
_MAX_STEPS_READ = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file of a checkpoint: where it is, its name in the checkpoint, and whose state it holds."""

    path: Path
    relative: str
    rank: int | None = None

    @property
    def label(self) -> str:
        """What to call it in a sentence."""
        return self.relative or self.path.name

    @property
    def contents(self) -> Contents:
        """Its small tensors."""
        return Contents(path=self.path)


@dataclass(slots=True, kw_only=True)
class Gathered:
    """What has been found in the files of a checkpoint so far."""

    tensors: list[TensorFacts] = field(default_factory=list)
    fields: list[FieldFacts] = field(default_factory=list)
    steps: list[StatedStep] = field(default_factory=list)
    extents: list[Extent] = field(default_factory=list)
    globals: dict[str, None] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def gather(
    gathered: Gathered,
    file: TorchFile,
    source: Source,
    *,
    kinds: Mapping[str, FieldKind] = _NO_KINDS,
) -> None:
    """Take everything in a file, classified by its top-level keys.

    `kinds` says what `field_kind` cannot know.
    """
    add_file(gathered, file, source)
    value = file.value
    if _is_optimizer(value):
        add_optimizer(gathered, value, source)
        return
    if not isinstance(value, Mapping) or _is_state_dict(value):
        add_parameters(gathered, value, source)
        return
    # Parameters first: the optimizer's keys are mapped to them.
    for key, item in sorted(value.items(), key=lambda pair: pair[0] not in MODEL_KEYS):
        _add_entry(gathered, key_text(key), item, source, kinds)
    add_steps(gathered, value, source)
    flat = {
        str(key): item
        for key, item in value.items()
        if state_fields.scalar_text(item, source.contents) is not None
    }
    if flat:
        add_field(gathered, "progress", "progress", flat, source)


def _add_entry(
    gathered: Gathered, key: str, item: Any, source: Source, kinds: Mapping[str, FieldKind]
) -> None:
    """One top-level entry of a checkpoint."""
    parts = (
        item if isinstance(item, (list, tuple)) and item and all(map(_is_optimizer, item)) else None
    )
    loose = isinstance(item, TensorRef) and item.shape and item.dtype.startswith(("F", "BF"))
    if loose and field_kind(key) == "other":
        add_parameters(gathered, {key: item}, source)
    elif key in MODEL_KEYS and not _is_optimizer(item):
        add_parameters(gathered, item, source)
    elif _is_optimizer(item):
        add_optimizer(gathered, item, source, prefix=key)
    elif parts is not None:
        for number, part in enumerate(parts):
            add_optimizer(
                gathered, part, source, prefix=key if len(parts) == 1 else f"{key}.{number}"
            )
    elif state_fields.scalar_text(item, source.contents) is None and item is not None:
        kind = kinds.get(key) or field_kind(key)
        add_field(gathered, kind, key, item, source)
        if kind != "rng":
            add_tensors(gathered, item, source, "other", key)


def add_file(gathered: Gathered, file: TorchFile, source: Source) -> None:
    """Take what a file itself vouches for, the names that it asked for, and what is wrong with it."""
    owners: dict[str, list[str]] = {}
    for leaf in walk(file.value):
        if isinstance(leaf.value, TensorRef):
            owners.setdefault(leaf.value.storage_key, []).append(".".join(leaf.path))

    def label(record: ZipRecord) -> str:
        if "/data/" in record.name:
            names = owners.get(record.name.rpartition("/")[2], ())
        else:
            names = ()
        if len(names) > 1:
            more = f" and {len(names) - 1} more"
        else:
            more = ""
        if names:
            return f"tensor {names[0]}{more}"
        return f"record {record.name}"

    gathered.extents += extents(file, source.relative, label)
    gathered.globals.update(dict.fromkeys(file.globals))
    gathered.problems += file.problems


def add_parameters(
    gathered: Gathered, value: Any, source: Source, *, prefix: str = "", suffix: str = ""
) -> None:
    """Take the tensors of a state_dict, or of a whole module, as parameters.

    Its other state as fields.
    """
    add_tensors(gathered, value, source, "parameter", prefix, suffix=suffix)
    if isinstance(value, Mapping):
        for key, item in value.items():
            if (
                isinstance(key, str)
                and not isinstance(item, (TensorRef, Mapping))
                and "_extra_state" in key
            ):
                add_field(gathered, "fp8", key, item, source)


def add_optimizer(
    gathered: Gathered,
    value: Any,
    source: Source,
    *,
    prefix: str = "optimizer",
    order: Sequence[Named] | None = None,
    suffix: str = "",
) -> None:
    """Take an optimizer's state_dict.

    `state` by parameter, `param_groups` as a field, and the step that it states.
    """
    state, groups = attribute(value, "state"), attribute(value, "param_groups")
    if not isinstance(state, Mapping):
        return
    owners = _owners(gathered, state, groups, order_of(gathered) if order is None else order)
    if owners is None:
        gathered.notes.append(
            f"{source.label}: which parameter the keys of {prefix}.state mean is ambiguous"
        )
    for key, item in state.items():
        if isinstance(key, int):
            owner = (owners or {}).get(key, "")
        else:
            owner = key_text(key)
        label = owner or key_text(key)
        add_tensors(
            gathered,
            item,
            source,
            "optimizer",
            f"{prefix}.state.{label}",
            parameter=owner,
            suffix=suffix,
        )
    if groups is not None:
        add_field(gathered, "config", f"{prefix}.param_groups", groups, source)
    _add_optimizer_steps(gathered, state, source, prefix)


def add_field(gathered: Gathered, kind: FieldKind, name: str, value: Any, source: Source) -> None:
    """Take a piece of state with its digest and its scalars."""
    one = state_fields.field(
        kind, name, value, rank=source.rank, path=source.relative, contents=source.contents
    )
    gathered.fields.append(one)


def add_steps(
    gathered: Gathered,
    value: Any,
    source: Source,
    *,
    under: str = "",
    keys: Sequence[str] = STEP_KEYS,
) -> None:
    """Take every step that the top level of `value` states under a well-known key."""
    for key in keys:
        step = source.contents.scalar(attribute(value, key))
        if is_step(step):
            name = f"{under}.{key}" if under else key
            gathered.steps.append(StatedStep(source=f"{source.label}: {name}", step=int(step or 0)))


def is_step(value: object) -> bool:
    """Whether a number can be a count of steps."""
    if isinstance(value, float):
        return value.is_integer() and 0 <= value < 1 << 53
    return is_count(value) and isinstance(value, int) and value < 1 << 63


def order_of(gathered: Gathered) -> list[Named]:
    """The floating-point parameters so far in module order, each storage once (a tied weight has one owner)."""
    seen: set[tuple[str, int, int]] = set()
    found = []
    for tensor in gathered.tensors:
        floating = tensor.dtype.startswith(("F", "BF")) and not tensor.name.endswith(_BUFFERS)
        if tensor.role != "parameter" or not floating:
            continue
        places = set()
        for chunk in tensor.chunks:
            if chunk.end > chunk.start:
                places.add((chunk.path, chunk.start, chunk.end))
        if places and places <= seen:
            continue
        seen |= places
        found.append(Named(name=tensor.name, shape=tensor.shape))
    return found


def _owners(
    gathered: Gathered, state: Mapping[Any, Any], groups: Any, order: Sequence[Named]
) -> Mapping[int, str] | None:
    """Names by integer key, None if they are ambiguous.

    Nothing for an optimizer that has names itself.
    """
    if not any(isinstance(key, int) for key in state):
        return {}
    listed = (
        [attribute(group, "params") for group in groups]
        if isinstance(groups, (list, tuple))
        else []
    )
    if not listed or not all(
        isinstance(keys, (list, tuple)) and all(map(is_count, keys)) for keys in listed
    ):
        return None
    if len({key for keys in listed for key in keys}) != sum(map(len, listed)):
        return None
    names = [attribute(group, "param_names") for group in groups]
    if all(
        isinstance(some, (list, tuple)) and len(some) == len(keys)
        for some, keys in zip(names, listed, strict=True)
    ):
        return {
            key: str(name)
            for keys, some in zip(listed, names, strict=True)
            for key, name in zip(keys, some, strict=True)
        }
    shapes = {
        key: tensor.shape
        for key, item in state.items()
        if isinstance(key, int) and isinstance(item, Mapping)
        for name, tensor in item.items()
        if name in _SAME_SHAPE and isinstance(tensor, TensorRef)
    }
    return assign(order, listed, shapes) or None


def _add_optimizer_steps(
    gathered: Gathered, state: Mapping[Any, Any], source: Source, prefix: str
) -> None:
    contents = source.contents
    seen: dict[int, str] = {}
    for number, (key, item) in enumerate(state.items()):
        if number == _MAX_STEPS_READ:
            break
        step = contents.scalar(attribute(item, "step"))
        if is_step(step):
            seen.setdefault(int(step or 0), key_text(key))
    if seen:
        gathered.steps.append(StatedStep(source=f"{source.label}: {prefix} step", step=max(seen)))
    if len(seen) > 1:
        told = ", ".join(f"{step} (state {key})" for step, key in sorted(seen.items())[:3])
        gathered.notes.append(f"{source.label}: the steps of {prefix}.state disagree: {told}")


def add_tensors(
    gathered: Gathered,
    value: Any,
    source: Source,
    role: TensorRole,
    prefix: str,
    *,
    parameter: str = "",
    suffix: str = "",
) -> None:
    """Take every tensor below `value`, named by its dotted path between `prefix` and `suffix`."""
    for name, tensor in _named(value, prefix):
        add_tensor(gathered, name + suffix, tensor, source, role, parameter=parameter)


def add_tensor(
    gathered: Gathered,
    name: str,
    tensor: TensorRef,
    source: Source,
    role: TensorRole,
    *,
    parameter: str = "",
) -> None:
    """Take one tensor; one that is not row-major on disk has no chunks."""
    chunks: tuple[Chunk, ...] = ()
    if tensor.start is not None and tensor.end is not None:
        origin = (0,) * len(tensor.shape)
        chunk = Chunk(
            path=source.relative,
            start=tensor.start,
            end=tensor.end,
            offset=origin,
            shape=tensor.shape,
        )
        chunks = (chunk,) if tensor.contiguous else ()
        if not tensor.contiguous:
            note = f"{source.label}: the places of transposed or expanded tensors are not given"
            gathered.notes += [note] if note not in gathered.notes[-5:] else []
    gathered.tensors.append(
        TensorFacts(
            name=name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            role=role,
            chunks=chunks,
            parameter=parameter,
        )
    )


def _named(value: Any, prefix: str) -> Iterator[tuple[str, TensorRef]]:
    for leaf in walk(value):
        if isinstance(leaf.value, TensorRef):
            path = (
                [part for part in leaf.path if part not in _MODULE_PARTS]
                if isinstance(value, Stub)
                else leaf.path
            )
            yield ".".join((prefix, *path) if prefix else path), leaf.value


def _is_state_dict(value: Mapping[Any, Any]) -> bool:
    return all(
        isinstance(item, TensorRef)
        for key, item in value.items()
        if "_extra_state" not in key_text(key)
    )


def _is_optimizer(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("state"), Mapping)
        and "param_groups" in value
    )
