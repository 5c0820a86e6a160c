"""Reads a trackio project: an SQLite file in which each log call is a row of JSON.

This module never opens the database in place and never starts trackio.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.series import LogFacts, Rollback, Series
from spiketriage.readers.look import Look
from spiketriage.readers.telemetry.series import scalars
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.readers.telemetry.stores import sqlite_copy
from spiketriage.readers.telemetry.stores.log_calls import CallKeys, trace_calls

NAME = "trackio"
TELLS = (
    "Every log call of every run, NaN and infinity included, and what is still in the "
    "write-ahead log."
)
CANNOT = (
    "The step where the trainer passed none (it counts log calls), and the time zone in older "
    "versions."
)
CALLS = CallKeys(
    number="trackio step", time="trackio time", own=frozenset({"trackio step", "trackio time"})
)
_COLUMNS = ("run_name", "timestamp", "step", "metrics")


def claims(look: Look) -> float:
    """Likely for an SQLite file whose first page has trackio's table."""
    if look.is_folder or not look.head.startswith(sqlite_copy.MAGIC):
        return 0.0
    if b"run_name" in look.head and b"metrics TEXT" in look.head:
        return 0.9
    return 0.0


def read(path: Path, names: Names) -> LogFacts:
    """Every run of a project; the source of a series is its run's name.

    Raises:
        EvidenceError: the file cannot be read, or is no project of trackio's.
    """
    problems: list[str] = []
    runs: dict[str, list[dict[str, object]]] = {}
    num_lines = num_bad = 0
    with sqlite_copy.open_copy(path) as database:
        if not set(_COLUMNS) <= set(database.columns("metrics")):
            raise EvidenceError(f"{path}: has no table metrics as trackio makes it")
        problems += [text for text in (database.damage(),) if text]
        for row in database.select("metrics", _COLUMNS, problems):
            run, time, step, metrics = row
            num_lines += 1
            if isinstance(metrics, str | bytes):
                values = scalars.json_or_none(metrics)
            else:
                values = None
            if not isinstance(values, dict):
                num_bad += 1
                continue
            runs.setdefault(str(run), []).append(
                {**values, CALLS.number: step, CALLS.time: _time_s(time)}
            )
    if num_bad:
        problems.append(f"{num_bad} rows hold no JSON object")
    facts = _facts(path, runs, names)
    return replace(
        facts,
        num_lines=num_lines,
        num_matched=num_lines - num_bad,
        num_near_misses=num_bad,
        problems=tuple(problems),
    )


def _time_s(written: object) -> float | None:
    """UNIX time where the zone is written."""
    try:
        time = datetime.fromisoformat(str(written))
        if time.tzinfo is not None:
            return time.timestamp()
        return None
    except (ValueError, OverflowError, OSError):
        return None


def _facts(path: Path, runs: dict[str, list[dict[str, object]]], names: Names) -> LogFacts:
    series: list[Series] = []
    rollbacks: list[Rollback] = []
    notes: list[str] = []
    for run, calls in runs.items():
        traced = trace_calls(run, calls, names, CALLS)
        series += traced.series
        rollbacks += traced.rollbacks
        notes += [f"run {run}: {note}" for note in traced.notes]
    return LogFacts(
        format=NAME, path=path, series=tuple(series), rollbacks=tuple(rollbacks), notes=tuple(notes)
    )
