"""What is defined in the database file, held against what `schema.sql` and `views.sql` define.

It asks DuckDB's own catalog functions by their full names, and never evaluates a view or a macro.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

import duckdb

from spiketriage.errors import EvidenceError

# Kind → where the catalog lists it, its name and what defines it. A macro of the file may be called
# `count` or `duckdb_tables`, so nothing here may be found along the search path.
CATALOG: Mapping[str, tuple[str, str, str]] = {
    "table": ("duckdb_tables() WHERE NOT internal", "table_name", "sql"),
    "view": ("duckdb_views() WHERE NOT internal", "view_name", "sql"),
    "macro": ("duckdb_functions() WHERE NOT internal", "function_name", "macro_definition"),
    "type": ("duckdb_types() WHERE NOT internal", "type_name", "logical_type"),
    "index": ("duckdb_indexes()", "index_name", "sql"),
    "sequence": ("duckdb_sequences()", "sequence_name", "sql"),
}
Definitions = Mapping[tuple[str, str, str], tuple[str | None, str | None]]


def create(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the tables and views of an empty incident."""
    for name in ("schema.sql", "views.sql"):
        text = resources.files("spiketriage.incident").joinpath(name).read_text(encoding="utf-8")
        connection.execute(text)


def require_tables(connection: duckdb.DuckDBPyConnection, place: object) -> None:
    """Refuse a file in which a table of the record is a view by now, or has other columns.

    Raises:
        EvidenceError: so it is.
    """
    seen = _definitions(connection)
    for key, definition in _expected().items():
        kind, _, name = key
        if kind == "table" and seen.get(key) != definition:
            what = "is missing or no table" if key not in seen else "has other columns"
            raise EvidenceError(f"{place}: table {name}: {what}: expected {definition[0]}")


def differences(connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
    """A sentence for everything that is defined otherwise than our commands define it."""
    seen, expected = _definitions(connection), _expected()
    for key in sorted({*seen, *expected}):
        kind, schema, name = key
        if schema != "main":
            name = f"{schema}.{name}"
        if key not in seen:
            yield f"{kind} {name}: missing"
        elif key not in expected:
            yield f"{kind} {name}: added; no command of ours makes one"
        elif seen[key] != expected[key]:
            yield f"{kind} {name}: edited: expected {expected[key][0]}, found {seen[key][0]}"


@cache
def _expected() -> Definitions:
    with duckdb.connect() as connection:
        create(connection)
        return _definitions(connection)


def _definitions(connection: duckdb.DuckDBPyConnection) -> Definitions:
    definitions: dict[tuple[str, str, str], tuple[str | None, str | None]] = {}
    for kind, (function, named, defined) in CATALOG.items():
        query = f"SELECT schema_name, {named}, {defined}, comment FROM system.main.{function}"
        for schema, name, text, comment in connection.execute(query).fetchall():
            definitions[kind, schema, name] = (text, comment)
    return definitions
