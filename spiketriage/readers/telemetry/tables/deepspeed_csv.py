"""Reads DeepSpeed's CSV monitor: one file a tag, its x axis in samples, a header at each restart.

This module never divides samples by a batch size to get steps: the batch size is not in these
files.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.series import LogFacts, Series
from spiketriage.readers.look import Look
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.readers.telemetry.series.rows import summed
from spiketriage.readers.telemetry.tables import csv_file

NAME = "deepspeed-csv"
TELLS = (
    "Loss, learning rate and loss scale by number of samples, and restarts by the repeated header."
)
CANNOT = "The step, since the batch size is not written, and the gradient norm."
PREFIX = "Train_Samples_"
TRUST = "x is global_samples, not steps"
_MAX_FILES = 10_000


def claims(look: Look) -> float:
    """Likely for files named after DeepSpeed's tags."""
    if look.is_folder:
        if any(_is_tag(name) for name in look.names):
            return 0.85
        return 0.0
    if _is_tag(look.path.name) and look.head.startswith(b"step,"):
        return 0.85
    return 0.0


def _is_tag(name: str) -> bool:
    return name.startswith(PREFIX) and name.endswith(".csv")


def read(path: Path, names: Names) -> LogFacts:
    """The series of one tag, or of all tags in a folder.

    Raises:
        EvidenceError: no file can be read.
    """
    parts: list[LogFacts] = []
    problems: list[str] = []
    for file in _files(path):
        try:
            table = csv_file.Table(source=file.name, trusted=False, trust=TRUST)
            part = csv_file.read_table(file, names, table)
            parts.append(
                replace(part, series=tuple(_tagged(series, file, names) for series in part.series))
            )
        except EvidenceError as error:
            if file == path:
                raise
            problems.append(error.message)
    if not parts:
        raise EvidenceError(
            f"{path}: no {PREFIX}*.csv can be read: {'; '.join(problems) or 'none is there'}"
        )
    facts = summed(NAME, path, parts, problems)
    return replace(facts, notes=(*facts.notes, "steps of these series are global_samples"))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    try:
        return sorted(file for file in path.iterdir() if _is_tag(file.name))[:_MAX_FILES]
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _tagged(series: Series, file: Path, names: Names) -> Series:
    """The series under its whole tag, which only the file's name keeps: the header has its end."""
    if not file.stem.startswith(PREFIX):
        return series
    tag = PREFIX.replace("_", "/") + file.stem.removeprefix(PREFIX)
    return replace(series, name=names.canonical(tag), written_as=tag)
