"""Reads Lightning's CSVLogger: `lightning_logs/version_N/metrics.csv`, every version an attempt.

This module never fills the empty cells of a train row with what a validation row says.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.series import LogFacts, Rollback
from spiketriage.readers.look import Look, look_at_file
from spiketriage.readers.telemetry.series.attempts import between
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.readers.telemetry.series.points import FROM_ZERO
from spiketriage.readers.telemetry.series.rows import summed
from spiketriage.readers.telemetry.tables import csv_file

NAME = "lightning-csv"
TELLS = (
    "Every logged value by 0-based step and epoch, training and validation rows apart, and one "
    "attempt a version."
)
CANNOT = "Whether a version resumes the one before it."
FILE = "metrics.csv"
TRUST = "as logged, one step later: Lightning's loggers count from 0, its checkpoints do not"
_VERSION = re.compile(r"version_(\d{1,9})\Z")


def claims(look: Look) -> float:
    """Certain of a folder of versions, likely for one, or for such a file with step and epoch."""
    if look.is_folder:
        if any(
            _has_metrics(look.path / name) for name in look.names
        ):  # `lightning_logs` may hold event files instead
            return 0.9
        if FILE in look.names and "hparams.yaml" in look.names:
            return 0.85
        if FILE in look.names and _is_lightnings(_head(look.path / FILE)):
            return 0.5
        return 0.0
    if look.path.name == FILE and _is_lightnings(look.head):
        return 0.8
    return 0.0


def _is_lightnings(head: bytes) -> bool:
    """Lightning writes the epoch beside every row; another's `metrics.csv` counts as it likes."""
    return {b"step", b"epoch"} <= set(head.split(b"\n", 1)[0].strip().split(b","))


def _head(path: Path) -> bytes:
    try:
        return look_at_file(path).head
    except EvidenceError:
        return b""


def _has_metrics(folder: Path) -> bool:
    try:
        return _VERSION.match(folder.name) is not None and (folder / FILE).is_file()
    except (OSError, ValueError):
        return False


def read(path: Path, names: Names) -> LogFacts:
    """The series of a file, a version, or all versions of a folder in the order of their numbers.

    Raises:
        EvidenceError: no `metrics.csv` can be read.
    """
    parts: list[LogFacts] = []
    problems: list[str] = []
    rollbacks: list[Rollback] = []
    attempt = 0
    files = _files(path)
    for file in files:
        source = file.name if file == path else str(file.relative_to(path))
        try:
            table = csv_file.Table(source=source, first_attempt=attempt, trust=TRUST)
            part = csv_file.read_table(file, names, table)
        except EvidenceError as error:
            if len(files) == 1:
                raise
            problems.append(error.message)
            continue
        shifted = tuple(replace(series, steps=series.steps + 1) for series in part.series)
        moved = tuple(
            replace(back, last_step=back.last_step + 1, first_step=back.first_step + 1)
            for back in part.rollbacks
        )
        before = parts[-1].series if parts else ()
        back = between(before, shifted)
        if back is not None:
            rollbacks.append(back)
        parts.append(replace(part, path=file.parent, series=shifted, rollbacks=moved))
        attempt = max((series.attempt + 1 for series in part.series), default=attempt)
    if not parts:
        raise EvidenceError(
            f"{path}: no {FILE} can be read: {'; '.join(problems) or 'none is there'}"
        )
    facts = summed(NAME, path, parts, problems)
    notes = [FROM_ZERO, *facts.notes]
    if len(parts) > 1:
        notes.append(
            "every version is taken for an attempt; whether it resumed the one before is not "
            "written"
        )
    return replace(facts, rollbacks=(*rollbacks, *facts.rollbacks), notes=tuple(notes))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if (path / FILE).is_file():
        return [path / FILE]
    versions: dict[int, Path] = {}
    try:
        for folder in path.iterdir():
            named = _VERSION.match(folder.name)
            if named:
                versions[int(named[1])] = folder
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error
    return [versions[number] / FILE for number in sorted(versions)]
