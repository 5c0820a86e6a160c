"""The SHA-256 chain over the rows of an incident: each row's digest covers the row before it.

This module never opens a database; it is pure functions that a colleague can check a chain with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from spiketriage.digests import sha256_of_bytes
from spiketriage.errors import Exit
from spiketriage.nouns.incident import JournalRow

OUTCOMES: Mapping[int, str] = {
    Exit.DONE: "done",
    Exit.AGAINST: "found something against",
    Exit.REFUSED: "refused",
    Exit.INTEGRITY: "integrity",
    Exit.INCONCLUSIVE: "inconclusive",
    Exit.PARTIAL: "partial",
}
START = "0" * 64  # what the first row names as the row before it


def digest_of(previous: str, values: Mapping[str, Any]) -> str:
    """SHA-256 over the digest of the row before and the canonical JSON of this row's values."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), default=str)
    return sha256_of_bytes(f"{previous}\n{text}".encode())


def row_digest(row: JournalRow) -> str:
    """The digest that a journal row must carry: everything in it but the digest itself."""
    values = asdict(row)
    del values["digest"]
    return digest_of(row.previous, values)


def sealed(row: JournalRow, before: JournalRow | None) -> JournalRow:
    """`row` with its number, the digest of the row before it, and its own digest."""
    number, previous = (1, START) if before is None else (before.number + 1, before.digest)
    linked = replace(row, number=number, previous=previous)
    return replace(linked, digest=row_digest(linked))


def verify(rows: Sequence[JournalRow]) -> int | None:
    """Number of the first row that is missing or was edited; None when the chain holds.

    A row that agrees with itself but not with what the next row says of it was edited and sealed
    again.
    """
    previous = START
    for number, row in enumerate(rows, start=1):
        if row.number != number or row.digest != row_digest(row):
            return number
        if row.previous != previous:
            return max(1, number - 1)
        previous = row.digest
    return None
