"""Reads what DeepSpeed's own logger prints.

Learning rate, skipped steps, throughput, and overflows as events.

This module never reports a loss: DeepSpeed's lines have none, and the trainer above it prints its
own.
"""

from __future__ import annotations

import re
from pathlib import Path

from spiketriage.nouns.series import LogFacts
from spiketriage.readers.look import Look
from spiketriage.readers.telemetry.consoles import deepspeed_lines
from spiketriage.readers.telemetry.consoles.log_claims import claim
from spiketriage.readers.telemetry.consoles.log_numbers import numbers
from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.consoles.text_lines import TextLine
from spiketriage.readers.telemetry.series.names import Names

NAME = "deepspeed-stdout"
TELLS = (
    "Learning rate and skipped steps by step, throughput, and every overflow with its loss scale."
)
CANNOT = "The loss, the gradient norm, and the step of an overflow."

_STEP = re.compile(r"step=(?P<step>\d{1,18}), skipped=(?P<skipped>\d{1,18}), lr=\[(?P<lr>[^\]]*)\]")
_SPEED = re.compile(
    r"(?:global_step=|\b\d{1,18}/)(?P<step>\d{1,18}), RunningAvgSamplesPerSec=(?P<rate>[\d.naif]+)"
    r"(?:, CurrSamplesPerSec=(?P<now>[\d.naif]+))?"
)
_WANTED = ("skipped=", "RunningAvgSamplesPerSec=", *deepspeed_lines.WANTED)
SURE = 0.6  # below any trainer that runs on top of it and prints a loss


def _is_one(line: TextLine) -> object:
    return _STEP.search(line.text) or _SPEED.search(line.text) or "OVERFLOW!" in line.text


def claims(look: Look) -> float:
    """How sure we are that this is a log with DeepSpeed's lines and no trainer's."""
    return claim(look, _WANTED, _is_one, sure=SURE)


def read(path: Path, names: Names) -> LogFacts:
    """The series and the overflows of DeepSpeed's lines.

    Raises:
        EvidenceError: it cannot be read, or has none.
    """
    log = LogPoints(path, names, format=NAME)
    state = _State()
    for line in log.lines(*_WANTED):
        state.offer(line, log)
    log.notes.append(
        "DeepSpeed's own lines have no loss: read the trainer's log or its TensorBoard for it"
    )
    return log.facts()


class _State:
    def __init__(self) -> None:
        self.num_skipped = 0
        self.at_step = 0

    def offer(self, line: TextLine, log: LogPoints) -> None:
        if deepspeed_lines.offer(line, log):
            return
        speed = _SPEED.search(line.text)
        if speed:
            rates = {"RunningAvgSamplesPerSec": speed["rate"], "CurrSamplesPerSec": speed["now"]}
            log.beside(int(speed["step"]), numbers(rates))
            log.match(line)
            return
        found = _STEP.search(line.text)
        if not found:
            log.near_miss(line)
            return
        step, skipped = int(found["step"]), int(found["skipped"])
        log.row(step, numbers({"lr": found["lr"].split(",")[0], "skipped": found["skipped"]}))
        if skipped > self.num_skipped:
            since = (
                f"{skipped - self.num_skipped} steps were skipped after step {self.at_step} up "
                f"to {step}"
            )
            log.event("skipped-steps", "warning", since, line, step=step)
        self.num_skipped, self.at_step = skipped, step
        log.match(line)
