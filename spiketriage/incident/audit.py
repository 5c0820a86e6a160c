"""Tell whether the record of an incident is still what its commands wrote.

The chain of every table.

This module never writes, and it trusts no view: a view could have been edited too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spiketriage.incident import database, journal
from spiketriage.incident.rows import TABLES, first_broken

if TYPE_CHECKING:
    from spiketriage.incident.store import Incident


def audit(incident: Incident) -> tuple[str, ...]:
    """A sentence for the first broken row of every table; nothing when all chains hold.

    Raises:
        EvidenceError: the database cannot be read.
    """
    with database.reading(incident.folder) as connection:
        broken = {"journal": journal.verify(database.journal_rows(connection))}
        for table in TABLES:
            broken[table] = first_broken(
                database.select(connection, f"SELECT * FROM {table} ORDER BY number")
            )
    return _sentences(broken, incident)


def _sentences(broken: dict[str, int | None], incident: Incident) -> tuple[str, ...]:
    found: Sequence[tuple[str, int]] = [
        (table, number) for table, number in broken.items() if number is not None
    ]
    return tuple(
        f"{incident.id}/{database.NAME}: {table} row {number}: edited or removed since it "
        "was written"
        for table, number in found
    )
