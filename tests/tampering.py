"""Every edit that `verify` must find: each table and each file of a real incident, tampered with.

Run: `python tests/tampering.py RUN` on a run whose incident has trials and a report; it prints the
table of docs/incident-folder.md. Every edit is undone before the next one.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import duckdb

from spiketriage.incident import database, journal, seals, store
from spiketriage.incident.rows import TABLES, Row, chained
from spiketriage.tools import verify

ALL_TABLES = (*TABLES, "journal")
LAST = "(SELECT max(number) FROM {table})"
ANOTHER = {
    "VARCHAR": "'tampered'",
    "BIGINT": "coalesce({column}, 0) + 1",
    "BOOLEAN": "NOT {column}",
}
Edit = Callable[[duckdb.DuckDBPyConnection, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One edit, and whether `verify` called the incident broken after it."""

    place: str
    kind: str
    found: bool


def changed(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """One value of the first row, in the first column that is not the chain's own."""
    column, kind = connection.execute(
        "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? AND data_type IN "
        "('VARCHAR', 'BIGINT', 'BOOLEAN') AND column_name NOT IN ('number', 'command', 'digest', 'previous') "
        "ORDER BY column_index LIMIT 1",
        [table],
    ).fetchall()[0]
    value = ANOTHER[kind].format(column=column)
    connection.execute(f'UPDATE {table} SET "{column}" = {value} WHERE number = 1')


def deleted(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """The first row."""
    connection.execute(f"DELETE FROM {table} WHERE number = 1")


def last(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """The last row."""
    connection.execute(f"DELETE FROM {table} WHERE number = {LAST.format(table=table)}")


def everything(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """All rows."""
    connection.execute(f"DELETE FROM {table}")


def added(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """A row at the end, chained as a command would chain it."""
    if table == "journal":
        rows = database.journal_rows(connection)
        row = journal.sealed(replace(rows[-1], argv="spiketriage forged"), rows[-1])
        database.insert(connection, table, [asdict(row)])
        return
    rows = database.select(connection, f"SELECT * FROM {table} ORDER BY number")
    values = {name: value for name, value in rows[-1].items() if name != "digest"}
    number, before = rows[-1]["number"], rows[-1]["digest"]
    new = chained([values], last_number=number, previous=before, command=values["command"])
    database.insert(connection, table, new)


def reordered(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """The first and the last row change places; a table of one row gets another place."""
    top = LAST.format(table=table)
    connection.execute(
        f"UPDATE {table} SET number = CASE WHEN number = 1 THEN {top} + (SELECT count(*) = 1 FROM "
        f"{table})::INT ELSE 1 END WHERE number IN (1, {top})"
    )


def resealed(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """A value is changed, and every chain, head and seal is computed again from the first row."""
    changed(connection, table)
    heads = seals.heads(connection)
    for name in TABLES:
        rows = database.select(connection, f"SELECT * FROM {name} ORDER BY number")
        again = _chained_again(rows)
        connection.execute(f"DELETE FROM {name}")
        database.insert(connection, name, again)
        heads[name] = seals.head(again)
    rows_of_journal = database.journal_rows(connection)
    connection.execute("DELETE FROM journal")
    before = None
    for row in rows_of_journal:
        if row is rows_of_journal[-1]:
            row = replace(row, heads=heads)
        else:
            row = replace(row, heads={seals.META: heads[seals.META]})
        before = journal.sealed(row, before)
        database.insert(connection, "journal", [asdict(before)])
    connection.execute("UPDATE meta SET seal = ?", [seals.seal(connection)])


def _chained_again(rows: list[Row]) -> list[Row]:
    again: list[Row] = []
    for row in rows:
        values = {name: value for name, value in row.items() if name != "digest"}
        before = again[-1]["digest"] if again else journal.START
        again += chained(
            [values], last_number=len(again), previous=before, command=values["command"]
        )
    return again


KINDS: dict[str, Edit] = {
    "changed": changed,
    "deleted": deleted,
    "last": last,
    "all": everything,
    "added": added,
    "reordered": reordered,
    "resealed": resealed,
}
DEFINITIONS = {
    "meta, run": "UPDATE meta SET run = '/elsewhere'",
    "meta, created_at": "UPDATE meta SET created_at = '2001-01-01'",
    "meta, seal": "UPDATE meta SET seal = repeat('0', 64)",
    "meta, gone": "DELETE FROM meta",
    "view edited": "CREATE OR REPLACE VIEW latest_verdicts AS SELECT * FROM verdicts LIMIT 0",
    "view gone": "DROP VIEW timeline",
    "view added": "CREATE VIEW another AS SELECT 1 AS one",
    "table added": "CREATE TABLE another (one INT)",
    "column added": "ALTER TABLE facts ADD COLUMN another INT",
    "macro added": "CREATE MACRO max_by(a, b) AS 42",
}


def cells_of_tables(run: Path, incident: store.Incident) -> Iterator[Cell]:
    """Every table with every kind of edit."""
    path = incident.folder / database.NAME
    whole = path.read_bytes()
    try:
        for table in ALL_TABLES:
            for kind, edit in KINDS.items():
                with duckdb.connect(str(path)) as connection:
                    edit(connection, table)
                yield Cell(place=table, kind=kind, found=_is_broken(run, incident))
                path.write_bytes(whole)
        for kind, statement in DEFINITIONS.items():
            with duckdb.connect(str(path)) as connection:
                connection.execute(statement)
            yield Cell(place="definitions", kind=kind, found=_is_broken(run, incident))
            path.write_bytes(whole)
    finally:
        path.write_bytes(whole)


def files(incident: store.Incident) -> list[Path]:
    """Every file of the incident beside its database."""
    paths = [path for path in incident.folder.rglob("*") if path.is_file()]
    return sorted(path for path in paths if path.name != database.NAME)


def flip(run: Path, incident: store.Incident, path: Path, offset: int) -> Cell:
    """One bit of one file, which keeps its size and time; a hard link is parted from its file."""
    before, status = path.read_bytes(), path.stat()
    kept = path.with_name(f"{path.name}.kept")
    path.rename(kept)
    try:
        content = bytearray(before or b"x")
        content[offset % len(content)] ^= 1
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        kept.rename(incident.folder.parent / kept.name)
        place = path.relative_to(incident.folder).as_posix()
        return Cell(place=place, kind="one byte", found=_is_broken(run, incident))
    finally:
        (incident.folder.parent / kept.name).rename(path)


def _is_broken(run: Path, incident: store.Incident) -> bool:
    result = verify.run(
        run, incidents=None, incident=incident.id, argv=["spiketriage", "verify"], deep=True
    )
    return result.verdict == "broken"


def _folder(place: str) -> str:
    depth = 2 if place.startswith("evidence/") else 1
    return "/".join(place.split("/")[:depth])


def main() -> int:
    """Print one row a table, then one a folder; 1 when an edit was missed."""
    run = Path(sys.argv[1])
    incident = store.find(run, incidents=None, wanted=None)
    assert not _is_broken(run, incident), "the incident was broken before the first edit"
    missed: list[Cell] = []
    rows: dict[str, list[Cell]] = {}
    byte: Counter[tuple[str, bool]] = Counter()
    for cell in cells_of_tables(run, incident):
        rows.setdefault(cell.place, []).append(cell)
        missed += [] if cell.found else [cell]
    print(f"| table | {' | '.join(KINDS)} |\n| --- |{' --- |' * len(KINDS)}")
    for table in ALL_TABLES:
        print(f"| `{table}` | {' | '.join('found' if c.found else 'NOT' for c in rows[table])} |")
    for cell in rows["definitions"]:
        print(f"{cell.kind}: {'found' if cell.found else 'NOT'}")
    for number, path in enumerate(files(incident)):
        cell = flip(run, incident, path, number * 7919)
        byte[_folder(cell.place), cell.found] += 1
        missed += [] if cell.found else [cell]
    for (place, found), count in sorted(byte.items()):
        print(f"{place}: one byte of each of {count} files: {'found' if found else 'NOT'}")
    for cell in missed:
        print(f"missed: {cell.place}: {cell.kind}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
