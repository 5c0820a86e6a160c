"""Reads MosaicML composer's console: a header `[batch=N/M]:`, then one `Train name: value` a line.

This module never takes a batch number within an epoch for a step where the log does not say how
long an epoch is.
"""

from __future__ import annotations

import re

from spiketriage.readers.telemetry.consoles.line_format import LineFormat
from spiketriage.readers.telemetry.consoles.log_numbers import short_number
from spiketriage.readers.telemetry.consoles.log_points import MAX_STEP, LogPoints
from spiketriage.readers.telemetry.consoles.text_lines import TextLine

NAME = "composer-stdout"
TELLS = "Every metric that the run logs, training and evaluation, at the console's interval."
CANNOT = "More than four decimals, and the gradient norm unless a callback logs it."

_HEADER = re.compile(
    r"(?:\[epoch=(?P<epoch>\d{1,9})\])?\[(?P<unit>batch|token|sample|iteration)=(?P<at>\d{1,18})(?:/(?P<total>\d{1,18}))?\]:?\s*\Z"
)
_EVAL = re.compile(r"\[Eval batch=\d+/\d+\] Eval on (?P<set>.{1,80}?) data:?\s*\Z")
_METRIC = re.compile(r"(?P<kind>Train|Eval) (?P<name>[^:\n]{1,120}): (?P<value>\S{1,40})\s*\Z")
_BATCHES = "time/batch"


class _Records:
    """The record whose header was seen last."""

    def __init__(self, log: LogPoints) -> None:
        self.log = log
        self.header: re.Match[str] | None = None
        self.is_eval = False
        self.rank: int | None = None
        self.cells: dict[str, float] = {}

    def offer(self, line: TextLine) -> None:
        header = _HEADER.match(line.text)
        if header or _EVAL.match(line.text):
            self.close()
            self.header, self.is_eval, self.rank = header, header is None, line.rank
            self.log.match(line)
            return
        metric = _METRIC.match(line.text)
        if metric is None:
            if "batch=" in line.text and line.text.startswith("["):
                self.log.near_miss(line)
            return
        value = short_number(metric["value"])
        self.log.match(line)
        if value is not None and (self.header is not None or self.is_eval):
            prefix = "eval " if self.is_eval else ""
            self.cells[prefix + metric["name"]] = value

    def close(self) -> None:
        """Keep the record that is open."""
        if self.is_eval and self.cells:
            last = self.log.last_step(self.rank)
            if last is not None:
                self.log.beside(last, self.cells, rank=self.rank)
        elif self.header is not None and self.cells:
            step = self._step(self.header)
            if step is None:
                self.log.say(
                    "some headers count no batches of the whole run: their records were left out"
                )
            else:
                self.log.row(step, self.cells, rank=self.rank)
        self.header, self.is_eval, self.cells = None, False, {}

    def _step(self, header: re.Match[str]) -> int | None:
        """How many batches of the run are behind the record; None where neither line says so."""
        if header["unit"] == "batch" and header["epoch"] in (None, "1"):
            return int(header["at"])
        batches = self.cells.get(_BATCHES, -1.0)
        if 0 <= batches < MAX_STEP:
            # It was logged when the batch began, so that this one is not counted.
            self.log.say(
                f"the step is {_BATCHES} + 1, where the header counts no batches of the whole run"
            )
            return int(batches) + 1
        if header["unit"] != "batch" or header["epoch"] is None or header["total"] is None:
            return None
        self.log.say(
            "the batch number begins anew in every epoch: the step is (epoch - 1) * "
            "batches an epoch + batch"
        )
        return (int(header["epoch"]) - 1) * int(header["total"]) + int(header["at"])


FORMAT = LineFormat(
    name=NAME,
    anchors=(
        "[batch=",
        "[epoch=",
        "[token=",
        "[sample=",
        "[iteration=",
        "[Eval ",
        "Train ",
        "Eval ",
    ),
    own={
        "loss/train/total": "loss/mean",
        "l2_norm/grad/global": "grad/norm",
        "time/token": "tokens/total",
    },
    is_line=lambda line: _HEADER.match(line.text),
    reader=_Records,
)
claims, read = FORMAT.claims, FORMAT.read
