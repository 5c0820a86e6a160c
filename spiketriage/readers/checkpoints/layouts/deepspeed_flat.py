"""Names what lies where in the flat buffers of ZeRO: elements of which parameter, on which rank.

This module never opens a file and never guesses: sizes that do not add up leave the buffers without
names.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from spiketriage.nouns.checkpoint import Chunk
from spiketriage.readers.checkpoints.building.optimizer_order import Named
from spiketriage.readers.checkpoints.files.torch_dtypes import ITEM_BYTES
from spiketriage.readers.checkpoints.files.torch_values import TensorRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """One flat buffer of one rank, in its file; `padding` elements are missing at its end."""

    path: str
    tensor: TensorRef
    padding: int = 0

    @property
    def num_elements(self) -> int:
        """How many elements are there."""
        return math.prod(self.tensor.shape)

    def chunk(self, low: int, high: int, offset: int) -> Chunk | None:
        """The elements `low` to `high`, which a flattened parameter has from `offset` on."""
        if self.tensor.start is None or not self.tensor.contiguous:
            return None
        item_bytes = ITEM_BYTES[self.tensor.dtype]
        start = self.tensor.start + low * item_bytes
        end = self.tensor.start + high * item_bytes
        return Chunk(path=self.path, start=start, end=end, offset=(offset,), shape=(high - low,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A parameter and where its elements lie; those of a missing rank are not among them."""

    parameter: Named
    chunks: tuple[Chunk, ...]


def split_by_group(
    parameters: Sequence[Named], flats: Mapping[int, Flat], num_ranks: int
) -> tuple[Piece, ...] | None:
    """ZeRO-1 and 2: the parameters of a group one after another, cut into equal partitions by rank.

    None where the sizes do not add up.
    """
    sizes = {flat.num_elements + flat.padding for flat in flats.values()}
    if len(sizes) != 1:
        return None
    size = sizes.pop()
    total = sum(math.prod(parameter.shape) for parameter in parameters)
    # zero_to_fp32's own check: both are padded, by two rules, to a multiple of this.
    align = 2 * num_ranks
    if size == 0 or -(-total // align) != -(-size * num_ranks // align):
        return None
    return tuple(_pieces_of_group(parameters, flats, size))


def _pieces_of_group(
    parameters: Sequence[Named], flats: Mapping[int, Flat], size: int
) -> Iterator[Piece]:
    at = 0
    there = sorted(flats)  # never a range of ranks: the number of them is only claimed
    for parameter in parameters:
        end = at + math.prod(parameter.shape)
        chunks = []
        for rank in there[bisect_left(there, at // size) : bisect_left(there, -(-end // size))]:
            flat, first = flats[rank], rank * size
            low, high = max(at, first), min(end, first + size)
            if not low < high <= first + flat.num_elements:
                continue
            chunk = flat.chunk(low - first, high - first, low - at)
            if chunk is not None:
                chunks.append(chunk)
        yield Piece(parameter=parameter, chunks=tuple(chunks))
        at = end


def split_by_parameter(
    parameters: Sequence[Named], flats: Mapping[int, Sequence[Flat]], num_ranks: int
) -> tuple[Piece, ...] | None:
    """ZeRO-3: every parameter is cut into equal parts by rank, and those lie one after another.

    A rank's buffer is a sequence of buffers (sub-groups), whose border may cut a part. None where
    sizes do not add up.
    """
    parts = [-(-math.prod(parameter.shape) // num_ranks) for parameter in parameters]
    starts: dict[int, list[int]] = {}
    for rank, row in flats.items():
        starts[rank] = [0, *accumulate(flat.num_elements for flat in row)]
        if starts[rank][-1] != sum(parts):
            return None
    if not flats:
        return None
    pieces = []
    at = 0
    for parameter, part in zip(parameters, parts, strict=True):
        whole = math.prod(parameter.shape)
        chunks: list[Chunk] = []
        for rank, row in sorted(flats.items()):
            held = min(part, whole - rank * part)
            chunks += _chunks_of_part(row, starts[rank], at, held, rank * part)
        pieces.append(Piece(parameter=parameter, chunks=tuple(chunks)))
        at += part
    return tuple(pieces)


def _chunks_of_part(
    row: Sequence[Flat], starts: Sequence[int], at: int, held: int, offset: int
) -> Iterator[Chunk]:
    """The `held` elements from `at` on in a rank's row of buffers, `offset` in the parameter."""
    done = 0
    while done < held:
        number = bisect_right(starts, at + done) - 1
        count = min(held - done, starts[number + 1] - at - done)
        low = at + done - starts[number]
        chunk = row[number].chunk(low, low + count, offset + done)
        if chunk is not None:
            yield chunk
        done += count
