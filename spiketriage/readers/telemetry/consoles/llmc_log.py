"""Reads llm.c: its `main.log` (`s:STEP trl:…`) and its standard output (`step 1001/19560 | loss …`).

This module never mixes the two countings: the file counts training steps from 0, and is brought to
standard output's.
"""

from __future__ import annotations

import re
from pathlib import Path

from spiketriage.nouns.series import LogFacts
from spiketriage.readers.look import Look
from spiketriage.readers.telemetry.consoles.log_claims import claim
from spiketriage.readers.telemetry.consoles.log_numbers import number, numbers
from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.consoles.text_lines import TextLine
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.readers.telemetry.series.points import FROM_ZERO

NAME = "llmc"
TELLS = (
    "Loss, learning rate and gradient norm of every step, validation loss, and llm.c's own "
    "z-scores on stdout."
)
CANNOT = (
    "More than four decimals of the loss in main.log, and more than six of the learning rate, "
    "whose end reads as zero."
)

_FILE = re.compile(
    r"s:(?P<step>\d{1,18}) (?P<cells>(?:tel|trl|eval|lr|norm):\S{1,40}(?: \w{1,20}:\S{1,40})*)\s*\Z"
)
_STDOUT = re.compile(
    r"step\s{1,20}(?P<step>\d{1,18})/(?P<total>\d{1,18}) \| (?:train )?loss "
    r"(?P<loss>[-\w.+]{1,40})(?P<rest>.*)"
)
_Z = re.compile(r"\s*\((?P<z>[-+]?[\w.]{1,40})z\)")
_REST = re.compile(
    r"\|\s*(?P<key>norm|lr) (?P<told>[-\w.+]{1,40})(?:\s*\((?P<z>[-+]?[\w.]{1,40})z\))?"
)
_TIME = re.compile(r"\|\s*(?P<ms>[\d.]{1,40}) ms\b")
_VALIDATION = re.compile(r"val loss (?P<loss>[-\w.+]{1,40})\s*\Z")
_OWN = {"time": "time/step_s", "trl": "loss/mean"}


def claims(look: Look) -> float:
    """How sure we are that this is a log of llm.c."""
    return claim(
        look,
        ("s:", "step"),
        lambda line: _FILE.match(line.text) or _STDOUT.match(line.text),
        sure=0.97,
    )


def read(path: Path, names: Names) -> LogFacts:
    """Every step of `main.log` or of the standard output.

    Raises:
        EvidenceError: it cannot be read, or has no step.
    """
    log = LogPoints(path, names, format=NAME, own=_OWN)
    was_stdout = False
    for line in log.lines("s:", "step", "val loss"):
        was_stdout = _offer(line, log) or was_stdout
    if not was_stdout:
        log.notes.append(FROM_ZERO)
    if "lr" in log.written() and not was_stdout:
        log.trust("lr", "printed with six decimals: below 0.0000005 it reads as zero")
    return log.facts()


def _offer(line: TextLine, log: LogPoints) -> bool:
    """Read one line; whether it counts as standard output does."""
    text = line.text
    in_file = _FILE.match(text)
    if in_file:
        _from_file(in_file, line, log)
        return False
    on_stdout = _STDOUT.match(text)
    if on_stdout and on_stdout["step"] != "0":
        _from_stdout(on_stdout, line, log)
        return True
    validation = _VALIDATION.match(text)
    last = log.last_step(line.rank)
    if validation and last is not None and (value := number(validation["loss"])) is not None:
        log.match(line)
        log.beside(
            last, {"val loss": value}, rank=line.rank
        )  # measured before the step that would come next
    elif re.match(r"s:\d", text) or re.match(r"step\s+\d+/\d+", text):
        log.near_miss(line)
    return False


def _from_file(found: re.Match[str], line: TextLine, log: LogPoints) -> None:
    told = dict(cell.split(":", 1) for cell in found["cells"].split(" "))
    cells = numbers(told)
    if not cells:
        log.near_miss(line)
        return
    log.match(line)
    step = int(found["step"])
    if "trl" in cells:
        log.row(step + 1, cells, rank=line.rank)
    else:
        log.beside(
            step, cells, rank=line.rank
        )  # an evaluation comes before the training of its step


def _from_stdout(found: re.Match[str], line: TextLine, log: LogPoints) -> None:
    z, time = _Z.match(found["rest"]), _TIME.search(found["rest"])
    told = {"loss": found["loss"], "loss z-score": z and z["z"], "time": time and time["ms"]}
    for cell in _REST.finditer(found["rest"]):
        told |= {cell["key"]: cell["told"], f"{cell['key']} z-score": cell["z"]}
    cells = numbers(told)
    if "loss" not in cells:
        log.near_miss(line)
        return
    if "time" in cells:
        cells["time"] /= 1000
    log.match(line)
    log.identity["total_steps"] = found["total"]
    log.row(int(found["step"]), cells, rank=line.rank)
