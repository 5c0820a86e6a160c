"""Puts the pieces of one pass together.

Digests of files, counts of tensors, ranges that are damaged.

This module never reads a byte and never decides what a number means.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from spiketriage.digests import tree_root
from spiketriage.nouns.checkpoint import CheckpointFacts, Chunk, Damage, TensorFacts, TensorStats
from spiketriage.nouns.file import FileDigest
from spiketriage.readers.scan.crc import combine
from spiketriage.readers.scan.floats import FLOATS
from spiketriage.readers.scan.kernels import Tally, value_of
from spiketriage.readers.scan.oddities import is_second_moment
from spiketriage.readers.scan.piece import PieceFacts
from spiketriage.readers.scan.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class _First:
    """The first nonfinite element that was met, by its number in a chunk."""

    chunk: Chunk
    number: int


def file_digests(facts: Iterable[PieceFacts]) -> list[FileDigest]:
    """The digest of every file that was read whole, by its absolute path."""
    by_path: dict[str, list[PieceFacts]] = defaultdict(list)
    for one in facts:
        by_path[one.path].append(one)
    result: list[FileDigest] = []
    for path, pieces in by_path.items():
        if not any(one.problem or not one.digest for one in pieces):
            result.append(
                FileDigest(
                    path=path,
                    size_bytes=sum(one.num_bytes for one in pieces),
                    digest=tree_root([one.digest for one in pieces]),
                    pieces=tuple(one.digest.hex() for one in pieces),
                )
            )
    return result


def damage(work: Work, pieces: Sequence[PieceFacts]) -> Iterator[Damage]:
    """Vouched ranges whose CRC is not the one on record."""
    parts = defaultdict(list)
    for part in chain.from_iterable(piece.crcs for piece in pieces):
        parts[part.key].append(part)
    for key, promised in enumerate(work.promised):
        crc, num_bytes = 0, 0
        for part in parts[key]:  # in the order of the pieces, which is that of the file
            crc = combine(crc, part.crc32, part.num_bytes) if num_bytes else part.crc32
            num_bytes += part.num_bytes
        if num_bytes == promised.end - promised.start and crc != promised.crc32:
            yield Damage(
                path=promised.path,
                start=promised.start,
                end=promised.end,
                name=promised.name,
                expected=f"CRC-32 {promised.crc32:08x}",
                seen=f"{crc:08x}",
            )


def broken_promises(
    facts: CheckpointFacts, work: Work, pieces: Sequence[PieceFacts]
) -> Iterator[Damage]:
    """Files that are not what another tool's manifest says."""
    seen = {one.path: one for one in pieces if one.other}
    for promise in facts.promises:
        file = work.files.get(promise.path)
        if file is not None:
            measured = seen.get(file.path)
        else:
            measured = None
        if measured is not None and measured.other != promise.digest.lower():
            yield Damage(
                path=promise.path,
                start=0,
                end=measured.num_bytes,
                name="the whole file",
                expected=f"{promise.algorithm} {promise.digest}",
                seen=measured.other,
            )


def tensor_stats(
    facts: CheckpointFacts, work: Work, pieces: Sequence[PieceFacts], *, is_full: bool
) -> Mapping[str, TensorStats]:
    """The counts of each tensor over all of its chunks."""
    tallies: dict[str, Tally] = {}
    firsts: dict[str, _First] = {}
    zeros: dict[str, dict[Chunk, Tally]] = {}
    for counted in chain.from_iterable(piece.counted for piece in pieces):
        owner, found = work.owners[counted.key], counted.tally
        tallies.setdefault(owner.tensor.name, Tally()).add(found)
        zeros.setdefault(owner.tensor.name, {}).setdefault(owner.chunk, Tally()).add(found)
        if found.first is not None:
            firsts.setdefault(owner.tensor.name, _First(chunk=owner.chunk, number=found.first))
    result: dict[str, TensorStats] = {}
    for tensor in facts.tensors:
        if tensor.name in tallies:
            result[tensor.name] = _told(
                tensor,
                tallies[tensor.name],
                firsts.get(tensor.name),
                _zero_chunk(zeros[tensor.name]) if is_full else "",
                is_full=is_full,
            )
    return result


def _told(
    tensor: TensorFacts, found: Tally, first: _First | None, zero_chunk_path: str, *, is_full: bool
) -> TensorStats:
    is_fp8 = tensor.dtype.startswith("F8_E") and tensor.dtype in FLOATS
    has_signs = tensor.dtype in FLOATS
    return TensorStats(
        dtype=tensor.dtype,
        num_elements=found.num_elements // (FLOATS[tensor.dtype].parts if has_signs else 1),
        num_nan=found.num_nan,
        num_positive_inf=found.num_positive_inf,
        num_negative_inf=found.num_negative_inf,
        first_nonfinite=_index(first, FLOATS[tensor.dtype].parts if has_signs else 1)
        if first is not None
        else None,
        nonfinite_path=first.chunk.path if first is not None else "",
        absmax=value_of(tensor.dtype, found.largest_bits),
        l2=float(np.sqrt(found.squares)) if is_full and has_signs else None,
        num_zeros=found.num_zeros if is_full and has_signs else None,
        num_negative=found.num_negative
        if is_full and has_signs and is_second_moment(tensor.name)
        else None,
        num_saturated=found.num_saturated if is_full and is_fp8 else None,
        zero_chunk_path=zero_chunk_path,
    )


def _zero_chunk(chunks: Mapping[Chunk, Tally]) -> str:
    """The file of the first chunk that is all zeros, unless the whole tensor is."""
    empty = [chunk for chunk, found in chunks.items() if found.num_zeros == found.num_elements]
    if empty and len(empty) < len(chunks):
        return empty[0].path or "."
    return ""


def _index(first: _First, parts: int) -> tuple[int, ...]:
    number, shape = first.number // parts, first.chunk.shape
    if not shape or number >= math.prod(shape):
        return (number,)
    offset = first.chunk.offset or (0,) * len(shape)
    result: list[int] = []
    for at, start in zip(np.unravel_index(number, shape), offset, strict=True):
        result.append(int(at) + start)
    return tuple(result)
