"""Reads modded-nanogpt's logs.

`step:10/1480 train_loss:… train_time:…ms`, after the source code that made them.

This module never takes a line of that source code for a step: where a number belongs, only a number
will do.
"""

from __future__ import annotations

import re
from pathlib import Path

from spiketriage.nouns.series import LogFacts
from spiketriage.readers.look import Look
from spiketriage.readers.telemetry.consoles.log_claims import claim
from spiketriage.readers.telemetry.consoles.log_numbers import number
from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.consoles.text_lines import TextLine
from spiketriage.readers.telemetry.series.names import Names

NAME = "modded-nanogpt"
TELLS = (
    "Validation loss at its steps, training loss where the run prints it, and times, below "
    "the script's "
    "own source code."
)
CANNOT = "The gradient norm, the learning rate and, in many runs, the training loss."

_LINE = re.compile(
    r"step:(?P<step>\d{1,18})/(?P<total>\d{1,18})(?P<cells>(?: \w{1,40}:\S{1,40})+)\s*\Z"
)
_OWN = {"step_avg": "time/step_s"}


def claims(look: Look) -> float:
    """How sure we are that this is a log of modded-nanogpt."""
    return claim(look, ("step:",), lambda line: _LINE.match(line.raw))


def read(path: Path, names: Names) -> LogFacts:
    """Every step line.

    Raises:
        EvidenceError: it cannot be read, or has no step line.
    """
    log = LogPoints(path, names, format=NAME, own=_OWN)
    for line in log.lines("step:"):
        found = _LINE.match(line.text)
        if found:
            _keep(found, line, log)
        elif re.match(r"step:\d+/\d", line.text):
            log.near_miss(line)
    log.trust(
        "step_avg", "in seconds; a mean since the clock was started, not the time of one step"
    )
    log.trust("train_time", "in seconds, since the clock was started")
    return log.facts()


def _keep(found: re.Match[str], line: TextLine, log: LogPoints) -> None:
    cells = {}
    for cell in found["cells"].split():
        key, _, told = cell.partition(":")
        is_ms = told.endswith("ms")
        value = number(told.removesuffix("ms"))
        if value is not None:
            cells[key] = value / 1000 if is_ms else value
    if not cells:
        log.near_miss(line)
        return
    log.match(line)
    log.identity["total_steps"] = found["total"]
    log.row(int(found["step"]), cells, rank=line.rank)
