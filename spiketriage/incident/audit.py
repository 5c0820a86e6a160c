"""Tell whether the record of an incident is still what its commands wrote.

It follows the chain of every table, and holds each against what the journal sealed of it. It never
writes, and it trusts no view: a view could have been edited too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from spiketriage.incident import database, journal, seals, structure
from spiketriage.incident.rows import TABLES, Row, first_broken
from spiketriage.nouns.incident import JournalRow

if TYPE_CHECKING:
    from spiketriage.incident.store import Incident


def audit(incident: Incident, *, anchors: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """A sentence for the first broken row of every table; nothing when all chains hold.

    `anchors` are heads of the journal as they were noted outside of it, by where: without one,
    nobody can tell a record from one that was written anew from its first row.

    Raises:
        EvidenceError: the database cannot be read.
    """
    with database.reading(incident.folder) as connection:
        journal_rows = database.journal_rows(connection)
        rows = {}
        for table in TABLES:
            rows[table] = database.select(connection, f"SELECT * FROM {table} ORDER BY number")
        meta = database.select(connection, "SELECT * FROM meta")
        problems = list(structure.differences(connection))
        meta_head = seals.heads(connection)[seals.META]
    broken = list(_broken(rows, journal_rows))
    if any(row.heads.get(seals.META) != meta_head for row in journal_rows):
        broken.append("meta: edited since it was written")
    if not broken:
        broken += _unsealed(rows, journal_rows, meta, meta_head)
    problems += broken
    problems += _unanchored(journal_rows, anchors or {})
    return tuple(f"{incident.id}/{database.NAME}: {problem}" for problem in problems)


def _broken(rows: Mapping[str, list[Row]], journal_rows: Sequence[JournalRow]) -> Iterator[str]:
    numbers = {seals.JOURNAL: journal.verify(journal_rows)}
    for table, added in rows.items():
        numbers[table] = first_broken(added)
        if numbers[table] is None:
            numbers[table] = _first_unsealed(added, table, journal_rows)
    for table, number in numbers.items():
        if number is not None:
            yield f"{table} row {number}: edited or removed since it was written"


def _first_unsealed(
    rows: Sequence[Row], table: str, journal_rows: Sequence[JournalRow]
) -> int | None:
    """Number of the first row that is not as a journal row sealed it, in a table whose chain holds.

    So are found rows that were cut off the end, and rows that were edited and chained again.
    """
    for sealing in journal_rows:
        number, _, digest = sealing.heads.get(table, seals.NO_ROWS).partition(" ")
        if int(number) > len(rows):
            return len(rows) + 1
        if int(number) and rows[int(number) - 1]["digest"] != digest:
            return int(number)
    return None


def _unsealed(
    rows: Mapping[str, list[Row]],
    journal_rows: Sequence[JournalRow],
    meta: Sequence[Row],
    meta_head: str,
) -> Iterator[str]:
    """Every chain holds; the seal tells whether each ends where the last command ended it."""
    heads = {seals.META: meta_head}
    for table, added in rows.items():
        heads[table] = seals.head(added)
    last = journal_rows[-1:]
    heads[seals.JOURNAL] = seals.NO_ROWS
    for row in last:
        heads[seals.JOURNAL] = f"{row.number} {row.digest}"
    if [row["seal"] for row in meta] != [seals.seal_of(heads)]:
        yield (
            "meta: its seal does not fit: since the last command wrote, it was edited, or rows at "
            "the end of the journal or of another table were removed or added"
        )


def _unanchored(journal_rows: Sequence[JournalRow], anchors: Mapping[str, str]) -> Iterator[str]:
    known = {row.digest for row in journal_rows}
    for place, head in anchors.items():
        if head not in known:
            yield (
                f"journal: no row has the digest {head} that {place} names, so the record was "
                "written anew since"
            )
