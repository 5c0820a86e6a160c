"""The incident's DuckDB file: opened read-only for moments, and replaced by a swap.

This module never opens `incident.duckdb` itself for writing: a DuckDB writer locks out every other
process.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from spiketriage import durable
from spiketriage.errors import BusyError, EvidenceError, RefusedError
from spiketriage.incident.rows import Row
from spiketriage.nouns.incident import JournalRow

NAME = "incident.duckdb"
SCHEMA = "spiketriage.incident/2"
# The working copy keeps the file's name, which DuckDB takes as the name of the catalog, and lies in
# a folder.
SWAP_PREFIX = ".swap-"
NUM_TRIES = 5
NEW_BYTES = 4 << 20  # what an empty incident takes while it is made, generously
# DuckDB tells a full disk in words only; a failed checkpoint on a copy of our own has no other
# cause.
_FULL_WORDS = (
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    "Failed to create checkpoint",
)
PAUSE_S = 0.05
# A forensic tool works offline: DuckDB must never fetch an extension by itself.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "threads": 2,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


def build(folder: Path, *, created_at: str, run: str) -> None:
    """Write a new, empty `incident.duckdb` into `folder`."""
    with _written(folder / NAME) as connection:
        for name in ("schema.sql", "views.sql"):
            connection.execute(
                resources.files("spiketriage.incident").joinpath(name).read_text(encoding="utf-8")
            )
        connection.execute("INSERT INTO meta VALUES (?, ?, ?)", [SCHEMA, created_at, run])
    durable.sync(folder / NAME)
    durable.sync(folder)


@contextmanager
def reading(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A read-only connection that is closed at the end; the lease is not needed.

    Raises:
        EvidenceError: the database is missing, damaged, or written by a newer version.
        BusyError: a DuckDB client of somebody else has the file open for writing.
    """
    connection = _opened(folder / NAME)
    try:
        _check_schema(folder, connection)
        yield connection
    except duckdb.Error as error:
        raise EvidenceError(f"{folder / NAME}: cannot be read: {_first_line(error)}") from error
    finally:
        connection.close()


def swap(
    folder: Path,
    write: Callable[[duckdb.DuckDBPyConnection], None],
    *,
    may_replace: Callable[[], None],
) -> None:
    """Run `write` in one transaction on a copy, then put the copy in place of `incident.duckdb`.

    `may_replace` is asked last, and raises when the lease was lost meanwhile.

    Raises:
        EvidenceError: the database cannot be opened or written.
        RefusedError: the folder cannot be written.
        DiskFullError: its disk is full.
    """
    current, work = folder / NAME, folder / f"{SWAP_PREFIX}{os.getpid()}"
    try:
        _copy(current, work)
        with _written(work / NAME) as connection:
            write(connection)
        durable.sync(work / NAME)
        may_replace()
        # A log that a colleague's own writer left behind is in the copy and would not fit the new
        # file.
        (folder / f"{NAME}.wal").unlink(missing_ok=True)
        os.replace(work / NAME, current)
        durable.sync(folder)
    except OSError as error:
        # a lost lease explains a vanished working copy better than the copy's absence does
        may_replace()
        if error.errno in durable.FULL:
            raise durable.disk_full(current, 2 * current.stat().st_size) from error
        raise RefusedError(
            f"{folder}: the incident cannot be written: {error.strerror or error}"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def clean(folder: Path) -> None:
    """Remove the working copies of killed commands; only the lease holder may ask for it."""
    for leftover in folder.glob(f"{SWAP_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def insert(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Row]) -> None:
    """Add `rows` to `table` through Arrow, whose types are taken from the table itself."""
    if not rows:
        return
    schema = connection.sql(f"SELECT * FROM {table} LIMIT 0").to_arrow_table().schema
    plain = []
    for row in rows:
        plain.append(
            {name: list(v.items()) if isinstance(v, dict) else v for name, v in row.items()}
        )
    connection.register("incoming", pa.Table.from_pylist(plain, schema=schema))
    connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
    connection.unregister("incoming")


def select(connection: duckdb.DuckDBPyConnection, sql: str) -> list[Row]:
    """The rows of a query of ours, by column name."""
    cursor = connection.execute(sql)
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def journal_rows(
    connection: duckdb.DuckDBPyConnection, *, newest: int | None = None
) -> tuple[JournalRow, ...]:
    """The journal in order, or its `newest` rows."""
    names = ", ".join(f'"{field.name}"' for field in fields(JournalRow))
    limit = "" if newest is None else f" LIMIT {newest}"
    rows = select(connection, f"SELECT {names} FROM journal ORDER BY number DESC{limit}")
    return tuple(JournalRow(**row) for row in reversed(rows))


def _copy(current: Path, work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    for path in (current, current.with_name(f"{NAME}.wal")):
        if path.exists() or path == current:
            shutil.copyfile(path, work / path.name)


@contextmanager
def _written(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """One transaction on `path`, then a checkpoint, after which the file is the whole database."""
    try:
        connection = duckdb.connect(str(path), config=_CONFIG)
        try:
            connection.begin()
            yield connection
            connection.commit()
            connection.execute("CHECKPOINT")
        finally:
            connection.close()
    except duckdb.Error as error:
        if any(words in str(error) for words in _FULL_WORDS):
            raise durable.disk_full(_final(path), max(NEW_BYTES, _size_bytes(path))) from error
        raise EvidenceError(f"{path}: cannot be written: {_first_line(error)}") from error


def _final(path: Path) -> Path:
    """Where the working copy at `path` was to be put in the end."""
    if path.parent.name.startswith(SWAP_PREFIX):
        return path.parent.parent / path.name
    return path


def _size_bytes(path: Path) -> int:
    if path.exists():
        return path.stat().st_size
    return 0


def _opened(path: Path) -> duckdb.DuckDBPyConnection:
    """Open read-only; tried again, as a swap may fall between two of DuckDB's looks at the file."""
    for attempt in range(1, NUM_TRIES + 1):
        try:
            return duckdb.connect(str(path), read_only=True, config=_CONFIG)
        except duckdb.Error as error:
            if attempt == NUM_TRIES or not path.exists():
                raise _explained(path, error) from error
            time.sleep(PAUSE_S)
    raise AssertionError("the loop above returns or raises")


def _explained(path: Path, error: duckdb.Error) -> EvidenceError | BusyError:
    holder = re.search(r"lock is held.*\(PID (\d+)\)", str(error))
    if holder:
        return BusyError(
            f"{path}: process {holder[1]} has it open for writing in a DuckDB client of its own",
            hint=f"ps -p {holder[1]}",
        )
    return EvidenceError(f"{path}: cannot be opened: {_first_line(error)}")


def _check_schema(folder: Path, connection: duckdb.DuckDBPyConnection) -> None:
    row: Any = connection.execute("SELECT schema FROM meta").fetchone()
    if row is None or row[0] != SCHEMA:
        seen = "nothing" if row is None else repr(row[0])
        raise EvidenceError(
            f"{folder / NAME}: table meta: expected schema {SCHEMA!r}, found {seen}"
        )


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
