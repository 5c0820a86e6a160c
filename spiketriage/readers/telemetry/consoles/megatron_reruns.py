"""Reads the tracker file of Megatron's rerun machine.

Which results were rejected, and whether they came again.

This module never concludes more than the status says: transient, persistent, or seen once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from spiketriage.nouns.series import LogFacts
from spiketriage.nouns.telemetry import Severity
from spiketriage.readers.look import Look
from spiketriage.readers.telemetry.consoles.log_claims import claim
from spiketriage.readers.telemetry.consoles.log_numbers import number
from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.consoles.text_lines import TextLine
from spiketriage.readers.telemetry.series.names import Names

NAME = "megatron-reruns"
TELLS = (
    "Rank, node, device and iteration of each result that was rejected, and whether a rerun "
    "gave it again."
)
CANNOT = "Anything of a healthy step: only rejected results are written."

_LINE = re.compile(
    r"ts=(?P<at>\S{1,40}(?: [\d:.]{1,20})?) node=(?P<node>\S{1,255}) device=(?P<device>\S{1,40}) "
    r"jobID=(?P<job>\S{1,80}) rank=(?P<rank>\d{1,7}) iteration=(?P<step>\d{1,18}) "
    r"status=(?:\w+\.)?(?P<status>\w{1,60}) result=(?P<result>.{0,400}?) "
    r"message='(?P<message>.*)'\s*\Z"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meaning:
    severity: Severity
    says: str


_MEANINGS = {
    "rerun_disabled": _Meaning(
        severity="warning", says="seen once, reruns are off: nothing tells whether it comes again"
    ),
    "initial_run": _Meaning(severity="warning", says="seen in the first run, to be run again"),
    "first_rerun_not_reproducible": _Meaning(
        severity="error",
        says="transient: the same device gave another result at once, with the same data",
    ),
    "first_rerun_reproducible": _Meaning(
        severity="error",
        says="came again on the same device: persistent fault or correct result, to be run "
        "elsewhere",
    ),
    "second_rerun_not_reproducible": _Meaning(
        severity="error",
        says="persistent on the device of the records before: this other device gave another "
        "result",
    ),
    "second_rerun_reproducible": _Meaning(
        severity="error",
        says="came again on another device: not the hardware, the data or the code gives it",
    ),
}


def claims(look: Look) -> float:
    """How sure we are that this is a rerun tracker file."""
    return claim(look, ("status=",), lambda line: _LINE.search(line.raw), sure=0.97)


def read(path: Path, names: Names) -> LogFacts:
    """Every record as an event, and the numeric results as a series by rank.

    Raises:
        EvidenceError: it cannot be read, or has no record.
    """
    log = LogPoints(path, names, format=NAME)
    for line in log.lines("status="):
        found = _LINE.search(line.raw)
        if found is None:
            log.near_miss(line)
            continue
        _keep(found, line, log)
    log.notes.append("an iteration is in it only where a result was rejected; the time has no zone")
    log.notes.append(
        "iterations are counted from 0 here: Megatron's log lines and messages say one more"
    )
    return log.facts()


def _keep(found: re.Match[str], line: TextLine, log: LogPoints) -> None:
    status = found["status"].lower()
    meaning = _MEANINGS.get(status, _Meaning(severity="warning", says="a status that is not known"))
    rank, step = int(found["rank"]), int(found["step"])
    log.match(line)
    log.identity.setdefault("job", found["job"])
    log.event(
        f"rerun-{status.replace('_', '-')}",
        meaning.severity,
        f"result {found['result'][:80]} of rank {rank} at iteration {step} rejected "
        f"({found['message'][:200]}): "
        f"{meaning.says}",
        line,
        step=step,
        rank=rank,
        at=found["at"],
        host=found["node"],
        device=found["device"],
    )
    result = number(found["result"].removeprefix("tensor(").split(",")[0].rstrip(")"))
    if result is not None:
        log.beside(step, {"rejected result": result}, rank=rank)
