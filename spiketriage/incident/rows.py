"""Records as rows of the incident's tables and back, NaN, infinities and unknown parts included.

This module never opens a database, and never removes a row: it says which one is the newest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from spiketriage.incident import journal
from spiketriage.nouns.checkpoint import MeasuredGeneration
from spiketriage.nouns.incident import (
    Anchors,
    Artifact,
    CauseView,
    ExperimentRow,
    FileRow,
    Finding,
    Freeze,
    SettingRow,
    Spike,
    StepPoint,
    TrialRow,
    Verdict,
    Where,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
Cell = Any  # a value of a column, as Arrow, DuckDB and JSON all understand it
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One named sentence about the incident."""

    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of results: the record that its rows hold, and which row supersedes which.

    Of the rows with equal `key` the newest counts; without a key, the newest row of all. Those that
    count are in the order in which their keys first appeared, or sorted by `order`.
    """

    record: type[DataclassInstance]
    key: tuple[str, ...] = ()
    order: tuple[str, ...] = ()


TABLES: Mapping[str, Table] = {
    "facts": Table(record=Fact, key=("key",)),
    "freezes": Table(record=Freeze),
    "spikes": Table(record=Spike),
    "anchors": Table(record=Anchors),
    "generations": Table(record=MeasuredGeneration, key=("name",), order=("step", "name")),
    "artifacts": Table(record=Artifact, key=("path",)),
    "findings": Table(record=Finding, key=("name",)),
    "trials": Table(record=TrialRow, key=("key",)),
    "steps": Table(record=StepPoint, key=("attempt", "step"), order=("attempt", "step")),
    "verdicts": Table(record=Verdict),
    "setting": Table(record=SettingRow),
    "experiments": Table(record=ExperimentRow, key=("name",)),
    "files": Table(record=FileRow, key=("path",)),
}
_ESCAPED_BYTE = re.compile(
    r"\\u(dc[89a-f][0-9a-f])"
)  # a byte of a file's name that is not UTF-8, as `_plain` wrote it
_RENAMED = {"digest": "digest_measured"}  # every row has a `digest` of its own


def pack(record: DataclassInstance) -> Row:
    """The columns of `record`; a nonfinite number becomes NULL and is spelled in `nonfinite`."""
    row: Row = {}
    nonfinite: dict[str, str] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Where):
            row.update(
                {f"where_{part.name}": _plain(getattr(value, part.name)) for part in fields(Where)}
            )
            continue
        if field.type == "Mapping[str, int]":
            row[field.name] = {_plain(str(key)): int(number) for key, number in value.items()}
            continue
        if str(field.type).startswith("float") and value is not None:
            value = float(value)
            if not math.isfinite(value):
                nonfinite[field.name], value = _spelled(value), None
        row[_RENAMED.get(field.name, field.name)] = _plain(value)
    return {"nonfinite": nonfinite, **row}  # a field of that name has the column to itself


def unpack(record_class: type[Record], row: Mapping[str, Any]) -> Record:
    """The record that `pack` made `row` from."""
    values: dict[str, Any] = {}
    for field in fields(record_class):
        if field.name == "where":
            values["where"] = Where(
                **{part.name: row[f"where_{part.name}"] for part in fields(Where)}
            )
        else:
            values[field.name] = _thawed(row[_RENAMED.get(field.name, field.name)])
    if "nonfinite" not in values:
        values.update({name: float(text) for name, text in row["nonfinite"].items()})
    return record_class(**values)


def newest(table: Table, rows: Iterable[Row]) -> list[Row]:
    """The rows that no later one of `rows`, which are in the order of their numbers, supersedes."""
    by_key: dict[tuple[Cell, ...], Row] = {}
    for row in rows:
        by_key[tuple(row[column] for column in table.key)] = row
    if not table.order:
        return list(by_key.values())

    def place(row: Row) -> list[tuple[bool, Cell]]:
        return [(row[column] is not None, row[column]) for column in table.order]

    return sorted(by_key.values(), key=place)


def chained(rows: Iterable[Row], *, last_number: int, previous: str, command: int) -> list[Row]:
    """`rows` numbered on from `last_number` and each sealed over the row before it."""
    result = []
    for number, row in enumerate(rows, start=last_number + 1):
        whole = {**row, "number": number, "command": command}
        previous = journal.digest_of(previous, whole)
        result.append({**whole, "digest": previous})
    return result


def first_broken(rows: Iterable[Row]) -> int | None:
    """Number of the first row that is missing or no longer matches its digest; None if none is."""
    previous = journal.START
    for number, row in enumerate(rows, start=1):
        values = {name: value for name, value in row.items() if name != "digest"}
        if row["number"] != number or row["digest"] != journal.digest_of(previous, values):
            return number
        previous = row["digest"]
    return None


def _spelled(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if value > 0:
        return "Infinity"
    return "-Infinity"


def _plain(value: Cell) -> Cell:
    """`value` as Arrow and JSON both understand it; bytes that are not UTF-8 stay as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, CauseView):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {_plain(str(key)): _plain(str(item)) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | float):
        return value
    return int(value)


def _thawed(value: Cell) -> Cell:
    if isinstance(value, str):
        if "\\udc" in value:
            return _ESCAPED_BYTE.sub(lambda escape: chr(int(escape[1], 16)), value)
        return value
    if isinstance(value, dict):
        return {_thawed(key): _thawed(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if value and isinstance(value[0], dict):
        result = []
        for view in value:
            result.append(CauseView(**{name: _thawed(item) for name, item in view.items()}))
        return tuple(result)
    return tuple(_thawed(item) for item in value)
