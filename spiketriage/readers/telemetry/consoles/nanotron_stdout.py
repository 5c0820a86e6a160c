"""Reads nanotron's standard output.

`key: value` cells between bars, with numbers shortened to three digits.

This module never pretends to more precision than three significant digits have.
"""

from __future__ import annotations

import re
from pathlib import Path

from spiketriage.nouns.series import LogFacts
from spiketriage.readers.look import Look
from spiketriage.readers.telemetry.consoles.log_claims import claim
from spiketriage.readers.telemetry.consoles.log_numbers import short_number
from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.consoles.text_lines import TextLine
from spiketriage.readers.telemetry.series.names import Names

NAME = "nanotron-stdout"
TELLS = "Loss, learning rate, unclipped gradient norm, consumed tokens and times by iteration."
CANNOT = "More than three digits of a value, the year, or any data-parallel group but one."

_LINE = re.compile(
    r"(?:\[(?:\w+)\|(?P<place>DP=\d+\|PP=\d+\|TP=\d+)[^\]]{0,300}\]: ?|\A)"
    r"iteration: (?P<step>\d{1,18}) / (?P<total>\d{1,18}) \| (?P<rest>.*)"
)
_OWN = {
    "time_per_iteration_ms": "time/step_s",
    "elapsed_time_per_iteration_ms": "time/step_s",
    "consumed_tokens": "tokens/total",
}


def claims(look: Look) -> float:
    """How sure we are that this is a log of nanotron."""
    return claim(look, ("iteration: ",), lambda line: _LINE.search(line.text))


def read(path: Path, names: Names) -> LogFacts:
    """Every iteration line.

    Raises:
        EvidenceError: it cannot be read, or has no iteration line.
    """
    log = LogPoints(path, names, format=NAME, own=_OWN)
    for line in log.lines("iteration: "):
        found = _LINE.search(line.text)
        cells = _cells(found["rest"]) if found else {}
        if found is None or not cells:
            if " / " in line.text and "|" in line.text:
                log.near_miss(line)
            continue
        _keep(found, cells, line, log)
    why = "printed with three significant digits"
    for written in log.written():
        log.trust(
            written, f"{why}; it is the norm before clipping" if written == "grad_norm" else why
        )
    log.notes.append(
        "values have three significant digits: read TensorBoard or W&B of the same run for "
        "exact ones"
    )
    return log.facts()


def _keep(found: re.Match[str], cells: dict[str, float], line: TextLine, log: LogPoints) -> None:
    log.match(line)
    log.identity["total_iterations"] = found["total"]
    if found["place"]:
        log.identity.setdefault("printed_by", found["place"].replace("|", " "))
    log.row(int(found["step"]), cells, rank=line.rank)


def _cells(rest: str) -> dict[str, float]:
    cells = {}
    for cell in rest.split(" | "):
        key, colon, told = cell.strip().partition(": ")
        value = short_number(told) if colon else None
        if value is not None and 0 < len(key) <= 120:
            cells[key] = value / 1000 if key.endswith("_ms") and key in _OWN else value
    return cells
