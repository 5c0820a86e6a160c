"""A colleague's SQL: one statement that reads an incident's tables, views and frozen telemetry.

This module never writes, and the statement can reach no file but the incident's own database and
Parquet.
"""

from __future__ import annotations

import threading
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
# A signal is seen within the first, and the command is gone at the latest with the second: together
# less than the two seconds in which every command ends.
POLL_S, STOP_S = 0.1, 1.0
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
    asking = _Asking(incident, sql)
    asking.start()
    try:
        # a join that a signal breaks off leaves the thread for dead, so an event is waited for
        while not asking.ended.wait(POLL_S):
            pass
    except BaseException:
        asking.stop()
        raise
    return asking.answer()


class _Asking(threading.Thread):
    """Asks in a thread of its own: signals reach the main thread, and a query never returns to it.

    Connection and result belong to this thread; `stop` alone is called from another.
    """

    def __init__(self, incident: Incident, sql: str) -> None:
        super().__init__(name="spiketriage-sql", daemon=True)
        self._incident = incident
        self._sql = sql
        self.ended = threading.Event()
        self._stopped = threading.Event()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._outcome: QueryResult | BaseException | None = None

    def run(self) -> None:
        """Open the incident, ask, and keep the answer or the error for the main thread."""
        telemetry = (self._incident.folder / "evidence" / "telemetry.parquet").absolute()
        try:
            with database.reading(self._incident.folder, parquet=telemetry) as connection:
                _show(connection, telemetry)
                self._connection = connection
                self._outcome = self._fetched(connection)
        except BaseException as error:  # noqa: BLE001 - raised again where it can be explained
            self._outcome = error
        finally:
            self.ended.set()

    def stop(self) -> None:
        """Interrupt the query; one that does not listen ends with the process."""
        self._stopped.set()
        if self._connection is not None:
            self._connection.interrupt()
        self.ended.wait(STOP_S)

    def answer(self) -> QueryResult:
        """What the query answered, once the thread has ended."""
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        assert self._outcome is not None, "a thread that ended has an outcome"
        return self._outcome

    def _fetched(self, connection: duckdb.DuckDBPyConnection) -> QueryResult:
        rows: list[tuple[object, ...]] = []
        try:
            cursor = connection.execute(self._sql)
            columns = tuple(column[0] for column in cursor.description or ())
            # in parts: DuckDB lets no other thread run while it makes Python objects
            while not self._stopped.is_set() and (part := cursor.fetchmany(NUM_ROWS_AT_ONCE)):
                rows += part
        # a few result types need a library that may be missing
        except (duckdb.Error, ImportError) as error:
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
