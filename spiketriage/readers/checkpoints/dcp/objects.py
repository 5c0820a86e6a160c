"""Reads what torch DCP stores beside the tensors: step, scheduler, data cursors, random state.

This module never imports what a slice names and never reads a slice's tensors beyond small ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import Chunk, Extent, FieldKind, StatedStep, TensorFacts
from spiketriage.nouns.listing import listed
from spiketriage.readers import pickles
from spiketriage.readers.checkpoints.building import state_fields
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.building.optimizer_names import field_kind
from spiketriage.readers.checkpoints.building.state_fields import Contents
from spiketriage.readers.checkpoints.building.state_tree import is_step
from spiketriage.readers.checkpoints.dcp.metadata import Slice
from spiketriage.readers.checkpoints.files.torch_zip import (
    TorchFile,
    ZipRecord,
    extents,
    read_torch_file,
)

# Bounds on the time that one checkpoint may take; a note says what lies beyond them.
MAX_SLICES = 20_000
MAX_BYTES = 1 << 30
MAX_STEP_TENSORS = 4096
_SHOWN_STEPS = 3
_STEP = re.compile(
    r"\A(?:.*[./])?(?:step|global_step|iteration|last_epoch|timestamp(?:\.Timestamp)?\.batch)\Z",
    re.DOTALL,
)
_RANK = re.compile(r"rank[_.]?(\d{1,9})")
_PICKLE = b"\x80"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a stored object that is a piece of state by itself; `key` is its name."""

    key: str
    value: Any
    kind: FieldKind


Split = Callable[[str, Any, Contents], Iterable[Piece]]


def whole(key: str, value: Any, contents: Contents) -> Iterator[Piece]:
    """A stored object as one piece."""
    yield Piece(key=key, value=value, kind=field_kind(key))


def add_objects(
    builder: CheckpointBuilder, slices: Sequence[Slice], *, split: Split = whole
) -> None:
    """Take the objects in `slices` as fields; `split` says which pieces of state an object is.

    The CRC of a slice's own pickle is compared here; for tensors inside of it there are extents.
    """
    broken: dict[str, str] = {}
    num_read = num_bytes = 0
    for place in slices:
        num_read, num_bytes = num_read + 1, num_bytes + place.end - place.start
        if num_read > MAX_SLICES or num_bytes > MAX_BYTES:
            builder.notes.append(
                f"{len(slices)} objects that are no tensors: only the first {num_read - 1} "
                "were read"
            )
            break
        try:
            file = read_torch_file(builder.path / place.path, start=place.start, end=place.end)
        except EvidenceError as error:
            broken[place.key] = error.message
            continue
        builder.globals.update(dict.fromkeys(file.globals))
        builder.problems += [f"{place.key}: {problem}" for problem in file.problems]
        builder.extents += _extents_of_tensors(file, place)
        contents = Contents(path=builder.path / place.path)
        for piece in split(place.key, file.value, contents):
            add_piece(builder, piece, place.path, contents)
    if broken:
        key, why = next(iter(broken.items()))
        builder.problems.append(f"{some(broken)}: cannot be read ({key}: {why})")


def _extents_of_tensors(file: TorchFile, place: Slice) -> list[Extent]:
    def label(record: ZipRecord) -> str:
        return f"{place.key}, record {record.name}"

    return [extent for extent in extents(file, place.path, label) if "/data/" in extent.name]


def add_piece(builder: CheckpointBuilder, piece: Piece, path: str, contents: Contents) -> None:
    """Take a piece of state, and the step that it states."""
    rank = _RANK.search(piece.key)
    field = state_fields.field(
        piece.kind,
        piece.key,
        piece.value,
        rank=int(rank[1]) if rank else None,
        path=path,
        contents=contents,
    )
    if "" in field.values:
        field = replace(field, values={"value": field.values[""]})
    elif isinstance(piece.value, bytes) and piece.value.startswith(_PICKLE):
        field = replace(field, values=_values_of_pickle(builder, piece))
    builder.fields.append(field)
    number = contents.scalar(piece.value)
    if _STEP.match(piece.key) and is_step(number):
        builder.steps.append(StatedStep(source=piece.key, step=int(number or 0)))


def add_small_tensors(builder: CheckpointBuilder, tensors: Iterable[TensorFacts]) -> None:
    """Take small tensors of one chunk as fields too: RNG states, counters and the like."""
    small = []
    for tensor in tensors:
        if tensor.role != "other" or len(tensor.chunks) != 1:
            continue
        chunk = tensor.chunks[0]
        if chunk.container == "zip" and chunk.end - chunk.start <= state_fields.SMALL_BYTES:
            small.append(Slice(key=tensor.name, path=chunk.path, start=chunk.start, end=chunk.end))
    num_extents = len(builder.extents)
    add_objects(builder, small)
    # They are chunks of tensors, whose CRC the scan looks up itself.
    del builder.extents[num_extents:]


def add_optimizer_steps(builder: CheckpointBuilder, tensors: Iterable[TensorFacts]) -> None:
    """Take the step that the optimizer counted, from the counters that it keeps as `tensors`.

    Every parameter has a count of its own, and one that idled is behind.
    """
    counters = []
    for tensor in tensors:
        is_scalar = tensor.shape in ((), (1,))
        if is_scalar and tensor.chunks and tensor.chunks[0].container == "zip":
            counters.append(tensor)
    stride = max(1, -(-len(counters) // MAX_STEP_TENSORS))
    names: dict[int, list[str]] = {}
    for tensor in counters[::stride]:
        step = _stored_step(builder, tensor.chunks[0])
        if step is not None:
            names.setdefault(step, []).append(tensor.name)
    if not names:
        return
    stating = names[max(names)]
    builder.steps.append(StatedStep(source=listed(stating, most=1), step=max(names)))
    if len(names) > 1:
        counted = []
        for step in sorted(names)[:_SHOWN_STEPS]:
            counted.append(f"{step} ({len(names[step])}, e.g. {names[step][0]})")
        builder.notes.append(
            f"the optimizer's steps disagree between parameters: {', '.join(counted)}"
        )


def _stored_step(builder: CheckpointBuilder, chunk: Chunk) -> int | None:
    """The step in a chunk; None for one that holds none, which the check of the files has said."""
    path = builder.path / chunk.path
    try:
        file = read_torch_file(path, start=chunk.start, end=chunk.end)
    except EvidenceError:
        return None
    number = Contents(path=path).scalar(file.value)
    if is_step(number):
        return int(number or 0)
    return None


def _values_of_pickle(builder: CheckpointBuilder, piece: Piece) -> dict[str, str]:
    """The scalars of an object that was pickled before it was stored, as torchtitan does."""
    try:
        loaded = pickles.load(piece.value, where=piece.key)
    except EvidenceError as error:
        builder.notes.append(
            f"{piece.key}: holds bytes that look like a pickle and are none ({error.message})"
        )
        return {}
    builder.globals.update(dict.fromkeys(loaded.globals))
    return state_fields.scalars(loaded.value)
