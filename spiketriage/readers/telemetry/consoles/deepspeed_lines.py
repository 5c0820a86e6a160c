"""DeepSpeed engine's lines in whatever log it runs under: overflows, skipped steps, loss scales.

This module never decides the format of a log: DeepSpeed runs under other trainers, whose readers
ask it too.
"""

from __future__ import annotations

import re

from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.consoles.text_lines import TextLine

ANCHORS = ("OVERFLOW!", "detected overflow", "scale already at minimum")
_OVERFLOW = re.compile(
    r"\[deep(?:speed|scale)\] OVERFLOW! Rank (?P<rank>\d{1,7}) Skipping step\.?"
    r"(?: Attempted loss scale: (?P<tried>[\d.e+]{1,40}), (?P<action>(?:reducing to|but "
    r"hysteresis) [^|\[]{1,80}))?"
)
_DETECTED = re.compile(
    r"rank (?P<rank>\d{1,7}) detected overflow (?P<value>\S{1,40}) in tensor "
    r"(?P<tensor>[\w:.]{1,80})"
)
_MINIMUM = "scale already at minimum"


def offer(line: TextLine, log: LogPoints) -> bool:
    """Keep the events of a line of DeepSpeed's; whether it was one."""
    is_ours = False
    for overflow in _OVERFLOW.finditer(line.raw):
        is_ours = True
        scale = ""
        if overflow["tried"]:
            scale = f"; attempted loss scale {overflow['tried']}, {overflow['action'].strip()}"
        log.event(
            "overflow",
            "warning",
            f"DeepSpeed skipped a step because of an overflow ({_after(log)}){scale}",
            line,
            rank=int(overflow["rank"]),
        )
    for detected in _DETECTED.finditer(line.raw):
        is_ours = True
        sentence = f"overflow {detected['value']} in tensor {detected['tensor']} ({_after(log)})"
        log.event("overflow-in-tensor", "error", sentence, line, rank=int(detected["rank"]))
    # Not the line of code that a traceback quotes.
    if _MINIMUM in line.raw and not line.raw.lstrip().startswith("raise "):
        is_ours = True
        log.event(
            "loss-scale-at-minimum",
            "fatal",
            f"the loss scale cannot be reduced further ({_after(log)})",
            line,
        )
    if is_ours:
        log.match(line)
    return is_ours


def _after(log: LogPoints) -> str:
    step = log.last_step()
    if step is None:
        return "the line names no step"
    return f"the line names no step; the last one before it is {step}"
