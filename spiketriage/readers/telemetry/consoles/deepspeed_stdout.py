"""What DeepSpeed's own logger prints: learning rate, skipped steps, throughput, and overflows.

Only the pipeline engine prints a loss; this module never takes the trainer's own lines for
DeepSpeed's.
"""

from __future__ import annotations

import re

from spiketriage.readers.telemetry.consoles import deepspeed_lines
from spiketriage.readers.telemetry.consoles.line_format import LineFormat
from spiketriage.readers.telemetry.consoles.log_numbers import numbers
from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.consoles.text_lines import TextLine

NAME = "deepspeed-stdout"
TELLS = (
    "Learning rate and skipped steps by step, throughput, and every overflow with its loss scale."
)
CANNOT = "The loss without the pipeline engine, the gradient norm, and the step of an overflow."

_STEP = re.compile(r"step=(?P<step>\d{1,18}), skipped=(?P<skipped>\d{1,18}), lr=\[(?P<lr>[^\]]*)\]")
_SPEED = re.compile(
    r"(?:global_step=|\b\d{1,18}/)(?P<step>\d{1,18}), RunningAvgSamplesPerSec=(?P<rate>[\d.naif]+)"
    r"(?:, CurrSamplesPerSec=(?P<now>[\d.naif]+))?"
)
# The pipeline engine's own, which has a loss.
_PIPELINE = re.compile(r"steps: (?P<step>\d{1,18}) loss: (?P<loss>[-+\w.]{1,40}) iter time")


class _Steps:
    """Steps and their counter of skipped ones, as they come."""

    def __init__(self, log: LogPoints) -> None:
        self.log = log
        self.num_skipped = 0
        self.at_step = 0
        self.has_loss = False

    def offer(self, line: TextLine) -> None:
        log = self.log
        if deepspeed_lines.offer(line, log):
            return
        speed = _SPEED.search(line.text)
        if speed:
            rates = {"RunningAvgSamplesPerSec": speed["rate"], "CurrSamplesPerSec": speed["now"]}
            log.beside(int(speed["step"]), numbers(rates))
            log.match(line)
            return
        pipeline = _PIPELINE.search(line.text)
        if pipeline:
            self.has_loss = True
            log.row(int(pipeline["step"]), numbers({"loss": pipeline["loss"]}))
            log.match(line)
            return
        settings = _STEP.search(line.text)
        if not settings:
            log.near_miss(line)
            return
        step, skipped = int(settings["step"]), int(settings["skipped"])
        cells = {"lr": settings["lr"].split(",")[0], "skipped steps": settings["skipped"]}
        log.row(step, numbers(cells))
        if skipped > self.num_skipped:
            since = (
                f"{skipped - self.num_skipped} steps were skipped after step {self.at_step} up "
                f"to {step}"
            )
            log.event("skipped-steps", "warning", since, line, step=step)
        self.num_skipped, self.at_step = skipped, step
        log.match(line)

    def close(self) -> None:
        """Say where a loss is, if there was none."""
        if not self.has_loss:
            self.log.say(
                "DeepSpeed's own lines have no loss: read the trainer's log or its TensorBoard "
                "for it"
            )


def _is_line(line: TextLine) -> bool:
    text = line.text
    patterns = (_PIPELINE, _STEP, _SPEED)
    return "OVERFLOW!" in text or any(pattern.search(text) for pattern in patterns)


FORMAT = LineFormat(
    name=NAME,
    anchors=("skipped=", "steps: ", "RunningAvgSamplesPerSec=", *deepspeed_lines.ANCHORS),
    sure=0.6,  # below any trainer that runs on top of it and prints a loss
    is_line=_is_line,
    reader=_Steps,
)
claims, read = FORMAT.claims, FORMAT.read
