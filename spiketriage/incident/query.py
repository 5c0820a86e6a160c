"""A colleague's SQL: one statement that reads an incident's tables, views and frozen telemetry.

This module never writes, and the statement can reach no file but the incident's own database and
Parquet.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from spiketriage.errors import UsageError
from spiketriage.incident import database

if TYPE_CHECKING:
    from spiketriage.incident.store import Incident

HINT = "spiketriage sql 'SHOW TABLES'"
NUM_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """The columns and rows of a statement."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


def query(incident: Incident, sql: str) -> QueryResult:
    """Run one statement that reads.

    Raises:
        UsageError: it is not exactly one statement that reads, or DuckDB refuses it.
        EvidenceError: the database cannot be read.
    """
    _check(sql)
    telemetry = (incident.folder / "evidence" / "telemetry.parquet").absolute()
    with database.reading(incident.folder, parquet=telemetry) as connection:
        _show(connection, telemetry)
        return _fetched(connection, sql)


def _fetched(connection: duckdb.DuckDBPyConnection, sql: str) -> QueryResult:
    rows: list[tuple[object, ...]] = []
    try:
        cursor = connection.execute(sql)
        columns = tuple(column[0] for column in cursor.description or ())
        # in parts: no other thread runs, and no signal is seen, while DuckDB makes Python objects
        while part := cursor.fetchmany(NUM_ROWS_AT_ONCE):
            rows += part
    except (duckdb.Error, ImportError) as error:  # a few types need a library that may be missing
        raise UsageError(f"sql: {error}", hint=HINT) from error
    return QueryResult(columns=columns, rows=tuple(rows))


def _check(sql: str) -> None:
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise UsageError(f"sql: {error}", hint=HINT) from error
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        seen = ", ".join(statement.type.name for statement in statements) or "nothing"
        raise UsageError(
            f"sql: expected one statement that reads (SELECT, DESCRIBE, SHOW), found {seen}",
            hint=HINT,
        )


def _show(connection: duckdb.DuckDBPyConnection, telemetry: Path) -> None:
    """Let the frozen telemetry be asked by its name."""
    if telemetry.is_file():
        pattern = database.quoted(database.as_pattern(telemetry))
        # Damaged Parquet must not shut the database; `verify` names it.
        with suppress(duckdb.Error):
            connection.execute(f"CREATE TEMP VIEW telemetry AS FROM read_parquet({pattern})")
