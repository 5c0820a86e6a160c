"""What one pass over a checkpoint looks for: which bytes are which tensor, or vouched for.

This module reads the small archive directories inside a checkpoint's files, never a tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from spiketriage.errors import CorruptFileError
from spiketriage.nouns.checkpoint import CheckpointFacts, Chunk, Extent, TensorFacts
from spiketriage.readers.checkpoints.files.torch_zip import data_record
from spiketriage.readers.scan.kernels import is_scannable
from spiketriage.readers.scan.oddities import is_second_moment
from spiketriage.readers.scan.piece import Span, Vouched
from spiketriage.readers.scan.plan import FilePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The tensor and chunk that a span belongs to."""

    tensor: TensorFacts
    chunk: Chunk


@dataclass(slots=True, kw_only=True)
class Work:
    """A checkpoint's files by relative path, and what is wanted of them.

    `owners` are by the key of a span, `promised` by that of a vouched range.
    """

    files: dict[str, FilePlan] = field(default_factory=dict)
    owners: list[Owner] = field(default_factory=list)
    promised: list[Extent] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def size_of(path: Path) -> int:
    """Size of a file in bytes; 0 where it cannot be told, which whoever reads it will say."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def work_of(facts: CheckpointFacts) -> Work:
    """Everything to look for in one pass over the files of a checkpoint."""
    work = Work()
    folder = facts.path if facts.path.is_dir() else facts.path.parent
    for file in facts.files:
        path = folder / file.path if file.path else facts.path
        work.files[file.path] = FilePlan(path=str(path), size_bytes=size_of(path))
    for promise in facts.promises:
        if promise.path in work.files:
            work.files[promise.path].algorithm = promise.algorithm
    for extent in facts.extents:
        _vouch(work, extent)
    by_file: dict[str, list[Owner]] = defaultdict(list)
    for tensor in facts.tensors:
        for chunk in tensor.chunks:
            by_file[chunk.path].append(Owner(tensor=tensor, chunk=chunk))
    for name, owners in by_file.items():
        if name in work.files:  # a missing file is a problem that the layout has stated already
            _place_all(work, name, owners)
    return work


def _vouch(work: Work, extent: Extent) -> None:
    file = work.files.get(extent.path)
    if file is None or extent.end > file.size_bytes:
        return
    file.vouched.append(Vouched(key=len(work.promised), start=extent.start, end=extent.end))
    work.promised.append(extent)


def _place_all(work: Work, name: str, owners: Sequence[Owner]) -> None:
    file = work.files[name]
    broken: dict[Owner, str] = {}
    try:
        with open(file.path, "rb") as stream:
            for owner in owners:
                why = _place(work, file, owner, stream)
                if why:
                    broken[owner] = why
    except OSError as error:
        work.problems.append(f"{file.path}: cannot be read: {error.strerror or error}")
        return
    if broken:  # one sentence a file: a zeroed one would have thousands
        owner, why = next(iter(broken.items()))
        more = ""
        if len(broken) > 1:
            more = f", and {len(broken) - 1} of the {len(owners)} chunks more"
        work.problems.append(f"{file.path}: {_label(owner)}: {why}{more}")


def _place(work: Work, file: FilePlan, owner: Owner, stream: BinaryIO) -> str:
    """Plan one chunk; why not, where its archive is none."""
    start, end = owner.chunk.start, owner.chunk.end
    if owner.chunk.container == "zip":
        try:
            record = data_record(stream, start, end)
        except CorruptFileError as error:
            return error.message
        start, end = record.start, record.end
        if record.crc32 is not None:
            path, crc32 = owner.chunk.path, record.crc32
            extent = Extent(path=path, start=start, end=end, crc32=crc32, name=_label(owner))
            _vouch(work, extent)
    if is_scannable(owner.tensor.dtype) and start < end <= file.size_bytes:
        file.spans.append(
            Span(
                key=len(work.owners),
                start=start,
                end=end,
                dtype=owner.tensor.dtype,
                counts_negatives=is_second_moment(owner.tensor.name),
            )
        )
        work.owners.append(owner)
    return ""


def _label(owner: Owner) -> str:
    if owner.chunk.shape == owner.tensor.shape:
        return f"tensor {owner.tensor.name}"
    return f"tensor {owner.tensor.name}, chunk at {list(owner.chunk.offset)}"
