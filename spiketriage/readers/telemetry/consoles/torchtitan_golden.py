"""Reads torchtitan's golden-loss files.

A step and a loss a line, in full precision, and nothing else.

This module never claims a table whose steps do not grow, or whose columns are more than step, loss,
gradient norm.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from spiketriage.nouns.series import LogFacts
from spiketriage.readers.look import HEAD_BYTES, Look
from spiketriage.readers.telemetry.consoles.log_numbers import number, numbers
from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.consoles.text_lines import encoding_of
from spiketriage.readers.telemetry.series.names import Names

NAME = "torchtitan-golden"
TELLS = "Loss of every step in full precision, and the gradient norm where there is a third column."
CANNOT = (
    "The learning rate, times, and the names of its columns: that the second is the loss is a "
    "convention."
)

_LINE = re.compile(
    r"(?P<step>\d{1,9})[ \t]+(?P<loss>[-+]?[\w.+-]{1,40})(?:[ "
    r"\t]+(?P<norm>[-+]?[\w.+-]{1,40}))?\s*\Z"
)


def claims(look: Look) -> float:
    """How sure we are that this is a golden-loss file.

    Every line is a growing step and a number.
    """
    if look.is_folder or look.is_lfs_pointer or encoding_of(look.head) is None:
        return 0.0
    steps = []
    lines = look.head.decode("utf-8-sig", errors="replace").splitlines()
    for line in lines if look.size_bytes <= HEAD_BYTES else lines[:-1]:
        found = _LINE.match(line)
        if found is None or number(found["loss"]) is None or "." not in line:
            return 0.0
        steps.append(int(found["step"]))
    if len(steps) < 3 or not all(later > earlier for earlier, later in pairwise(steps)):
        return 0.0
    if "golden" not in look.path.name.lower():
        return 0.6
    return 0.8


def read(path: Path, names: Names) -> LogFacts:
    """Every line of the file.

    Raises:
        EvidenceError: it cannot be read, or no line is a step and a number.
    """
    log = LogPoints(path, names, format=NAME)
    for line in log.lines(""):
        found = _LINE.match(line.raw)
        if found:
            cells = numbers({"loss": found["loss"], "grad_norm": found["norm"]})
        else:
            cells = {}
        if found is None or "loss" not in cells:
            if line.raw.strip():
                log.near_miss(line)
            continue
        log.match(line)
        log.row(int(found["step"]), cells)
    log.trust(
        "loss",
        (
            "the file names no column; by torchtitan's convention the second is the global "
            "average loss"
        ),
    )
    return log.facts()
