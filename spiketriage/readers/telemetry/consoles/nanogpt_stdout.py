"""Reads nanoGPT's standard output.

`iter 100: loss 2.3, time …` and `step 250: train loss …, val loss …`.

This module never takes the mean of an evaluation for the loss of a step, nor bits for nats without
saying so.
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
from spiketriage.readers.telemetry.series.points import FROM_ZERO

NAME = "nanogpt-stdout"
TELLS = (
    "Loss of the last micro-batch at logged steps, mean training and validation loss at "
    "evaluations, and times."
)
CANNOT = "The gradient norm, the learning rate, and the loss of any rank but 0."

_ITER = re.compile(
    r"iter (?P<step>\d{1,18}): loss (?P<loss>[-+\w.]{1,40})(?P<unit> (?:BPC|bpc|BPB|bpb))?"
    r"(?:, time (?P<ms>[\d.]{1,40})ms)?(?:, mfu (?P<mfu>-?[\d.]{1,40})%)?"
)
_STEP = re.compile(
    r"step (?P<step>\d{1,18}): train loss (?P<train>[-+\w.]{1,40})(?P<unit> \w{3})?, val "
    r"loss (?P<val>[-+\w.]{1,40})"
)
_OWN = {"time": "time/step_s"}


def claims(look: Look) -> float:
    """How sure we are that this is a log of nanoGPT."""
    return claim(
        look, ("iter ", "step "), lambda line: _ITER.match(line.text) or _STEP.match(line.text)
    )


def read(path: Path, names: Names) -> LogFacts:
    """Every `iter` and every `step` line.

    Raises:
        EvidenceError: it cannot be read, or has neither.
    """
    log = LogPoints(path, names, format=NAME, own=_OWN)
    units = set()
    for line in log.lines("iter ", "step "):
        unit = _offer(line, log)
        if unit:
            units.add(unit)
    log.notes.append(FROM_ZERO)
    what = "the last micro-batch of the printing rank, times the accumulation steps"
    log.trust("loss", what)
    log.trust("mfu", "in percent, a running mean; -100 before the first")
    if units:
        unit = " and ".join(sorted(units))
        log.trust(
            "loss", f"{what}; in {unit} (bits) as written, not in nats: times 0.6931 it is nats"
        )
        log.notes.append(f"losses are in {unit}, bits a character or byte, not in nats a token")
    return log.facts()


def _offer(line: TextLine, log: LogPoints) -> str:
    """Read one line; the unit of its loss, where it names one."""
    found = _ITER.match(line.text)
    evaluated = None if found else _STEP.match(line.text)
    cells = numbers(_told(found, evaluated))
    match = found or evaluated
    if match is None or not {"loss", "val loss"} & set(cells):
        if re.match(r"(?:iter|step) \d+:", line.text):
            log.near_miss(line)
        return ""
    if "time" in cells:
        cells["time"] /= 1000
    log.match(line)
    step = int(match["step"])
    if found:
        log.row(step + 1, cells, rank=line.rank)
    else:
        log.beside(
            step, cells, rank=line.rank
        )  # an evaluation comes before the training of its iteration
    return (match["unit"] or "").strip()


def _told(found: re.Match[str] | None, evaluated: re.Match[str] | None) -> dict[str, str | None]:
    if found:
        return {"loss": found["loss"], "time": found["ms"], "mfu": found["mfu"]}
    if evaluated:
        return {"train loss": evaluated["train"], "val loss": evaluated["val"]}
    return {}
