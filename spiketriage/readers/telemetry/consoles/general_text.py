"""Any console that prints a step and a loss on one line: `key: value`, `key=value`, `key value`.

It is the reader of last resort, at a low confidence: a trainer with a row of its own comes first.
This module never takes a validation line for a training step, and never invents a step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spiketriage.readers.look import Look
from spiketriage.readers.telemetry.consoles.line_format import LineFormat
from spiketriage.readers.telemetry.consoles.log_claims import claim
from spiketriage.readers.telemetry.consoles.log_numbers import short_number
from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.consoles.text_lines import TextLine
from spiketriage.readers.telemetry.series.names import ALIASES, DEFAULT, Names

NAME = "text-log"
TELLS = (
    "Whatever stands on a line beside a step as `key: value`, `key=value` or `key value`, progress "
    "bars too."
)
CANNOT = "What a key means, unless it is a known name or the settings' [columns] say so."

CONFIDENCE = 0.55  # enough for a folder in which nothing surer claims the file
A_GUESS = 0.3  # not enough but where the settings name columns
MAX_CELLS = 200  # of one line; more is no log of steps

_NUMBER = (
    r"[-+]?(?:nan|inf(?:inity)?|\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?(?:e[-+]?\d+)?"
    r"|\.\d+(?:e[-+]?\d+)?)(?![\w%./:]|,\d{3}(?!\d))"
)
# A value and what stands between it and its key; the key is what is left before, up to a border.
_VALUE = re.compile(rf"['\"]?(?:\s?[:=]\s{{0,8}}|\s){{1}}['\"]?(?P<value>{_NUMBER})", re.IGNORECASE)
_BORDER = re.compile(r"[,;|{}\[\]()<>]|\s{2,}| - |[:=]\s")
_KEY = re.compile(r"(?:^|\s)(?P<key>[A-Za-z][\w./-]*(?: [A-Za-z(][\w./()-]*){0,3})\Z")
_WORDY = re.compile(r"(?:^|[ _/.-])(?:loss|lr|learning rate|grad(?:ient)?[ _-]?norm|gnorm)\Z", re.I)

_STEP_KEYS = {
    *("step", "steps", "global_step", "global step", "iter", "iters", "iteration", "iterations"),
    *("num_updates", "update", "updates", "train step", "training step", "completed step"),
    *("current_steps", "train/step", "train/global_step", "trainer/global_step", "batch_step"),
}
_STEP_WORD = re.compile(
    r"(?:^|[\s\[(|,{'\"])(?:global[ _])?(?:step|iter|iteration|update)s?"
    r"(?:\(train\)|/max_steps['\"])?\s{0,4}[:=#]?\s{0,4}[\['\"]?\s{0,8}"
    r"(?P<step>\d{1,18})(?![\d.])",
    re.IGNORECASE,
)
_EPOCH_AND_PLACE = re.compile(
    r"epoch(?:\(train\))?[:\s]{0,4}\[?\s{0,4}(?P<epoch>\d{1,9})\]?[^\[\]\d]{0,8}"
    r"\[\s{0,8}(?P<at>\d{1,18})\s{0,4}/\s{0,8}(?P<of>\d{1,18})",
    re.IGNORECASE,
)
_BAR = re.compile(r"(?:^|[\s|])(?P<at>\d{1,18})/(?P<of>\d{1,18}|\?) \[[\d:?]")
_BAR_OF_EPOCH = re.compile(r"\s{0,40}+Epoch (?P<epoch>\d{1,9})\b")
_NOT_TRAINING = re.compile(
    r"\W{0,40}+(?:\w{1,40}+ )?(?:val(?:id(?:ation)?)?|eval(?:uat\w+)?|test(?:ing)?)\b",
    re.IGNORECASE,
)
_LOSS = "loss/mean"
_GRADIENT = "grad/norm"
_OWN = {
    **{"train loss": _LOSS, "total loss": _LOSS, "total_loss": _LOSS, "avg loss": _LOSS},
    **{"avg_loss": _LOSS, "avr_loss": _LOSS},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A line of a training step: `is_place` where the step counts batches or samples of epochs."""

    step: int
    cells: Mapping[str, float]
    is_place: bool


