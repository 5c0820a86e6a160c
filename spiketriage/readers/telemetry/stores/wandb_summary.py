"""Reads `wandb-summary.json`: the last value of every metric of a run, whatever step that was.

This module never makes a series of it, because nothing says at which step a value was logged.
"""

from __future__ import annotations

import re
from pathlib import Path

from spiketriage.nouns.series import LogFacts
from spiketriage.readers.json_file import parse_object, read_bytes
from spiketriage.readers.look import Look
from spiketriage.readers.telemetry.series import scalars
from spiketriage.readers.telemetry.series.names import Names

NAME = "wandb-summary"
TELLS = "Last value of every metric of a W&B run."
CANNOT = "The step of a value, hence any series, and anything at all where the summary is empty."
_NAME = re.compile(r"(wandb[-_].*)?summary\.json\Z")


def claims(look: Look) -> float:
    """Certain of the name that W&B gives, if a JSON object is in it."""
    if look.is_folder or not _NAME.match(look.path.name) or look.head.lstrip()[:1] != b"{":
        return 0.0
    if "wandb" in look.path.name:
        return 0.8
    return 0.4


def read(path: Path, names: Names) -> LogFacts:
    """The last values, in `identity`.

    Raises:
        EvidenceError: the file cannot be read, or holds no JSON object.
    """
    summary = scalars.flat(parse_object(path, read_bytes(path)))
    values: dict[str, str] = {}
    for key, value in summary.items():
        number = scalars.number(value)
        if number is not None:
            values[f"final/{names.canonical(key)}"] = str(number)
    notes: tuple[str, ...] = ()
    if not values:
        notes = ("the summary is empty: the run logged nothing, or ended before it was written",)
    return LogFacts(
        format=NAME, path=path, series=(), identity=values, num_lines=1, num_matched=1, notes=notes
    )
