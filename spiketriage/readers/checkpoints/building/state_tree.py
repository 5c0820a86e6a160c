"""Turns what a checkpoint's files hold into facts: tensors with their roles, fields, stated steps.

This module never reads a tensor larger than `state_fields.SMALL_BYTES` and never guesses whose an
optimizer's tensor is.

A layout with torch.save files calls, for each `TorchFile` that it has opened,

    source = Source(path=folder / "x.pt", relative="x.pt")   where the file is, and its name inside
    add_file(builder, file, source)                          CRC extents, names asked for, damage

and then for its parts

    add_parameters(builder, value, source)                   a state_dict or a whole module
    optimizer_state.add_optimizer(builder, value, source)    {"state": …, "param_groups": …}
    add_field(builder, kind, name, value, source)            any other state: digest and scalars
    add_steps(builder, value, source)                        global_step, iteration, last_epoch …

or `classification.add_classified(builder, file, source)`, which tells the parts apart by their
keys. Parameters come before the optimizer, whose integer keys are matched with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spiketriage.digests import of_bytes
from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import (
    Chunk,
    FieldFacts,
    FieldKind,
    StatedStep,
    TensorFacts,
    TensorRole,
)
from spiketriage.nouns.listing import listed
from spiketriage.readers.checkpoints.building import state_fields
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder
from spiketriage.readers.checkpoints.building.folder import read_small, sentence
from spiketriage.readers.checkpoints.building.state_fields import Contents
from spiketriage.readers.checkpoints.files.torch_values import TensorRef
from spiketriage.readers.checkpoints.files.torch_zip import TorchFile, ZipRecord, extents
from spiketriage.readers.inert import Stub, attribute, walk
from spiketriage.readers.json_file import is_count, parse_object

STEP_KEYS = (
    "global_step",
    "global_steps",
    "iteration",
    "step",
    "step_count",
    "iter_num",
    "last_epoch",
)
_MODULE_PARTS = frozenset({"_parameters", "_modules", "_buffers"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file of a checkpoint: where it is, its name in the checkpoint, and whose state it holds.

    `relative` is empty where the checkpoint is that one file.
    """

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


def add_file(builder: CheckpointBuilder, file: TorchFile, source: Source) -> None:
    """Take what a file vouches for, the names that its pickle asked for, and what is damaged."""
    owners: dict[str, list[str]] = {}
    for leaf in walk(file.value):
        if isinstance(leaf.value, TensorRef):
            owners.setdefault(leaf.value.storage_key, []).append(".".join(leaf.path))

    def label(record: ZipRecord) -> str:
        names = []
        if "/data/" in record.name:
            names = owners.get(record.name.rpartition("/")[2], [])
        if not names:
            return f"record {record.name}"
        return f"tensor {listed(names, most=1)}"

    builder.extents += extents(file, source.relative, label)
    builder.globals.update(dict.fromkeys(file.globals))
    builder.problems += file.problems


def add_parameters(
    builder: CheckpointBuilder, value: Any, source: Source, *, prefix: str = "", suffix: str = ""
) -> None:
    """Take the tensors of a state_dict or a whole module as parameters; FP8 state as fields."""
    add_tensors(builder, value, source, "parameter", prefix, suffix=suffix)
    if not isinstance(value, Mapping):
        return
    for key, item in value.items():
        is_extra = isinstance(key, str) and "_extra_state" in key
        if is_extra and not isinstance(item, (TensorRef, Mapping)):
            add_field(builder, "fp8", key, item, source)


def add_field(
    builder: CheckpointBuilder, kind: FieldKind, name: str, value: Any, source: Source
) -> None:
    """Take a piece of state with its digest and its scalars."""
    field = state_fields.field(
        kind, name, value, rank=source.rank, path=source.relative, contents=source.contents
    )
    builder.fields.append(field)


def add_json_field(builder: CheckpointBuilder, name: str, kind: FieldKind) -> bool:
    """Take a JSON file of the folder as a field; False, and a problem, if it cannot be read."""
    path = builder.path / name
    try:
        data = read_small(path)
        value = parse_object(path, data)
    except EvidenceError as error:
        builder.problems.append(sentence(error))
        return False
    # a list is a history, or the like of it, and no scalar
    short = {key: item for key, item in value.items() if not isinstance(item, list)}
    field = FieldFacts(
        kind=kind,
        name=name,
        rank=None,
        path=name,
        digest=of_bytes(data),
        values=state_fields.scalars(short),
    )
    builder.fields.append(field)
    return True


def add_steps(
    builder: CheckpointBuilder,
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
            builder.steps.append(StatedStep(source=f"{source.label}: {name}", step=int(step or 0)))


def is_step(value: object) -> bool:
    """Whether a number can be a count of steps."""
    if isinstance(value, float):
        return value.is_integer() and 0 <= value < 1 << 53
    return is_count(value) and isinstance(value, int) and value < 1 << 63


def add_tensors(
    builder: CheckpointBuilder,
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
        add_tensor(builder, name + suffix, tensor, source, role, parameter=parameter)


def add_tensor(
    builder: CheckpointBuilder,
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
        if tensor.contiguous:
            chunk = Chunk(
                path=source.relative,
                start=tensor.start,
                end=tensor.end,
                offset=(0,) * len(tensor.shape),
                shape=tensor.shape,
            )
            chunks = (chunk,)
        else:
            note = f"{source.label}: the places of transposed or expanded tensors are not given"
            if note not in builder.notes[-5:]:  # a model may have thousands of them
                builder.notes.append(note)
    builder.tensors.append(
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
        if not isinstance(leaf.value, TensorRef):
            continue
        path = list(leaf.path)
        if isinstance(value, Stub):  # a whole module: its parameters without the attributes between
            path = [part for part in path if part not in _MODULE_PARTS]
        if prefix:
            path.insert(0, prefix)
        yield ".".join(path), leaf.value
