"""Reads the ring of recent batches that our recorder keeps beside a segment.

Token ids, documents, RNG and cursor.

This module never raises for a torn slot, since the process that wrote it may have died inside it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.wire import ring as wire

_MALFORMED = (ValueError, KeyError, TypeError, RecursionError, OverflowError, struct.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBatch:
    """The tokens of one (micro)batch as the ring kept them, and the state that the forward pass started from.

    `tokens` are the ids row by row (`shape`); `documents` is what the trainer calls them, row by
    row; `rng` maps a generator's name to its state in hex.
    """

    sequence: int
    step: int
    shape: tuple[int, ...]
    tokens: tuple[int, ...]
    documents: Any
    rng: Mapping[str, str]
    cursor: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The batches of a ring, oldest first, and the slots that cannot be read, in words."""

    path: Path
    batches: tuple[RecordedBatch, ...]
    problems: tuple[str, ...]


def read_ring(path: Path) -> Batches:
    """Every intact batch of the ring at `path`; one slot is in memory at a time.

    Raises:
        CorruptFileError: the file is not a ring.
        EvidenceError: the file cannot be read.
    """
    found: list[RecordedBatch] = []
    problems: list[str] = []
    try:
        with path.open("rb") as stream:
            try:
                num_slots, slot_bytes = wire.decode_geometry(stream.read(wire.PAGE_BYTES))
            except ValueError as error:
                raise CorruptFileError(
                    path, "first page", expected="a ring of batches", seen=error
                ) from error
            for number in range(num_slots):
                slot = stream.read(slot_bytes)
                if not slot:
                    problems.append(f"{path.name}: ends before slot {number} of {num_slots}")
                    break
                try:
                    decoded = wire.decode_slot(slot)
                    if decoded is not None:
                        found.append(_batch(*decoded))
                except _MALFORMED as error:
                    problems.append(f"{path.name}: slot {number}: {error}")
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error
    found.sort(key=lambda batch: batch.sequence)
    return Batches(path=path, batches=tuple(found), problems=tuple(problems))


def _batch(sequence: int, record: dict[str, Any], tokens: Any) -> RecordedBatch:
    rng = record["rng"]
    if not isinstance(rng, dict) or not isinstance(record["step"], int):
        raise TypeError("rng must be an object and step an integer")
    return RecordedBatch(
        sequence=sequence,
        step=record["step"],
        shape=tuple(int(size) for size in tokens.shape),
        tokens=tuple(tokens.reshape(-1).tolist()),
        documents=record["documents"],
        rng={str(name): str(state) for name, state in rng.items()},
        cursor=record["cursor"],
    )