def parse(text: str, names: Names = DEFAULT) -> Parsed | None:
    """The step and the values of a line; None where it has no step, or nothing like a loss."""
    cells = _of_training(text)
    if not any(_is_watched(key) or key in names.columns for key in cells):
        return None
    for key in list(cells):
        is_step = key.lower() in _STEP_KEYS or names.columns.get(key) == "step"
        if is_step and cells[key].is_integer():
            return Parsed(step=int(cells.pop(key)), cells=cells, is_place=False)
    place = _EPOCH_AND_PLACE.search(text) or _BAR.search(text)
    if place:
        return _placed(text, place, cells)
    word = _STEP_WORD.search(text)
    if word:
        return Parsed(step=int(word["step"]), cells=cells, is_place=False)
    return None


def _of_training(text: str) -> dict[str, float]:
    """What a line holds; nothing if it speaks of an evaluation."""
    if _NOT_TRAINING.match(text):
        return {}
    return dict(_cells(text))


def _placed(text: str, place: re.Match[str], cells: Mapping[str, float]) -> Parsed:
    """The step of a bar, or of a place in an epoch: then those of the epochs before are added."""
    at = int(place["at"])
    epoch = place.groupdict().get("epoch")
    if epoch is None:
        bar = _BAR_OF_EPOCH.match(text)
        epoch = bar["epoch"] if bar else None
    if epoch is None or not place["of"].isdecimal():
        return Parsed(step=at, cells=cells, is_place=False)
    return Parsed(step=int(epoch) * int(place["of"]) + at, cells=cells, is_place=True)


def _cells(text: str) -> Iterator[tuple[str, float]]:
    """Keys and numbers, in order; of a key that a line repeats, the last."""
    end = 0
    for num, match in enumerate(_VALUE.finditer(text)):
        if num == MAX_CELLS:
            return
        key = _key(text[end : match.start()])
        is_stated = any(sign in text[match.start() : match.start("value")] for sign in ":=")
        if key and (is_stated or _WORDY.search(key)):
            value = short_number(match["value"])
            if value is not None:
                yield key, value
        end = match.end()


def _key(before: str) -> str:
    """The key that ends where a value begins; empty where nothing there is one."""
    tail = _BORDER.split(before[-80:])[-1].strip().strip("'\"")
    match = _KEY.search(tail)
    if match:
        return match["key"]
    return ""


def _is_watched(key: str) -> bool:
    """Whether a key is, or looks like, the loss of training or its gradient norm."""
    lower = key.lower()
    known = _OWN.get(lower) or ALIASES.get(lower)
    if known is not None:
        return known in (_LOSS, _GRADIENT)
    return "loss" in lower and not any(word in lower for word in ("val", "eval", "scale"))


class _Lines:
    """Rows as they come."""

    def __init__(self, log: LogPoints) -> None:
        self._log = log
        self._has_place = False

    def offer(self, line: TextLine) -> None:
        parsed = parse(line.text, self._log.names)
        if parsed is None:
            return
        if parsed.is_place and not self._has_place:
            self._has_place = True
            self._log.say("the axis counts what an epoch is counted in (batches or samples)")
        self._log.match(line)
        self._log.row(parsed.step, parsed.cells, rank=line.rank)

    def close(self) -> None:
        """Nothing is open."""


def _is_line(line: TextLine) -> bool:
    return parse(line.text) is not None


def _has_loss(line: TextLine) -> bool:
    return any(map(_is_watched, _of_training(line.text)))


def claims(look: Look) -> float:
    """Low where lines have a step and a loss; a guess where only the settings can say the step."""
    return FORMAT.claims(look) or claim(look, FORMAT.anchors, _has_loss, sure=A_GUESS)


FORMAT = LineFormat(
    name=NAME,
    anchors=("loss", "Loss", "LOSS", "grad", "gnorm", "Grad"),
    own=_OWN,
    sure=CONFIDENCE,
    is_line=_is_line,
    reader=_Lines,
)
read = FORMAT.read
