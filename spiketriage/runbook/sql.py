"""`spiketriage sql`: one statement that reads, on the tables and views of an incident.

This module never takes the lease and never writes; a colleague's question cannot disturb a command that runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spiketriage.incident.query import QueryResult, query
from spiketriage.incident.store import find
from spiketriage.records import StepResult

Cell = Any  # what JSON can hold


def run(
    run_folder: Path, *, incidents: Path | None, incident: str | None, argv: Sequence[str], statement: str
) -> StepResult:
    """Run `statement` on the incident and show its rows.

    Raises:
        UsageError: `statement` is not one statement that reads, or it is wrong.
        EvidenceError, RefusedError: the database cannot be read, or there is no incident.
    """
    found = find(run_folder, incidents=incidents, wanted=incident)
    result = query(found, statement)
    rows = [[_plain(value) for value in row] for row in result.rows]
    return StepResult(
        incident=found.id,
        exit_code=0,
        verdict="",
        lines=_table(result, rows),
        data={"columns": list(result.columns), "rows": rows, "num_rows": len(rows)},
        next_commands=(),
    )


def _plain(value: object) -> Cell:
    """`value` as JSON can hold it; nonfinite numbers are strings."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _spelled(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def _spelled(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _table(result: QueryResult, rows: Sequence[Sequence[Cell]]) -> tuple[str, ...]:
    cells = [[_cell(value) for value in row] for row in (result.columns, *rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    count = f"({len(rows)} row{'' if len(rows) == 1 else 's'})"
    return (lines[0], "  ".join("─" * width for width in widths), *lines[1:], count)


def _cell(value: object) -> str:
    """One line of text; control characters of evidence must not reach the terminal."""
    text = "∅" if value is None else str(value)
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
