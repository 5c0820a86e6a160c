"""`spiketriage sql`: one statement that reads, on the tables and views of an incident.

This module never takes the lease and never writes; a colleague's question cannot disturb a command
that runs.
"""

from __future__ import annotations

import math
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spiketriage.errors import Exit, UsageError
from spiketriage.foreign_text import printable
from spiketriage.incident import next_step
from spiketriage.incident.query import QueryResult, query
from spiketriage.incident.store import find
from spiketriage.nouns.incident import StepResult

Cell = Any  # what JSON can hold
MAX_ROWS = 200  # on paper; JSON has them all
NARROWEST = 8  # characters that a column keeps while others are cut
GAP = "  "


def run(
    run_folder: Path,
    *,
    incidents: Path | None,
    incident: str | None,
    argv: Sequence[str],
    statement: str,
) -> StepResult:
    """Run `statement` on the incident and show its rows.

    Raises:
        UsageError: `statement` is not one statement that reads, or it is wrong.
        EvidenceError, RefusedError: the database cannot be read, or there is no incident.
    """
    place = find(run_folder, incidents=incidents, wanted=incident)
    try:
        result = query(place, statement)
    except UsageError as error:
        hint = next_step.command("sql", run_folder, incidents, incident).split(" ", 2)
        raise UsageError(
            error.message, hint=f"{hint[0]} sql {shlex.quote('SHOW TABLES')} {hint[2]}"
        ) from error
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    else:
        width = None
    rows = [[_plain(value) for value in row] for row in result.rows]
    return StepResult(
        incident=place.id,
        exit_code=Exit.DONE,
        verdict="",
        lines=table(result, rows, width),
        data={"columns": list(result.columns), "rows": rows, "num_rows": len(rows)},
        next_commands=(),
    )


def _plain(value: object) -> Cell:
    """`value` as JSON can hold it; nonfinite numbers are strings."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return _spelled(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def _spelled(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if value > 0:
        return "Infinity"
    return "-Infinity"


def table(
    result: QueryResult, rows: Sequence[Sequence[Cell]], width: int | None
) -> tuple[str, ...]:
    """The first rows as text, cut to `width` characters; how many more there are is said."""
    cells = [[_cell(value) for value in row] for row in (result.columns, *rows[:MAX_ROWS])]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    if width is not None:
        widths = _fitting(widths, width)
        widths = _narrowed(widths, width - len(GAP) * (len(widths) - 1))
    lines = [
        GAP.join(_cut(cell, size) for cell, size in zip(row, widths, strict=False)).rstrip()
        for row in cells
    ]
    if len(rows) > MAX_ROWS:
        more = [f"… {len(rows) - MAX_ROWS} more rows; --json has them all"]
    else:
        more = []
    hidden = result.columns[len(widths) :]
    if hidden:
        more.append(f"… not shown for want of room: {', '.join(hidden)}")
    count = f"({len(rows)} row{'' if len(rows) == 1 else 's'})"
    return (lines[0], GAP.join("─" * size for size in widths), *lines[1:], *more, count)


def _fitting(widths: Sequence[int], room: int) -> list[int]:
    """The widths of the first columns, as many as have room when each is cut as far as may be."""
    taken = -len(GAP)
    fitted: list[int] = []
    for width in widths:
        taken += min(width, NARROWEST) + len(GAP)
        if taken <= room or not fitted:
            fitted.append(width)
    return fitted


def _narrowed(widths: Sequence[int], room: int) -> list[int]:
    """The widths with the widest columns cut down, as far as that goes, until all fit."""
    fitted = list(widths)
    while sum(fitted) > room and max(fitted) > NARROWEST:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted


def _cut(cell: str, width: int) -> str:
    if len(cell) <= width:
        return cell.ljust(width)
    return f"{cell[: width - 1]}…"


def _cell(value: object) -> str:
    """One line of text; control characters of evidence must not reach the terminal."""
    text = "∅" if value is None else str(value)
    return printable(text)
