"""Heads and seals: digests that stand for whole tables, so that a row missing at an end is missed.

It reads tables of the record and never writes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spiketriage.incident import journal
from spiketriage.incident.rows import TABLES, Row

if TYPE_CHECKING:
    import duckdb

META, JOURNAL = "meta", "journal"
NO_ROWS = f"0 {journal.START}"


def head(rows: list[Row]) -> str:
    """The number and digest of the last row."""
    if not rows:
        return NO_ROWS
    return f"{rows[-1]['number']} {rows[-1]['digest']}"


def heads(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """The head of every table of results, and the digest of `meta`."""
    result = {META: _meta(connection)}
    for table in TABLES:
        result[table] = _head(connection, table)
    return result


def seal(connection: duckdb.DuckDBPyConnection) -> str:
    """The digest of all heads, the journal's included."""
    return seal_of({**heads(connection), JOURNAL: _head(connection, JOURNAL)})


def seal_of(all_heads: Mapping[str, str]) -> str:
    """The digest of these heads."""
    return journal.digest_of(journal.START, all_heads)


def _head(connection: duckdb.DuckDBPyConnection, table: str) -> str:
    last = connection.execute(
        f"SELECT number, digest FROM {table} ORDER BY number DESC LIMIT 1"
    ).fetchall()  # a result that is not read to its end would keep the transaction open
    for number, digest in last:
        return f"{number} {digest}"
    return NO_ROWS


def _meta(connection: duckdb.DuckDBPyConnection) -> str:
    rows = connection.execute("SELECT schema, created_at, run FROM meta").fetchall()
    return journal.digest_of(journal.START, {META: rows})
