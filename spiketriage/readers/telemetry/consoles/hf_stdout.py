"""The dict lines of the Hugging Face Trainer: `{'loss': '4.845', 'grad_norm': '1.119', …}`.

This module never invents a step: the lines have none, so they are counted, or multiplied by what
the log itself states.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left

from spiketriage.readers.telemetry.consoles import deepspeed_lines
from spiketriage.readers.telemetry.consoles.line_format import LineFormat
from spiketriage.readers.telemetry.consoles.log_numbers import number
from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.consoles.text_lines import TextLine

NAME = "hf-stdout"
TELLS = (
    "Loss, gradient norm and learning rate in the order of logging, evaluations and run summaries."
)
CANNOT = (
    "The step of a line, and more than four digits since transformers 5; trainer_state.json "
    "has both."
)

_DICT = re.compile(r"\{'\w[^{}\n]{1,20000}\}")
_ITEM = re.compile(
    r"'(?P<key>[^'\n]{1,120})': (?:'(?P<quoted>[^'\n]{0,60})'|(?P<bare>[-+\w.]{1,60}))"
)
_EVERY = re.compile(
    r"logging_steps['\"]?(?:\s{0,3}[=:]\s{0,3}|\s{1,3}|\s\.+\s)(?P<num>\d{1,9})(?![\d.])"
)
_BY_EPOCH = re.compile(
    r"logging_strategy['\"]?(?:\s{0,3}[=:]\s{0,3}|\s{1,3})['\"]?(?:IntervalStrategy\.)?epoch",
    re.IGNORECASE,
)
_OWN_STEP = re.compile(r"'(?:global_)?step(?:/max_steps)?': ")  # the Trainer never prints it
_FIRST = re.compile(r"logging_first_step['\"]?\s{0,3}[=:]\s{0,3}True")
_HIDDEN = "logged as exactly 0 with a gradient norm that is not finite: the NaN filter hid it"
_FAMILIES = frozenset({"learning_rate", "epoch", "grad_norm"})


def _dicts(text: str) -> list[str]:
    return _DICT.findall(text)


def _items(text: str) -> dict[str, float]:
    """The numbers of a dict that the Trainer printed; nothing if it is another dict."""
    cells: dict[str, float] = {}
    if _OWN_STEP.search(text):
        return cells
    for item in _ITEM.finditer(text):
        value = number(item["quoted"] if item["bare"] is None else item["bare"])
        if value is not None:
            cells[item["key"]] = value
    is_ours = "train_runtime" in cells or (
        _FAMILIES & set(cells) and any("loss" in key for key in cells)
    )
    if is_ours:
        return cells
    return {}


class _Dicts:
    """The numbering of the points, which the log may explain before they come."""

    def __init__(self, log: LogPoints) -> None:
        self.log = log
        self.every: int | None = None
        self.is_by_epoch = self.has_first = False
        self.num_rows = 0
        self.step = 0
        self.epochs: list[float] = []  # of the rows so far, and their steps; a restart cuts both
        self.steps: list[int] = []
        self.num_summaries = 0
        self.went_back = False

    def offer(self, line: TextLine) -> None:
        """Read a line: dicts of the Trainer, settings, or DeepSpeed's events."""
        is_ours = False
        for text in _dicts(line.text):
            cells = _items(text)
            if cells:
                is_ours = True
                self.log.match(line)
                self._keep(cells, line)
        if is_ours or deepspeed_lines.offer(line, self.log):
            return
        self._settings(line.text)
        if re.search(r"\{'(?:eval_)?loss': ", line.text):
            self.log.near_miss(line)

    def _settings(self, text: str) -> None:
        every = _EVERY.search(text)
        if every and self.num_rows == 0 and int(every["num"]) > 0:
            self.every = int(every["num"])
        self.is_by_epoch = self.is_by_epoch or _BY_EPOCH.search(text) is not None
        self.has_first = self.has_first or _FIRST.search(text) is not None

    def _keep(self, cells: dict[str, float], line: TextLine) -> None:
        if "train_runtime" in cells:
            self.num_summaries += 1
            for key, value in cells.items():
                self.log.identity.setdefault(key, repr(value))
        elif "loss" in cells:
            self._row(cells, line)
        else:
            cells.pop("epoch", None)  # the training lines have it
            self.log.beside(self.step, cells, rank=line.rank)

    def _row(self, cells: dict[str, float], line: TextLine) -> None:
        epoch, last = cells.get("epoch", math.nan), self.step
        is_restart = self._go_back(epoch)
        self.num_rows += 1
        self.step = self._next()
        if is_restart and self.step >= last:  # a lower step is noticed by itself
            self.log.new_attempt(last, self.step, rank=line.rank)
        if math.isfinite(epoch):
            self.epochs.append(epoch)
            self.steps.append(self.step)
        reasons = {}
        if cells["loss"] == 0.0 and not math.isfinite(cells.get("grad_norm", 0.0)):
            reasons["loss"] = _HIDDEN
            cells["loss"] = math.nan
        self.log.row(self.step, cells, rank=line.rank, reasons=reasons)

    def _next(self) -> int:
        every = 1
        if self.every and not self.is_by_epoch:
            every = self.every
        if self.has_first and every > 1:
            if self.step == 0:
                return 1
            return self.step + every - (self.step == 1)
        return self.step + every

    def _go_back(self, epoch: float) -> bool:
        """An epoch that goes back is a restart: go on with the number that it had before."""
        if not self.epochs or not epoch < self.epochs[-1]:
            return False
        num_kept = bisect_left(self.epochs, epoch)
        del self.epochs[num_kept:], self.steps[num_kept:]
        self.step = self.steps[-1] if self.steps else 0
        self.went_back = True
        return True

    def close(self) -> None:
        """Say how the points were numbered."""
        log = self.log
        is_stated = self.every is not None and not self.is_by_epoch
        if is_stated:
            why = (
                "the line has no step: it is the point's number times "
                f"logging_steps={self.every}, which the log states"
            )
        else:
            why = (
                "the line has no step and the log does not state logging_steps: points are "
                "numbered from 1"
            )
        back = ""
        if self.went_back:
            back = "; after a restart the number goes on where the epoch stood before"
        for written in log.written():
            log.trust(written, why + back, trusted=is_stated)
        if not self.num_rows:
            log.notes.append(
                "no line has a loss: the run ended before the first was logged, or logs elsewhere"
            )
        if self.num_summaries:
            log.notes.append(
                f"{self.num_summaries} closing summaries (train_runtime …), one a process "
                "that printed it"
            )
        log.notes.append(
            "each loss is the mean since the line before; trainer_state.json has the steps "
            "and all digits"
        )


FORMAT = LineFormat(
    name=NAME,
    anchors=(
        "{'",
        "logging_steps",
        "logging_strategy",
        "logging_first_step",
        *deepspeed_lines.ANCHORS,
    ),
    is_line=lambda line: any(map(_items, _dicts(line.text))),
    reader=_Dicts,
)
claims, read = FORMAT.claims, FORMAT.read
