"""Reads OLMo-core's console: a header `[step=N/M,epoch=…]`, then one `name=value` a line.

This module never takes a `name=value` line that does not directly follow a header or another one.
"""

from __future__ import annotations

import re

from spiketriage.readers.telemetry.consoles.line_format import LineFormat
from spiketriage.readers.telemetry.consoles.log_numbers import short_number
from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.consoles.text_lines import TextLine

NAME = "olmo-stdout"
TELLS = "Loss, total gradient norm, learning rate, skipped steps and throughput by step."
CANNOT = "More than four digits of a value, and the metrics and steps that the console leaves out."

_HEADER = re.compile(
    r"(?:\A|\s)\[step=(?P<step>\d[\d,]{0,22})/(?P<total>\d[\d,]{0,22}|\?\?\?),epoch=[^\]\n]{1,120}\]\s*\Z"
)
_METRIC = re.compile(r"(?:\A|[\]):]) {4,40}(?P<name>\S[^=\t\n]{0,120})=(?P<value>\S{1,40})\s*\Z")


class _Records:
    """The record whose header was seen last."""

    def __init__(self, log: LogPoints) -> None:
        self.log = log
        self.step: int | None = None
        self.next_number = 0
        self.rank: int | None = None
        self.cells: dict[str, float] = {}

    def offer(self, line: TextLine) -> None:
        header = _header(line)
        if header:
            self.close()
            self.step = int(header["step"].replace(",", ""))
            self.rank = line.rank
            self.next_number = line.number + 1
            self.log.match(line)
            self.log.identity["total_steps"] = header["total"]
            return
        if "[step=" in line.text and line.torn:
            self.log.near_miss(line)
        if self.step is None or line.number != self.next_number:
            self.close()
            return
        metric = _METRIC.search(line.raw)
        if metric is None:
            self.log.near_miss(line)
            self.close()
            return
        self.next_number = line.number + 1
        self.log.match(line)
        value = short_number(metric["value"])
        if value is not None:
            self.cells[metric["name"]] = value

    def close(self) -> None:
        """Keep the record that is open."""
        if self.step is not None and self.cells:
            self.log.row(self.step, self.cells, rank=self.rank)
        self.step, self.cells = None, {}


def _header(line: TextLine) -> re.Match[str] | None:
    if "[step=" not in line.text:  # the expression is slow, and most lines are none
        return None
    return _HEADER.search(line.text)


FORMAT = LineFormat(
    name=NAME,
    anchors=("=",),
    own={
        "train/ce loss": "loss/mean",
        "optim/total grad norm": "grad/norm",
        "optim/lr": "lr",
        "optim/lr (group 0)": "lr",
        "optim/learning rate (group 0)": "lr",
        "throughput/total tokens": "tokens/total",
    },
    is_line=_header,
    reader=_Records,
)
claims, read = FORMAT.claims, FORMAT.read
