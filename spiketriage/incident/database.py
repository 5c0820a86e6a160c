"""The incident's DuckDB file: read from a copy of our own, and replaced by a swap.

This module never opens `incident.duckdb` itself, neither for reading nor for writing: a DuckDB
writer locks out every other process, and a log of somebody else's that does not fit shuts it.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path

import duckdb
import pyarrow as pa

from spiketriage import durable
from spiketriage.errors import EvidenceError, RefusedError
from spiketriage.incident import seals, set_aside, snapshot, structure
from spiketriage.incident.rows import Row
from spiketriage.nouns.incident import JournalRow

NAME = "incident.duckdb"
SCHEMA = "spiketriage.incident/5"
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
# A forensic tool works offline, and the incident may come from a stranger: DuckDB fetches no
# extension, sees no variable of ours, and has bounded means. What it cannot do in memory it
# refuses: somebody's view must not fill the disk of whoever opens it.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "threads": 2,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "memory_limit": "2GB",
    "temp_directory": "",
}


def build(folder: Path, *, created_at: str, run: str) -> None:
    """Write a new, empty `incident.duckdb` into `folder`."""
    with _written(folder / NAME) as connection:
        structure.create(connection)
        connection.execute("INSERT INTO meta VALUES (?, ?, ?, '')", [SCHEMA, created_at, run])
        _seal(connection)
    durable.sync(folder / NAME)
    durable.sync(folder)


@contextmanager
def reading(folder: Path, *, parquet: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A read-only connection that is closed at the end; the lease is not needed.

    It reaches no file but `parquet`, whatever a view of the file says.

    Raises:
        EvidenceError: the database is missing, damaged, or written by another version.
        DiskFullError: the temporary folder has no room for a copy.
    """
    connection = _opened(folder / NAME)
    try:
        _fence(connection, parquet)
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
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        snapshot.copy(current, work / NAME)
        with _written(work / NAME) as connection:
            _fence(connection, None)
            _check_schema(folder, connection)
            write(connection)
            _seal(connection)
        durable.sync(work / NAME)
        may_replace()
        set_aside.move(current)
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
    """Open a copy read-only; tried again, as a client may have written while it was made."""
    for attempt in range(1, NUM_TRIES + 1):
        try:
            return _opened_copy(path)
        except duckdb.Error as error:
            if attempt == NUM_TRIES:
                raise EvidenceError(f"{path}: cannot be opened: {_first_line(error)}") from error
            time.sleep(PAUSE_S)
        except OSError as error:
            if error.errno in durable.FULL:
                raise durable.disk_full(
                    Path(tempfile.gettempdir()) / NAME, _size_bytes(path)
                ) from error
            raise EvidenceError(f"{path}: cannot be opened: {error.strerror or error}") from error
    raise AssertionError("the loop above returns or raises")


def _opened_copy(path: Path) -> duckdb.DuckDBPyConnection:
    # The copy loses its name as soon as it is open: nothing is left behind, however we end.
    with tempfile.TemporaryDirectory(prefix="spiketriage-") as private:
        copied = Path(private) / NAME
        snapshot.copy(path, copied)
        return duckdb.connect(str(copied), read_only=True, config=_CONFIG)


def _fence(connection: duckdb.DuckDBPyConnection, parquet: Path | None) -> None:
    """From here on the connection opens no file but `parquet`, and nobody can let it out."""
    if parquet is not None:
        allowed = ", ".join(quoted(name) for name in (str(parquet), as_pattern(parquet)))
        connection.execute(f"SET allowed_paths = [{allowed}]")
        with suppress(duckdb.Error):  # older DuckDB has no such setting
            # An older incident's Parquet has minima and maxima, which leave NaN out: they must not
            # hide its rows.
            connection.execute("SET parquet_can_have_nan = true")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def as_pattern(path: Path) -> str:
    """`path` as DuckDB takes it, which is for a pattern: a run may be called run[1] beside run1."""
    return re.sub(r"[*?\[]", r"[\g<0>]", str(path))


def quoted(text: str) -> str:
    """`text` as a string of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _check_schema(folder: Path, connection: duckdb.DuckDBPyConnection) -> None:
    try:
        rows = connection.execute("SELECT schema FROM meta").fetchall()
    except duckdb.Error as error:
        raise EvidenceError(f"{folder / NAME}: table meta: {_first_line(error)}") from error
    if rows != [(SCHEMA,)]:
        seen = ", ".join(repr(schema) for (schema,) in rows) or "nothing"
        raise EvidenceError(
            f"{folder / NAME}: table meta: expected schema {SCHEMA!r}, found {seen}"
        )
    structure.require_tables(connection, folder / NAME)


def _seal(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("UPDATE meta SET seal = ?", [seals.seal(connection)])


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
