"""Cuts files into pieces, and hands each piece the tensors and vouched ranges that reach into it.

This module never reads a byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Protocol, TypeVar

from spiketriage.digests import PIECE_BYTES
from spiketriage.readers.scan.piece import Piece, Span, Vouched


class _Range(Protocol):
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


R = TypeVar("R", bound=_Range)


@dataclass(slots=True, kw_only=True)
class FilePlan:
    """What is wanted of one file of `size_bytes`.

    `algorithm` is a second digest of the whole of it, or nothing.
    """

    path: str
    size_bytes: int
    spans: list[Span] = field(default_factory=list)
    vouched: list[Vouched] = field(default_factory=list)
    algorithm: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Pieces that cover every file once, and extra ones for ranges that overlap others (shared storage)."""

    pieces: tuple[Piece, ...]
    extra: tuple[Piece, ...]


def plan(files: Iterable[FilePlan], *, is_full: bool, is_digested: bool = True) -> Plan:
    """The pieces of all files, in order of file and offset."""
    pieces: list[Piece] = []
    extra: list[Piece] = []
    for file in files:
        spans, crossing = _apart(file.spans)
        vouched, doubled = _apart(file.vouched)
        whole = _pieces(file, spans, vouched, is_full=is_full)
        pieces += whole if is_digested else (replace(piece, is_digested=False) for piece in whole)
        extra += [_span_alone(file.path, one, is_full=is_full) for one in crossing]
        extra += [
            Piece(path=file.path, start=one.start, end=one.end, vouched=(one,)) for one in doubled
        ]
    return Plan(pieces=tuple(pieces), extra=tuple(extra))


def _apart(ranges: Sequence[R]) -> tuple[list[R], list[R]]:
    """Sorted ranges that do not overlap, and those that were left out for that."""
    kept: list[R] = []
    left: list[R] = []
    for one in sorted(ranges, key=attrgetter("start", "end")):
        (left if kept and one.start < kept[-1].end else kept).append(one)
    return kept, left


def _pieces(
    file: FilePlan, spans: Sequence[Span], vouched: Sequence[Vouched], *, is_full: bool
) -> Iterator[Piece]:
    # A digest that is sequential cannot be taken in pieces, so such a file is one.
    if file.algorithm:
        length = max(file.size_bytes, 1)
    else:
        length = PIECE_BYTES
    starts = range(0, max(file.size_bytes, 1), length)
    own_spans, own_vouched = (
        _by_piece(spans, length, len(starts)),
        _by_piece(vouched, length, len(starts)),
    )
    for number, start in enumerate(starts):
        yield Piece(
            path=file.path,
            start=start,
            end=min(start + length, file.size_bytes),
            spans=tuple(own_spans[number]),
            vouched=tuple(own_vouched[number]),
            is_full=is_full,
            algorithm=file.algorithm,
        )


def _by_piece(ranges: Iterable[R], length: int, num_pieces: int) -> list[list[R]]:
    found: list[list[R]] = [[] for _ in range(num_pieces)]
    for one in ranges:
        for number in range(one.start // length, min((one.end - 1) // length + 1, num_pieces)):
            found[number].append(one)
    return found


def _span_alone(path: str, one: Span, *, is_full: bool) -> Piece:
    return Piece(
        path=path, start=one.start, end=one.end, spans=(one,), is_full=is_full, is_digested=False
    )
