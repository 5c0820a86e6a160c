"""Reads a Weights & Biases run kept on disk (`run-*.wandb`): history, config, system samples.

This module never asks the service, never imports wandb, and never takes `_step` for the optimizer's
step silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.nouns.series import LogFacts
from spiketriage.readers.look import Look
from spiketriage.readers.telemetry.series import scalars
from spiketriage.readers.telemetry.series.attempts import Origin
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.readers.telemetry.series.opening import open_log
from spiketriage.readers.telemetry.series.points import Points
from spiketriage.readers.telemetry.stores.leveldb_log import LogReader
from spiketriage.readers.telemetry.stores.log_calls import CallKeys, trace_calls
from spiketriage.readers.telemetry.stores.protobuf import (
    BYTES,
    VARINT,
    Field,
    MalformedError,
    fields,
    signed,
    text,
)

NAME = "wandb"
TELLS = (
    "Every logged row with its time, the run's settings and samples of the machine, each "
    "record checked by its CRC-32."
)
CANNOT = (
    "Synced runs, which are not on disk, and the step where only `_step` is logged, which "
    "counts log calls."
)
MAGIC = b":W&B\xe1\xbe"
SUFFIX = ".wandb"
LOG_CALLS = "_step"
CALLS = CallKeys(
    number="_step", time="_timestamp", own=frozenset({"_step", "_runtime", "_timestamp", "_wandb"})
)
_HISTORY, _CONFIG, _STATS, _RUN = 2, 5, 7, 17
_KEY, _NESTED_KEY, _VALUE = 1, 2, 16


@dataclass(slots=True, kw_only=True)
class _Run:
    history: list[dict[str, object]] = field(default_factory=list)
    stats: Points = field(default_factory=Points)
    num_stats: int = 0
    num_records: int = 0
    num_malformed: int = 0
    identity: dict[str, str] = field(default_factory=dict)


def claims(look: Look) -> float:
    """Certain of the file's first six bytes; likely for a folder with exactly one such file."""
    if look.is_folder:
        if sum(name.endswith(SUFFIX) for name in look.names) == 1:
            return 0.9
        return 0.0
    if look.head.startswith(MAGIC):
        return 0.98
    if look.path.suffix == SUFFIX:
        return 0.7
    return 0.0


def read(path: Path, names: Names) -> LogFacts:
    """The history of one run, from its file or the folder that holds it.

    Raises:
        EvidenceError: there is no such file, or nothing in it can be read.
    """
    file = _file(path)
    run = _Run()
    with open_log(file) as log:
        if not log.head.startswith(MAGIC):
            raise CorruptFileError(
                file, "byte 0", expected=f"the magic {MAGIC!r}", seen=log.head[:7]
            )
        reader = LogReader(stream=log.stream)
        for record in reader.records():
            _take(record, run)
    problems = list(reader.problems)
    if run.num_malformed:
        problems.append(f"{run.num_malformed} records are no protobuf messages")
    history = trace_calls(file.name, run.history, names, CALLS)
    notes = list(history.notes)
    if not run.history:
        notes.append("the run logged no history")
    stats = run.stats.trace(
        Origin(
            source=file.name,
            may_split=False,
            trusted=False,
            trust="sampled by time: the step counts the samples",
        ),
        names,
    )
    return LogFacts(
        format=NAME,
        path=path,
        series=(*history.series, *stats.series),
        rollbacks=history.rollbacks,
        identity=run.identity,
        num_lines=run.num_records,
        num_matched=run.num_records - run.num_malformed,
        num_near_misses=run.num_malformed + reader.num_lost,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    try:
        files = sorted(file for file in path.iterdir() if file.suffix == SUFFIX)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(files) != 1:
        raise EvidenceError(f"{path}: expected one file *{SUFFIX}, found {len(files)}")
    return files[0]


def _take(record: bytes, run: _Run) -> None:
    run.num_records += 1
    try:
        for part in fields(record, 0, len(record)):
            if part.wire != BYTES:
                continue
            if part.id == _HISTORY:
                run.history.append(_history_row(record, part))
            elif part.id == _STATS:
                _take_stats(record, part, run)
            elif part.id == _CONFIG:
                run.identity.update(_config(record, part))
            elif part.id == _RUN:
                _take_run(record, part, run)
    except MalformedError:
        run.num_malformed += 1


def _items(record: bytes, message: Field, item_id: int) -> dict[str, object]:
    """The items of a message by key, each JSON; nested keys are joined as in `train/loss`."""
    values: dict[str, object] = {}
    for item in fields(record, message.start, message.end):
        if item.id != item_id or item.wire != BYTES:
            continue
        parts: list[str] = []
        value: object = None
        for part in fields(record, item.start, item.end):
            if part.id in (_KEY, _NESTED_KEY) and part.wire == BYTES:
                parts.append(text(record, part))
            elif part.id == _VALUE and part.wire == BYTES:
                value = scalars.json_or_none(text(record, part))
        values["/".join(parts)] = value
    return values


def _history_row(record: bytes, message: Field) -> dict[str, object]:
    row = _items(record, message, 1)
    for part in fields(record, message.start, message.end):
        if part.id == 2 and part.wire == BYTES and LOG_CALLS not in row:
            row[LOG_CALLS] = _first_number(record, part)
    return row


def _first_number(record: bytes, message: Field) -> int:
    for part in fields(record, message.start, message.end):
        if part.wire == VARINT:
            return signed(part.number)
    return 0  # proto3 leaves a zero out


def _take_stats(record: bytes, message: Field, run: _Run) -> None:
    time_s = float("nan")
    for part in fields(record, message.start, message.end):
        if part.id == 2 and part.wire == BYTES:
            time_s = float(_first_number(record, part))
    for key, value in _items(record, message, 3).items():
        number = scalars.number(value)
        if number is not None:
            run.stats.add(
                f"system/{key}", row=run.num_stats, step=run.num_stats, value=number, time_s=time_s
            )
    run.num_stats += 1


def _config(record: bytes, message: Field) -> Mapping[str, str]:
    items = _items(record, message, 1)
    config: dict[str, str] = {}
    for key, value in items.items():
        if key != "_wandb" and not _is_deep(value):
            config[f"config/{key}"] = str(value)
    return config


def _is_deep(value: object) -> bool:
    return isinstance(value, dict | list)


def _take_run(record: bytes, message: Field, run: _Run) -> None:
    known = {1: "run_id", 2: "entity", 3: "project", 6: "display_name"}
    for part in fields(record, message.start, message.end):
        if part.wire != BYTES:
            continue
        if part.id in known:
            run.identity[known[part.id]] = text(record, part)
        elif part.id == 4:
            run.identity.update(_config(record, part))
