"""Reads OLMo-core's metric saver: `metrics_step{N}.json` at some steps, `metrics.json` at the end.

This module never gives `metrics.json` a step, because it does not state one.
"""

from __future__ import annotations

import re
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.series import LogFacts
from spiketriage.readers.json_file import parse_object, read_bytes
from spiketriage.readers.look import Look, refuse_pointer
from spiketriage.readers.telemetry.series import scalars
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.readers.telemetry.series.rows import Place, Rows

NAME = "olmo-metrics"
TELLS = "The metrics of rank 0 at the steps that were chosen for saving."
CANNOT = (
    "The steps between, the step of the final file, and whether a value is new or repeats an "
    "older one."
)
FINAL = "metrics.json"
TRUST = (
    "the latest value known at the step: a metric that is logged more rarely repeats an older one"
)
_STEP = re.compile(r"metrics_step(\d{1,18})\.json\Z")
_MAX_FILES = 100_000


def claims(look: Look) -> float:
    """Certain of the names that OLMo-core gives; `metrics.json` alone could be anybody's."""
    names = look.names if look.is_folder else (look.path.name,)
    if any(_STEP.match(name) for name in names):
        return 0.9
    if not look.is_folder and look.path.name == FINAL and look.head.lstrip()[:1] == b"{":
        return 0.3
    return 0.0


def read(path: Path, names: Names) -> LogFacts:
    """The metrics of one file or of all of them in a folder.

    Those without a step are in `identity`.

    Raises:
        EvidenceError: no file can be read.
    """
    rows = Rows(source=path.name, names=names, trust=TRUST)
    problems: list[str] = []
    notes: list[str] = []
    identity: dict[str, str] = {}
    files = _files(path)
    for file in files:
        try:
            values = _values(file)
        except EvidenceError as error:
            if file == path:
                raise
            problems.append(error.message)
            continue
        step = _STEP.match(file.name)
        if step is not None:
            rows.num_objects += 1
            rows.put(values, place=Place(None, None), step=int(step[1]))
        else:
            for key, value in values.items():
                if scalars.number(value) is not None:
                    identity[f"final/{key}"] = str(value)
            notes.append(f"{file.name} states no step: its values are in the identity as final/…")
    if not files or len(problems) == len(files):
        raise EvidenceError(
            f"{path}: no metrics_step*.json can be read: {'; '.join(problems) or 'none is there'}"
        )
    traced = rows.trace()
    return LogFacts(
        format=NAME,
        path=path,
        series=traced.series,
        rollbacks=traced.rollbacks,
        identity=identity,
        num_lines=len(files),
        num_matched=len(files) - len(problems),
        num_near_misses=len(problems),
        problems=(*problems, *rows.problems()),
        notes=(*notes, *traced.notes),
    )


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    by_step: dict[int, Path] = {}
    try:
        for file in path.iterdir():
            named = _STEP.match(file.name)
            if named:
                by_step[int(named[1])] = file
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error
    ordered = [by_step[step] for step in sorted(by_step)[:_MAX_FILES]]
    if (path / FINAL).is_file():
        ordered.append(path / FINAL)
    return ordered


def _values(file: Path) -> dict[str, object]:
    data = read_bytes(file)
    refuse_pointer(file, data)
    return scalars.flat(parse_object(file, data))
