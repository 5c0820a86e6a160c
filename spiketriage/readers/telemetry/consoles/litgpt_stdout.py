"""Reads litgpt's standard output: `Epoch 1 | iter 1000 step 125 | loss train: 2.346, val: n/a | …`.

This module never takes an iteration (a micro-batch) for a step.
"""

from __future__ import annotations

import re
from pathlib import Path

from spiketriage.nouns.series import LogFacts
from spiketriage.readers.look import Look
from spiketriage.readers.telemetry.consoles.log_claims import claim
from spiketriage.readers.telemetry.consoles.log_numbers import numbers
from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.consoles.text_lines import TextLine
from spiketriage.readers.telemetry.series.names import Names

NAME = "litgpt-stdout"
TELLS = "Training loss to three decimals by iteration and step, validation loss and iteration time."
CANNOT = "The gradient norm and the learning rate."

_LINE = re.compile(
    r"Epoch (?P<epoch>\d{1,9}) \| iter (?P<iter>\d{1,18}) step (?P<step>\d{1,18}) \| "
    r"loss train: (?P<train>[-+\w.]{1,40}),? ?(?:val: (?P<val>[-+\w./]{1,40}))?"
    r"(?: \| iter time: (?P<ms>[\d.]{1,40}) ms)?"
)
_OWN = {"loss train": "loss/mean"}


def claims(look: Look) -> float:
    """How sure we are that this is a log of litgpt."""
    return claim(look, ("Epoch ",), lambda line: _LINE.match(line.text))


def read(path: Path, names: Names) -> LogFacts:
    """Every iteration line; several may have the same step, and all are kept.

    Raises:
        EvidenceError: it cannot be read, or has no iteration line.
    """
    log = LogPoints(path, names, format=NAME, own=_OWN)
    for line in log.lines("Epoch "):
        found = _LINE.match(line.text)
        if found:
            _keep(found, line, log)
        elif re.match(r"Epoch \d+ \| iter \d", line.text):
            log.near_miss(line)
    log.trust(
        "loss train",
        "a running mean over micro-batches; a step with several lines has several values",
    )
    log.trust("iter time", "in seconds, of one micro-batch")
    log.notes.append("litgpt's CSV logger counts iterations from 0, this output from 1")
    return log.facts()


def _keep(found: re.Match[str], line: TextLine, log: LogPoints) -> None:
    told = {
        "loss train": found["train"],
        "loss val": found["val"],
        "iter": found["iter"],
        "iter time": found["ms"],
    }
    cells = numbers(told)
    if "loss train" not in cells:
        log.near_miss(line)
        return
    if "iter time" in cells:
        cells["iter time"] /= 1000
    log.match(line)
    log.row(int(found["step"]), cells, rank=line.rank)
