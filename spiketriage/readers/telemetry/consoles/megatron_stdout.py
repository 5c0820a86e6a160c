"""Megatron-LM's and Megatron-DeepSpeed's standard output: `key: value` cells between bars.

This module never takes a cell that a colliding line cut short, nor a metric that is not wired
for zero, and never reads by position.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from spiketriage.readers.telemetry.consoles import deepspeed_lines
from spiketriage.readers.telemetry.consoles.line_format import MS_PER_S, LineFormat
from spiketriage.readers.telemetry.consoles.log_numbers import number
from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.consoles.text_lines import LOGGER_RANK, TextLine, peel

NAME = "megatron-stdout"
TELLS = (
    "Loss, gradient norm, learning rate, loss scale, skipped and NaN iterations, and consumed "
    "samples or tokens."
)
CANNOT = "Single steps where a line is a mean over an interval, and a NaN loss but by its absence."

LOSS = "lm loss"
NORM = "grad norm"
SCALE = "loss scale"
SKIPPED = "number of skipped iterations"
NANS = "number of nan iterations"
MAX_NAME_CHARS = 120  # a longer one is no metric but text with a colon in it
_LOSS_SPELLINGS = frozenset({"lm loss", "lm-loss", "lm_loss", "loss"})
_TIME = re.compile(r"elapsed time per iteration \((ms|s)\)")
_HEAD = re.compile(r"\biteration\s{1,20}(?P<step>\d{1,18})/\s{0,20}(?P<total>\d{1,18})\s?\|")
_VALIDATION = re.compile(
    r"validation loss at (?:iteration )?(?P<step>\d{1,18})(?P<set> on \w{1,40} set)?\s?\|"
)
_COLLISION = re.compile(
    r"\[(?:default|rank)\d+\]:|\[[Rr]ank \d+\]|\biteration\s{1,20}\d+/\s*\d+\s?\|"
)
_CUT = "…"
_DOTS = " ....."  # between the name and the value of an argument, as they are printed at the start
_ARGUMENT = re.compile(r"\s{0,8}(?P<name>\w{1,80}) \.{2,80} (?P<value>\S.{0,200})\Z")
MAX_ARGUMENTS = 2000  # Megatron-LM has some 400
_LAUNCHER = re.compile(r"\[(?:default|rank)\d+\]:")


class _Iterations:
    """What has to be known of the whole log before a missing key can be judged."""

    def __init__(self, log: LogPoints) -> None:
        self.log = log
        self.has_loss = self.has_norm = False
        self.is_explained = True  # every missing loss so far has a counter that explains it
        self.num_cut = 0

    def offer(self, line: TextLine) -> None:
        """Read the records of a line: there may be several where ranks collide."""
        log = self.log
        heads = list(_HEAD.finditer(line.text))
        for head in heads:
            self._record(head, _until_collision(line, head.end()), _line_of(line, head))
        validation = _VALIDATION.search(line.text)
        if validation:
            kind = f"validation{validation['set'] or ''} "
            cells = _cells(_until_collision(line, validation.end())).items()
            log.beside(
                int(validation["step"]), {kind + key: value for key, value in cells}, rank=line.rank
            )
            log.match(line)
        elif not heads and not deepspeed_lines.offer(line, log) and _looks_torn(line):
            log.near_miss(line)
        self._argument(line)

    def _argument(self, line: TextLine) -> None:
        """Keep an argument of the newest start: the schedule is among them."""
        argument = _ARGUMENT.match(line.text.rstrip())
        if argument and len(self.log.identity) < MAX_ARGUMENTS:
            self.log.identity[f"argument/{argument['name']}"] = argument["value"]

    def _record(self, head: re.Match[str], text: str, line: TextLine) -> None:
        log, step, cells = self.log, int(head["step"]), _cells(text)
        is_whole = text.rstrip().endswith("|")
        if not cells:
            log.near_miss(line)
            return
        log.match(line)
        log.identity["total_iterations"] = head["total"]
        self.num_cut += text.endswith(_CUT)
        spelled = next((key for key in cells if key in _LOSS_SPELLINGS), None)
        if spelled is not None:
            self.has_loss = True
            log.spell(LOSS, spelled)
            cells[LOSS] = cells.pop(spelled)
        self.has_norm = self.has_norm or NORM in cells
        reasons: dict[str, str] = {}
        if _is_left_out(cells):
            if cells.get(LOSS) == 0.0:
                del cells[LOSS]  # the mean over no stepped iteration
        elif is_whole:
            reasons = self._hidden(cells)
        log.row(step, cells | dict.fromkeys(reasons, math.nan), rank=line.rank, reasons=reasons)
        self._events(step, cells, line)

    def _hidden(self, cells: dict[str, float]) -> dict[str, str]:
        """What the line leaves out, with the reason."""
        counters = [key for key in (SKIPPED, NANS) if cells.get(key, 0) > 0]
        counted = " and ".join(f"{key} is {cells[key]:.0f}" for key in counters)
        reasons = {}
        if LOSS not in cells and counters:
            reasons[LOSS] = (
                f"the line has no loss and {counted}: it was not finite, or nothing was stepped"
            )
        elif LOSS not in cells:
            self.is_explained = False
            reasons[LOSS] = (
                "the line has no loss though nothing was skipped: "
                "Megatron prints it only where it is not negative, which NaN is neither"
            )
        elif cells[LOSS] == 0.0 and counters:  # the sum over no stepped iteration
            reasons[LOSS] = (
                f"it is printed as exactly 0 and {counted}: "
                "no iteration of the interval was stepped"
            )
        if NORM not in cells:
            beside = f" and {counted}" if counters else ""
            reasons[NORM] = f"the line has no gradient norm{beside}: the last step was skipped"
        return reasons

    def _events(self, step: int, cells: dict[str, float], line: TextLine) -> None:
        for key, kind in ((SKIPPED, "skipped-iterations"), (NANS, "nan-iterations")):
            count = cells.get(key, 0)
            if count > 0:
                sentence = f"{key} is {count:.0f} in the interval that ends at iteration {step}"
                self.log.event(
                    kind, "error" if key == NANS else "warning", sentence, line, step=step
                )

    def close(self) -> None:
        """Judge what only the whole log shows."""
        log = self.log
        if not self.has_loss and not self.is_explained:
            log.drop(LOSS)
            log.notes.append("no line has a loss under a name that is known to be one")
        if not self.has_norm:
            log.drop(NORM)
        scales, norms = log.values(SCALE), log.values(NORM)
        if scales and all(scale == -1.0 for scale in scales):
            unwired = "is not wired in this log"
            log.trust(SCALE, f"it is -1.0 on every line: the metric {unwired}", trusted=False)
            if norms and not any(norms):
                why = (
                    "it is 0.000 on every line while the loss scale is -1.0: the metric "
                    f"{unwired}, not a zero gradient"
                )
                log.trust(NORM, why, trusted=False)
                log.trust("num zeros", f"the gradient norm beside it {unwired}", trusted=False)
        if self.num_cut:
            log.problems.append(
                f"{log.path}: {self.num_cut} iteration lines are cut short by another "
                "rank's output or by the end "
                "of the file: the cells after the cut are missing, which says nothing about them"
            )
        self._interval()

    def _interval(self) -> None:
        steps = self.log.steps(SKIPPED) or self.log.steps(LOSS)
        gaps = {later - earlier for earlier, later in pairwise(steps) if later > earlier}
        if gaps and gaps != {1}:
            lengths = " or ".join(map(str, sorted(gaps)[:3]))
            self.log.notes.append(
                f"each loss is the mean over an interval of {lengths} iterations, skipped "
                "ones left out; "
                "learning rate, loss scale and gradient norm are those of the last "
                "iteration of the interval"
            )


def _cells(text: str) -> dict[str, float]:
    """The cells between bars (some launchers write none after the last); times become seconds."""
    cells = {}
    for cell in text.split("|"):
        key, _, written = cell.strip().rpartition(":")
        value = number(written)
        if value is None or not 0 < len(key) <= MAX_NAME_CHARS:
            continue
        time = _TIME.fullmatch(key)
        if time and time[1] == "ms":
            value /= MS_PER_S
        cells[key] = value
    return cells


def _is_left_out(cells: Mapping[str, float]) -> bool:
    """Whether loss scaling left an update out of an interval in which every loss was finite.

    A loss that is not finite is counted among the NaN iterations, and a scale of 1 is none.
    """
    return cells.get(SKIPPED, 0) > 0 and not cells.get(NANS, 0) and cells.get(SCALE, 0) > 1


def _until_collision(line: TextLine, start: int) -> str:
    """The record that begins at `start`, up to the last bar before another rank's output."""
    collision = _COLLISION.search(line.text, start)
    if collision or line.torn:
        end = collision.start() if collision else None
        record = line.text[start:end]
        if record.rstrip().endswith("|"):
            return record
        return record[: record.rfind("|") + 1] + _CUT
    return line.text[start:]


def _line_of(line: TextLine, head: re.Match[str]) -> TextLine:
    """The line with the rank whose prefix stands right before the record."""
    prefix = list(_LAUNCHER.finditer(line.text, 0, head.start()))
    if prefix:
        return peel(line.text[prefix[-1].start() :], number=line.number)
    if line.notion == LOGGER_RANK:  # of another record
        return replace(line, rank=None, notion="")
    return line


def _looks_torn(line: TextLine) -> bool:
    text = line.text.lstrip()
    return text.startswith("iteration  ") or ("iteration " in text and "consumed samples" in text)


FORMAT = LineFormat(
    name=NAME,
    anchors=("iteration", _DOTS, *deepspeed_lines.ANCHORS),
    own={
        "elapsed time per iteration (ms)": "time/step_s",
        "elapsed time per iteration (s)": "time/step_s",
        "consumed tokens": "tokens/total",
    },
    is_line=lambda line: _HEAD.search(line.text) and ": " in line.text,
    reader=_Iterations,
)
claims, read = FORMAT.claims, FORMAT.read
