"""The tracker file of Megatron's rerun machine: results rejected, and whether they came again.

This module never concludes more than the status says: transient, persistent, or seen once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spiketriage.nouns.telemetry import Severity
from spiketriage.readers.telemetry.consoles.line_format import LineFormat
from spiketriage.readers.telemetry.consoles.log_numbers import number
from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.consoles.text_lines import TextLine

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


class _Records:
    """Each record is a line."""

    def __init__(self, log: LogPoints) -> None:
        self.log = log

    def offer(self, line: TextLine) -> None:
        record = _LINE.search(line.raw)
        if record:
            _keep(record, line, self.log)
        else:
            self.log.near_miss(line)

    def close(self) -> None:
        """Nothing is open."""


def _keep(record: re.Match[str], line: TextLine, log: LogPoints) -> None:
    """The record as an event, and its result, where it is a number, as a point."""
    status = record["status"].lower()
    meaning = _MEANINGS.get(status, _Meaning(severity="warning", says="a status that is not known"))
    rank, step = int(record["rank"]), int(record["step"])
    log.match(line)
    log.identity.setdefault("job", record["job"])
    log.event(
        f"rerun-{status.replace('_', '-')}",
        meaning.severity,
        f"result {record['result'][:80]} of rank {rank} at iteration {step} rejected "
        f"({record['message'][:200]}): "
        f"{meaning.says}",
        line,
        step=step,
        rank=rank,
        at=record["at"],
        host=record["node"],
        device=record["device"],
    )
    result = number(record["result"].removeprefix("tensor(").split(",")[0].rstrip(")"))
    if result is not None:
        log.beside(step, {"rejected result": result}, rank=rank)


FORMAT = LineFormat(
    name=NAME,
    anchors=("status=",),
    notes=(
        "an iteration is in it only where a result was rejected; the time has no zone",
        "iterations are counted from 0 here: Megatron's log lines and messages say one more",
    ),
    sure=0.97,  # no other text has its eight keys in this order
    is_line=lambda line: _LINE.search(line.raw),
    reader=_Records,
)
claims, read = FORMAT.claims, FORMAT.read
