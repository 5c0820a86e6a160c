"""Puts the pieces of one pass together: digests of files, counts of tensors, damaged ranges.

This module never reads a byte and never decides what a number means.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    for piece in facts:
        by_path[piece.path].append(piece)
    digests: list[FileDigest] = []
    for path, pieces in by_path.items():
        if any(piece.problem or not piece.digest for piece in pieces):
            continue
        digests.append(
            FileDigest(
                path=path,
                size_bytes=sum(piece.num_bytes for piece in pieces),
                digest=tree_root([piece.digest for piece in pieces]),
                pieces=tuple(piece.digest.hex() for piece in pieces),
            )
        )
    return digests


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
    measured = {piece.path: piece for piece in pieces if piece.other}
    for promise in facts.promises:
        file = work.files.get(promise.path)
        seen = measured.get(file.path) if file is not None else None
        if seen is not None and seen.other != promise.digest.lower():
            yield Damage(
                path=promise.path,
                start=0,
                end=seen.num_bytes,
                name="the whole file",
                expected=f"{promise.algorithm} {promise.digest}",
                seen=seen.other,
            )


def tensor_stats(
    facts: CheckpointFacts, work: Work, pieces: Sequence[PieceFacts], *, is_full: bool
) -> Mapping[str, TensorStats]:
    """The counts of each tensor over all of its chunks."""
    tallies: dict[str, Tally] = {}
    firsts: dict[str, _First] = {}
    by_chunk: dict[str, dict[Chunk, Tally]] = {}
    for counted in chain.from_iterable(piece.counted for piece in pieces):
        owner, counts = work.owners[counted.key], counted.tally
        name = owner.tensor.name
        tallies.setdefault(name, Tally()).add(counts)
        by_chunk.setdefault(name, {}).setdefault(owner.chunk, Tally()).add(counts)
        if counts.first is not None:
            firsts.setdefault(name, _First(chunk=owner.chunk, number=counts.first))
    stats: dict[str, TensorStats] = {}
    for tensor in facts.tensors:
        name = tensor.name
        if name not in tallies:
            continue
        stats[name] = _quick_stats(tensor, tallies[name], firsts.get(name))
        if is_full:
            stats[name] = _full_stats(tensor, stats[name], tallies[name], by_chunk[name])
    return stats


def _quick_stats(tensor: TensorFacts, counts: Tally, first: _First | None) -> TensorStats:
    parts = FLOATS[tensor.dtype].parts if tensor.dtype in FLOATS else 1
    return TensorStats(
        dtype=tensor.dtype,
        num_elements=counts.num_elements // parts,
        num_nan=counts.num_nan,
        num_positive_inf=counts.num_positive_inf,
        num_negative_inf=counts.num_negative_inf,
        first_nonfinite=_index(first, parts) if first is not None else None,
        nonfinite_path=first.chunk.path if first is not None else "",
        absmax=value_of(tensor.dtype, counts.largest_bits),
    )


def _full_stats(
    tensor: TensorFacts, quick: TensorStats, counts: Tally, by_chunk: Mapping[Chunk, Tally]
) -> TensorStats:
    """What a full scan measures beyond a quick one, where the format can have it."""
    stats = replace(quick, zero_chunk_path=_zero_chunk(by_chunk))
    if tensor.dtype not in FLOATS:
        return stats
    stats = replace(stats, l2=float(np.sqrt(counts.squares)), num_zeros=counts.num_zeros)
    if is_second_moment(tensor.name):
        stats = replace(stats, num_negative=counts.num_negative)
    if tensor.dtype.startswith("F8_E"):
        stats = replace(stats, num_saturated=counts.num_saturated)
    return stats


def _zero_chunk(chunks: Mapping[Chunk, Tally]) -> str:
    """The file of the first chunk that is all zeros, unless the whole tensor is."""
    empty = []
    for chunk, counts in chunks.items():
        if counts.num_zeros == counts.num_elements:
            empty.append(chunk)
    if empty and len(empty) < len(chunks):
        return empty[0].path or "."
    return ""


def _index(first: _First, parts: int) -> tuple[int, ...]:
    """The index of that element in the whole tensor."""
    number, shape = first.number // parts, first.chunk.shape
    if not shape or number >= math.prod(shape):
        return (number,)
    offset = first.chunk.offset or (0,) * len(shape)
    places = zip(np.unravel_index(number, shape), offset, strict=True)
    return tuple(int(at) + start for at, start in places)
