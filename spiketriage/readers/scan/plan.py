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
    """What is wanted of one file; `algorithm` asks for a second digest of the whole of it."""

    path: str
    size_bytes: int
    spans: list[Span] = field(default_factory=list)
    vouched: list[Vouched] = field(default_factory=list)
    algorithm: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Pieces that cover every file once; extra ones for ranges that overlap (shared storage)."""

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
        for piece in whole:
            pieces.append(piece if is_digested else replace(piece, is_digested=False))
        for span in crossing:
            extra.append(_span_alone(file.path, span, is_full=is_full))
        for again in doubled:
            extra.append(Piece(path=file.path, start=again.start, end=again.end, vouched=(again,)))
    return Plan(pieces=tuple(pieces), extra=tuple(extra))


def _apart(ranges: Sequence[R]) -> tuple[list[R], list[R]]:
    """Sorted ranges that do not overlap, and those that were left out for that."""
    kept: list[R] = []
    left: list[R] = []
    for each in sorted(ranges, key=attrgetter("start", "end")):
        if kept and each.start < kept[-1].end:
            left.append(each)
        else:
            kept.append(each)
    return kept, left


def _pieces(
    file: FilePlan, spans: Sequence[Span], vouched: Sequence[Vouched], *, is_full: bool
) -> Iterator[Piece]:
    length = PIECE_BYTES
    if file.algorithm:  # a digest that is sequential cannot be taken in pieces
        length = max(file.size_bytes, 1)
    starts = range(0, max(file.size_bytes, 1), length)
    own_spans = _by_piece(spans, length, len(starts))
    own_vouched = _by_piece(vouched, length, len(starts))
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
    """The ranges that reach into each piece."""
    reaching: list[list[R]] = [[] for _ in range(num_pieces)]
    for each in ranges:
        last = min((each.end - 1) // length, num_pieces - 1)
        for number in range(each.start // length, last + 1):
            reaching[number].append(each)
    return reaching


def _span_alone(path: str, span: Span, *, is_full: bool) -> Piece:
    return Piece(
        path=path,
        start=span.start,
        end=span.end,
        spans=(span,),
        is_full=is_full,
        is_digested=False,
    )
