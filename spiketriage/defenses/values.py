"""How the value of one setting reads: what it says about a stabilizer, if it says anything.

This module holds functions of one value; it opens no file and never guesses at what it cannot read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from spiketriage.defenses.weigh import Mark

Reads = Callable[[Any], Mark | None]

# A number as configurations write it; Composer adds a unit of time: 100ba, 0.1dur.
_AMOUNT = re.compile(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*(?:ba|ep|tok|sp|dur|iter)?")


def amount(value: Any) -> Mark | None:
    """A number or a flag: on above zero, off at zero, null or False; other text says nothing."""
    if isinstance(value, list):  # Megatron: one coefficient for each kind of balancing
        return _amounts(value)
    if value is None:
        return "off"
    number = _number(value)
    if number is None or math.isnan(number):
        return None
    if number > 0:
        return "on"
    return "off"


def threshold(value: Any) -> Mark | None:
    """A threshold of clipping: an infinite one clips nothing."""
    if _number(value) == math.inf:
        return "off"
    return amount(value)


def section(value: Any) -> Mark | None:
    """A section that is there or null; also a flag."""
    if isinstance(value, Mapping):
        if value.get("enabled") is False:
            return "off"
        return "on"
    if value is None or isinstance(value, bool):
        return amount(value)
    return None


def fp8_section(value: Any) -> Mark | None:
    """A section that turns FP8 on: without it there is nothing to scale."""
    mark = section(value)
    if mark == "off":
        return "unneeded"
    return mark


def flag(value: Any) -> Mark | None:
    """A flag without which its amounts do nothing."""
    if value is True:
        return "on"
    if value is False:
        return "never"
    return None


def off_only(value: Any) -> Mark | None:
    """A flag that turns off and says nothing when it is set."""
    if value is False:
        return "never"
    return None


def needs_flag(value: Any) -> Mark | None:
    """An amount that acts only where a flag elsewhere is on."""
    mark = amount(value)
    if mark == "on":
        return "hint"
    return mark


def fp16(value: Any) -> Mark | None:
    """Whether fp16 is used: without it a loss scale has nothing to do."""
    if value is True:
        return "on"
    if value is False:
        return "unneeded"
    return None


def bf16(value: Any) -> Mark | None:
    """Whether bf16 is used: with it a loss scale has nothing to do."""
    if value is True:
        return "unneeded"
    return None


def static_scale(value: Any) -> Mark | None:
    """A constant loss scale, which is no dynamic one; 0 and null leave the question open."""
    if not isinstance(value, bool) and amount(value) == "on":
        return "never"
    return None


def more_than_one(value: Any) -> Mark | None:
    """A number of micro-batches or experts: with at most one there is nothing to stabilize."""
    if value is None:
        return "unneeded"
    if isinstance(value, bool):
        return None
    number = _number(value)
    if number is not None and number <= 1:
        return "unneeded"
    return None


def words(**marks: Mark) -> Reads:
    """Words in any case, `-` and `_` alike; `null` stands for null and false, others say nothing.

    A word that begins with a digit has `_` before it here: `_16_mixed` for `16-mixed`.
    """

    def reads(value: Any) -> Mark | None:
        if value is None or value is False:
            return marks.get("null")
        if not isinstance(value, str):
            return None
        word = value.rpartition(".")[2].lower().replace("-", "_")
        return marks.get(word) or marks.get(f"_{word}")

    return reads


def _amounts(values: list[Any]) -> Mark | None:
    """On where any of them is on, off where all of them are off."""
    marks = {amount(value) for value in values}
    if "on" in marks:
        return "on"
    if marks == {"off"}:
        return "off"
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(value.strip())
        if match:
            return float(match[1])
        return None
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of more than 300 digits
        if value > 0:
            return math.inf
        return -math.inf
