"""Reads what torch DCP stores beside tensors.

Step, scheduler, data cursors, RNG, and the small tensors of the kind.

This module never imports what a slice names and never reads a slice's tensors beyond small ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import FieldKind, StatedStep, TensorFacts
from spiketriage.readers import pickles
from spiketriage.readers.checkpoints.building import state_fields
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.building.optimizer_names import field_kind
from spiketriage.readers.checkpoints.building.state_fields import Contents
from spiketriage.readers.checkpoints.building.state_tree import Gathered, is_step
from spiketriage.readers.checkpoints.dcp.metadata import Slice
from spiketriage.readers.checkpoints.files.torch_zip import extents, read_torch_file

MAX_SLICES = 20_000
MAX_BYTES = 1 << 30
MAX_STEP_TENSORS = 4096
_STEP = re.compile(
    r"(?:.*[./])?(?:step|global_step|iteration|last_epoch|timestamp(?:\.Timestamp)?\.batch)\Z",
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


def read_objects(
    folder: Path, slices: Iterable[Slice], into: Gathered, *, split: Split = whole
) -> None:
    """Read the slices of files in `folder`; `split` says which pieces of state an object is.

    The CRC of a slice's own pickle is compared here; for tensors inside of it there are extents.
    """
    broken: dict[str, str] = {}
    num_read = num_bytes = 0
    slices = list(slices)
    for one in slices:
        num_read, num_bytes = num_read + 1, num_bytes + one.end - one.start
        if num_read > MAX_SLICES or num_bytes > MAX_BYTES:
            into.notes.append(
                f"{len(slices)} objects that are no tensors: only the first {num_read - 1} "
                "were read"
            )
            break
        try:
            file = read_torch_file(folder / one.path, start=one.start, end=one.end)
        except EvidenceError as error:
            broken[one.key] = error.message
            continue
        into.globals.update(dict.fromkeys(file.globals))
        into.problems += [f"{one.key}: {problem}" for problem in file.problems]
        inner = extents(file, one.path, lambda record, key=one.key: f"{key}, record {record.name}")  # type: ignore[misc]
        into.extents += [extent for extent in inner if "/data/" in extent.name]
        contents = Contents(path=folder / one.path)
        for piece in split(one.key, file.value, contents):
            take(piece, one.path, contents, into)
    if broken:
        key, why = next(iter(broken.items()))
        into.problems.append(f"{some(broken)}: cannot be read ({key}: {why})")


def take(piece: Piece, path: str, contents: Contents, into: Gathered) -> None:
    """Keep a piece of state, and the step that it states."""
    rank = _RANK.search(piece.key)
    made = state_fields.field(
        piece.kind,
        piece.key,
        piece.value,
        rank=int(rank[1]) if rank else None,
        path=path,
        contents=contents,
    )
    if "" in made.values:
        made = replace(made, values={"value": made.values[""]})
    elif isinstance(piece.value, bytes) and piece.value.startswith(_PICKLE):
        made = replace(made, values=_values_of_pickle(piece, into))
    into.fields.append(made)
    number = contents.scalar(piece.value)
    if _STEP.match(piece.key) and is_step(number):
        into.steps.append(StatedStep(source=piece.key, step=int(number or 0)))


def read_small_tensors(folder: Path, tensors: Iterable[TensorFacts], into: Gathered) -> None:
    """RNG states, counters and the like that are stored as tensors.

    Small ones of one chunk become fields, too.
    """
    small = (
        Slice(key=one.name, path=chunk.path, start=chunk.start, end=chunk.end)
        for one in tensors
        if one.role == "other" and len(one.chunks) == 1
        for chunk in one.chunks
        if chunk.container == "zip" and chunk.end - chunk.start <= state_fields.SMALL_BYTES
    )
    num_extents = len(into.extents)
    read_objects(folder, small, into)
    del into.extents[num_extents:]  # they are chunks of tensors, whose CRC the scan looks up itself


def read_optimizer_steps(folder: Path, tensors: Iterable[TensorFacts], into: Gathered) -> None:
    """The step that the optimizer counted.

    Every parameter has a count of its own, and one that idled is behind.
    """
    counters = [
        one
        for one in tensors
        if one.shape in ((), (1,)) and one.chunks and one.chunks[0].container == "zip"
    ]
    names: dict[int, list[str]] = {}
    for one in counters[:: max(1, -(-len(counters) // MAX_STEP_TENSORS))]:
        chunk = one.chunks[0]
        try:
            file = read_torch_file(folder / chunk.path, start=chunk.start, end=chunk.end)
        except EvidenceError:
            # a slice that holds no tensor is said by the check of the files and by the scan
            continue
        number = Contents(path=folder / chunk.path).scalar(file.value)
        if is_step(number):
            names.setdefault(int(number or 0), []).append(one.name)
    if not names:
        return
    stating = names[max(names)]
    if len(stating) > 1:
        more = f" and {len(stating) - 1} more"
    else:
        more = ""
    into.steps.append(StatedStep(source=f"{stating[0]}{more}", step=max(names)))
    if len(names) > 1:
        told = ", ".join(
            f"{step} ({len(names[step])}, e.g. {names[step][0]})" for step in sorted(names)[:3]
        )
        into.notes.append(f"the optimizer's steps disagree between parameters: {told}")


def _values_of_pickle(piece: Piece, into: Gathered) -> dict[str, str]:
    """The scalars of an object that was pickled before it was stored (torchtitan's data loaders)."""
    try:
        loaded = pickles.load(piece.value, where=piece.key)
    except EvidenceError as error:
        into.notes.append(
            f"{piece.key}: holds bytes that look like a pickle and are none ({error.message})"
        )
        return {}
    into.globals.update(dict.fromkeys(loaded.globals))
    return state_fields.scalars(loaded.value)
