"""Reads torchtitan's standard output.

One line a logged step, with colours, and validation lines beside them.

This module never takes a validation line for a training step.
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

NAME = "torchtitan-stdout"
TELLS = "Global mean loss and gradient norm by step, memory, tokens per second and validation loss."
CANNOT = (
    "More than five decimals of the loss, its maximum over ranks (only TensorBoard has it), or "
    "the learning rate."
)

_STEP = re.compile(r"(?P<validate>validate )?step:\s{0,20}(?P<step>\d{1,18})\s+(?P<rest>\S.*)")
_CELL = re.compile(r"(?P<key>[A-Za-z_]\w{0,60}):\s{0,20}(?P<told>[-+\w.,]+)")


def claims(look: Look) -> float:
    """How sure we are that this is a log of torchtitan."""
    return claim(look, ("step:",), _is_one)


def _is_one(line: TextLine) -> bool:
    return _STEP.match(line.text) is not None and "loss:" in line.text and "grad_norm:" in line.text


def read(path: Path, names: Names) -> LogFacts:
    """Every step line and every validation line.

    Raises:
        EvidenceError: it cannot be read, or has no step line.
    """
    log = LogPoints(path, names, format=NAME)
    for line in log.lines("step:"):
        found = _STEP.match(line.text)
        cells = _cells(found["rest"]) if found else {}
        if found is None or "loss" not in cells:
            if "loss:" in line.text:
                log.near_miss(line)
            continue
        log.match(line)
        if found["validate"]:
            log.beside(
                int(found["step"]), {f"validate {key}": cells[key] for key in cells}, rank=line.rank
            )
        else:
            log.row(int(found["step"]), cells, rank=line.rank)
    log.trust("memory", "in GiB, the most that was reserved since the line before")
    log.trust("mfu", "in percent")
    return log.facts()


def _cells(rest: str) -> dict[str, float]:
    """The cells of a line; what is no number (`N/A`) is left out."""
    cells = {}
    for found in _CELL.finditer(rest):
        value = short_number(found["told"].removesuffix("GiB"))
        if value is not None:
            cells[found["key"]] = value
    return cells
