"""Reads MLflow's file store (`mlruns/…/metrics/<key>`) and its SQLite store (`mlflow.db`).

This module never asks a tracking server and never opens a database in place.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.series import LogFacts, Rollback, Series
from spiketriage.readers.look import Look
from spiketriage.readers.telemetry.series import scalars
from spiketriage.readers.telemetry.series.attempts import Origin
from spiketriage.readers.telemetry.series.lines import row_lines
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.readers.telemetry.series.opening import open_log
from spiketriage.readers.telemetry.series.points import Points
from spiketriage.readers.telemetry.stores import sqlite_copy

NAME = "mlflow"
TELLS = (
    "Every value of every run with step and time in milliseconds, NaN and infinity included, "
    "and the parameters."
)
CANNOT = "The step where none was passed (it is 0), the rank, and whether a run continues another."
DATABASE = "mlflow.db"
TRUST = "as logged; a step that was not passed is 0"
_MAX_FOLDERS = 100_000
_MAX_FILES = 1_000_000
_MAX_PARAMETER_BYTES = 6000
_COLUMNS = ("run_uuid", "key", "value", "timestamp", "step", "is_nan")


@dataclass(slots=True, kw_only=True)
class _Run:
    points: Points = field(default_factory=Points)
    identity: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Store:
    runs: dict[str, _Run] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    num_lines: int = 0
    num_bad: int = 0

    def add(self, run: str, key: str, *, value: float, step: int, time_ms: int) -> None:
        self.runs.setdefault(run, _Run()).points.add(
            key, row=time_ms, step=step, value=value, time_s=time_ms / 1000
        )


def claims(look: Look) -> float:
    """Certain of a folder named `mlruns` or a run's own, and of a database.

    A folder around them may hold more.
    """
    if look.is_folder:
        if look.path.name == "mlruns" or {"meta.yaml", "metrics", "params"} <= set(look.names):
            return 0.95
        if DATABASE in look.names or "mlruns" in look.names:
            return 0.4
        return 0.0
    if not look.head.startswith(sqlite_copy.MAGIC):
        return 0.0
    if look.path.name == DATABASE or b"run_uuid" in look.head:
        return 0.9
    return 0.0


def read(path: Path, names: Names) -> LogFacts:
    """Every run of a store; the source of a series is its run's id.

    Raises:
        EvidenceError: nothing can be read.
    """
    store = _Store()
    if not path.is_dir():
        _read_database(path, store)
    else:
        _read_folder(path, store)
        if (path / DATABASE).is_file():
            _read_database(path / DATABASE, store)
    if not any(run.points for run in store.runs.values()):
        raise EvidenceError(
            f"{path}: holds no metric of any MLflow run: "
            f"{'; '.join(store.problems) or 'none found'}"
        )
    return _facts(path, store, names)


def _facts(path: Path, store: _Store, names: Names) -> LogFacts:
    series: list[Series] = []
    rollbacks: list[Rollback] = []
    notes: list[str] = []
    identity: dict[str, str] = {}
    for run_id, run in store.runs.items():
        traced = run.points.trace(Origin(source=run_id, trust=TRUST), names)
        series += traced.series
        rollbacks += traced.rollbacks
        notes += [f"run {run_id}: {note}" for note in traced.notes]
        prefix = "" if len(store.runs) == 1 else f"{run_id}/"
        identity |= {f"{prefix}{key}": value for key, value in run.identity.items()}
    if len(store.runs) > 1:
        notes.append(
            f"{len(store.runs)} runs: each is a source of its own, none is taken for a "
            "restart of another"
        )
    return LogFacts(
        format=NAME,
        path=path,
        series=tuple(series),
        rollbacks=tuple(rollbacks),
        identity=identity,
        num_lines=store.num_lines,
        num_matched=store.num_lines - store.num_bad,
        num_near_misses=store.num_bad,
        problems=tuple(store.problems),
        notes=tuple(notes),
    )


def _read_folder(path: Path, store: _Store) -> None:
    for number, (parent, folders, files) in enumerate(os.walk(path)):  # does not follow links
        folders.sort()
        if number > _MAX_FOLDERS:
            store.problems.append(f"more than {_MAX_FOLDERS} folders: the rest was not read")
            return
        if "metrics" in folders and "meta.yaml" in files:
            _read_run(Path(parent), store)
            folders.clear()


def _read_run(folder: Path, store: _Store) -> None:
    run = store.runs.setdefault(folder.name, _Run())
    for file in _files(folder / "metrics"):
        key = file.relative_to(folder / "metrics").as_posix()
        try:
            _read_metric(file, folder.name, key, store)
        except EvidenceError as error:
            store.problems.append(error.message)
    for file in _files(folder / "params"):
        try:
            with open_log(file) as log:
                text = log.stream.read(_MAX_PARAMETER_BYTES).decode("utf-8", "replace")
            run.identity[f"param/{file.relative_to(folder / 'params').as_posix()}"] = text
        except EvidenceError as error:
            store.problems.append(error.message)


def _files(folder: Path) -> Iterator[Path]:
    num_left = _MAX_FILES
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files)[:num_left]:
            yield Path(parent, name)
        num_left -= len(files)
        if num_left <= 0:
            return


def _read_metric(file: Path, run: str, key: str, store: _Store) -> None:
    bad = 0
    with open_log(file) as log:
        for line in row_lines(log.stream):
            store.num_lines += 1
            parts = line.text.split()
            if len(parts) < 2 or line.is_torn:
                bad += 1
                continue
            time_ms, value = _count(parts[0]), scalars.number_in_text(parts[1])
            step: int | None = 0
            if len(parts) > 2:
                step = _count(parts[2])
            if value is None or time_ms is None or step is None:
                bad += 1
                continue
            store.add(run, key, value=value, step=step, time_ms=time_ms)
    if bad:
        store.num_bad += bad
        store.problems.append(
            f"run {run}, metric {key}: {bad} lines are not `time value step`, or torn"
        )


def _count(text: str) -> int | None:
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 18:
        return int(text)
    return None


def _read_database(path: Path, store: _Store) -> None:
    with sqlite_copy.open_copy(path) as database:
        if not set(_COLUMNS) <= set(database.columns("metrics")):
            raise EvidenceError(f"{path}: has no table metrics as MLflow makes it")
        store.problems += [text for text in (database.damage(),) if text]
        for row in database.select("metrics", _COLUMNS, store.problems):
            store.num_lines += 1
            run, key, value, time_ms, step, is_nan = row
            number = math.nan if is_nan else scalars.number(value)
            at, when = scalars.step(step), scalars.step(time_ms)
            if number is None or at is None or when is None:
                store.num_bad += 1
                continue
            if abs(number) == sys.float_info.max:  # how MLflow stores an infinity in a database
                number = math.copysign(math.inf, number)
            store.add(str(run), str(key), value=number, step=at, time_ms=when)
        if {"run_uuid", "key", "value"} <= set(database.columns("params")):
            for run, key, value in database.select(
                "params", ("run_uuid", "key", "value"), store.problems
            ):
                if str(run) in store.runs:
                    store.runs[str(run)].identity[f"param/{key}"] = str(value)
    if store.num_bad:
        store.problems.append(
            f"{path.name}: {store.num_bad} rows of metrics hold no number, step or time"
        )
