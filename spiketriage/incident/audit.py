"""Tell whether the record of an incident is still what its commands wrote.

It follows the chain of every table, and holds each against what the journal sealed of it. It never
writes, and it trusts no view: a view could have been edited too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spiketriage.incident import database, journal
from spiketriage.incident.rows import TABLES, Row, first_broken
from spiketriage.nouns.incident import JournalRow

if TYPE_CHECKING:
    from spiketriage.incident.store import Incident


def audit(incident: Incident) -> tuple[str, ...]:
    """A sentence for the first broken row of every table; nothing when all chains hold.

    Raises:
        EvidenceError: the database cannot be read.
    """
    with database.reading(incident.folder) as connection:
        journal_rows = database.journal_rows(connection)
        broken = {"journal": journal.verify(journal_rows)}
        for table in TABLES:
            rows = database.select(connection, f"SELECT * FROM {table} ORDER BY number")
            broken[table] = first_broken(rows)
            if broken[table] is None:
                broken[table] = _first_unsealed(rows, table, journal_rows)
    sentences = []
    for table, number in broken.items():
        if number is not None:
            sentences.append(
                f"{incident.id}/{database.NAME}: {table} row {number}: edited or removed since it "
                "was written"
            )
    return tuple(sentences)


def _first_unsealed(
    rows: Sequence[Row], table: str, journal_rows: Sequence[JournalRow]
) -> int | None:
    """Number of the first row that is not as a journal row sealed it, in a table whose chain holds.

    So are found rows that were cut off the end, and rows that were edited and chained again.
    """
    for sealing in journal_rows:
        number, _, digest = sealing.heads.get(table, f"0 {journal.START}").partition(" ")
        if int(number) > len(rows):
            return len(rows) + 1
        if int(number) and rows[int(number) - 1]["digest"] != digest:
            return int(number)
    return None
