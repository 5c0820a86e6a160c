"""Reads the log history in `trainer_state.json` of Hugging Face's Trainer, of one save or all.

This module never takes a loss of 0.0 beside a NaN gradient norm for a number: that is how the
default filter hides NaN.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from spiketriage.errors import EvidenceError
from spiketriage.nouns.series import LogFacts, Rollback, Series
from spiketriage.readers.json_file import is_count, parse_object, read_bytes
from spiketriage.readers.look import Look, refuse_pointer
from spiketriage.readers.telemetry.series import scalars
from spiketriage.readers.telemetry.series.attempts import Origin, between
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.readers.telemetry.series.points import Points

NAME = "hf-trainer-state"
TELLS = (
    "Loss, gradient norm and learning rate by step, restarts by prefix, and NaN behind the "
    "Trainer's default filter."
)
CANNOT = (
    "What follows the last save, and a filtered NaN that vanished into the mean since the last log."
)
FILE = "trainer_state.json"
FILTERED = (
    "logged as 0.0 beside a nonfinite grad_norm: logging_nan_inf_filter, on by default, hides "
    "a nonfinite loss"
)
MEAN = "mean since the last log"
HIDING = f"{MEAN}; losses beside a nonfinite grad_norm are what the default NaN filter let through"
UNPAIRED = (
    f"{MEAN}; some are exactly 0.0 without a grad_norm beside them, which may be a filtered NaN"
)
_SUMMARY = "train_loss"  # the mean over the run, written once at its end: no point of the loss
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,18})\Z")
_MAX_CHECKPOINTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    path: Path
    source: str
    history: tuple[Any, ...]
    keys: tuple[str, ...]  # each entry as text, so that NaN equals NaN
    identity: dict[str, str]
    modified_ns: int


def claims(look: Look) -> float:
    """Certain of a file with a log history; likely for a folder of checkpoints."""
    if look.is_folder:
        if FILE in look.names:
            return 0.6  # a checkpoint, of which the log is one part
        if any(_has_state(look.path / name) for name in look.names if _CHECKPOINT.match(name)):
            return 0.7
        return 0.0
    if b'"log_history"' in look.head and look.head.lstrip().startswith(b"{"):
        return 0.97
    if look.path.name.endswith(FILE):
        return 0.8
    return 0.0


def _has_state(folder: Path) -> bool:
    try:
        return (folder / FILE).is_file()
    except (OSError, ValueError):
        return False


def read(path: Path, names: Names) -> LogFacts:
    """The history of a file, a checkpoint, or a folder of checkpoints.

    Raises:
        EvidenceError: no state can be read.
    """
    problems: list[str] = []
    states: list[_State] = []
    for file in _paths(path):
        try:
            states.append(_state(file))
        except EvidenceError as error:
            problems.append(error.message)
            if file == path:
                raise
    if not states:
        raise EvidenceError(
            f"{path}: no {FILE} can be read: {'; '.join(problems) or 'none is there'}"
        )
    chains = _chains(states)
    series, rollbacks, near_misses = _series(chains, names)
    entries = sum(len(chain.history) for chain in chains)
    return LogFacts(
        format=NAME,
        path=path,
        series=tuple(series),
        rollbacks=tuple(rollbacks),
        identity=chains[-1].identity,
        num_lines=entries,
        num_matched=entries - near_misses,
        num_near_misses=near_misses,
        problems=tuple(problems),
        notes=tuple(_notes(states, chains)),
    )


def _paths(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if (path / FILE).is_file():
        return [path / FILE]
    try:
        folders = [folder for folder in path.iterdir() if _CHECKPOINT.match(folder.name)]
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error
    ordered = sorted(folders, key=lambda folder: int(folder.name.rpartition("-")[2]))
    return [folder / FILE for folder in ordered[:_MAX_CHECKPOINTS]]


def _state(path: Path) -> _State:
    data = read_bytes(path)
    refuse_pointer(path, data)
    value = parse_object(path, data)
    history = value.get("log_history")
    if not isinstance(history, list):
        raise EvidenceError(f"{path}: expected a list log_history, found {type(history).__name__}")
    counts = ("global_step", "max_steps", "logging_steps", "train_batch_size", "num_train_epochs")
    source = path.name
    if _CHECKPOINT.match(path.parent.name):
        source = str(Path(path.parent.name, path.name))
    return _State(
        path=path,
        source=source,
        history=tuple(history),
        keys=tuple(_text(entry) for entry in history),
        identity={key: str(value[key]) for key in counts if is_count(value.get(key))},
        modified_ns=path.stat().st_mtime_ns,
    )


def _text(entry: object) -> str:
    try:
        return json.dumps(entry, sort_keys=True)
    except (ValueError, RecursionError):
        return repr(type(entry))


def _chains(states: Sequence[_State]) -> list[_State]:
    """The states that are no prefix of another: one an attempt, the oldest file first."""
    chains: list[_State] = []
    for state in sorted(states, key=lambda state: len(state.history), reverse=True):
        if not any(longer.keys[: len(state.keys)] == state.keys for longer in chains):
            chains.append(state)
    return sorted(chains, key=lambda state: (state.modified_ns, len(state.history)))


def _notes(states: Sequence[_State], chains: Sequence[_State]) -> list[str]:
    notes = []
    if len(states) > 1:
        notes.append(
            f"{len(states)} states: {len(states) - len(chains)} are verified prefixes of a "
            "longer one"
        )
    if len(chains) > 1:
        notes.append(
            f"{len(chains)} histories part ways: attempts in the order of their files' "
            "modification times, "
            "which a copy may not have kept"
        )
    if any(state.identity.get("global_step") == "0" for state in chains):
        notes.append("global_step is 0: saved before the first step")
    return notes


def _series(chains: Sequence[_State], names: Names) -> tuple[list[Series], list[Rollback], int]:
    series: list[Series] = []
    rollbacks: list[Rollback] = []
    near_misses = 0
    attempt = 0
    for number, chain in enumerate(chains):
        num_shared = 0
        for before in chains[:number]:
            num_shared = max(num_shared, _num_shared(chain.keys, before.keys))
        points = Points()
        for row, entry in enumerate(chain.history[num_shared:]):
            near_misses += not _take(entry, row, points)
        traced = points.trace(Origin(source=chain.source, first_attempt=attempt, trust=MEAN), names)
        back = between(series, traced.series)
        if back is not None:
            rollbacks.append(back)
        rollbacks += traced.rollbacks
        series += [_judged(metric, traced.series) for metric in traced.series]
        attempt = max((metric.attempt + 1 for metric in series), default=0)
    return series, rollbacks, near_misses


def _num_shared(first: Sequence[str], second: Sequence[str]) -> int:
    """How many entries two histories have in common at their beginning."""
    num_shared = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        num_shared += 1
    return num_shared


def _take(entry: object, row: int, points: Points) -> bool:
    """Add one entry of the history; False if it is none."""
    if not isinstance(entry, dict):
        return False
    step = scalars.step(entry.get("step"))
    if step is None:
        return False
    norm = scalars.number(entry.get("grad_norm"))
    is_hiding = norm is not None and not math.isfinite(norm)
    for key, value in entry.items():
        number = scalars.number(value)
        if key == "step" or number is None:
            continue
        reason = ""
        if isinstance(value, str):
            reason = f"written as the text {value!r}"
        if key == "loss" and number == 0.0 and is_hiding:
            number, reason = math.nan, FILTERED
        points.add(str(key), row=row, step=step, value=number, reason=reason)
    return True


def _judged(series: Series, beside: Sequence[Series]) -> Series:
    """A loss with what can be said of the filter that may have hidden some of it."""
    if series.written_as == _SUMMARY:
        return replace(
            series,
            name=_SUMMARY,
            trusted=False,
            trust="mean over the whole run, filtered values left out",
        )
    if series.written_as != "loss":
        return replace(series, trust="as logged by the Trainer")
    norms = []
    for other in beside:
        if other.written_as == "grad_norm" and other.attempt == series.attempt:
            norms.append(other)
    nonfinite: set[int] = set()
    for norm in norms:
        nonfinite.update(norm.steps[~np.isfinite(norm.values)].tolist())
    finite = set(series.steps[np.isfinite(series.values)].tolist())
    if series.reasons or nonfinite & finite:
        return replace(series, trusted=False, trust=HIDING)
    if not norms and bool((series.values == 0.0).any()):
        return replace(series, trusted=False, trust=UNPAIRED)
    return series
