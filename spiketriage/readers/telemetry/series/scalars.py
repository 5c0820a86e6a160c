"""Numbers and steps as other people's JSON and text spell them, nonfinite ones included.

This module never guesses: what is neither a number nor a spelling of one is None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

NONFINITE = {
    "nan": math.nan,
    "+nan": math.nan,
    "-nan": -math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-infinity": -math.inf,
}
_MAX_STEP = 1 << 62  # one more still fits 64 bits
MAX_DIGITS = 64  # more are no measurement, and long ones are slow to parse


def number(value: object) -> float | None:
    """A JSON number, or a string that spells a nonfinite one (`"NaN"`, `"inf"`)."""
    if isinstance(value, float):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return _of_integer(value)
    if isinstance(value, str):
        return NONFINITE.get(value.strip().lower())
    return None


def _of_integer(value: int) -> float:
    try:
        return float(value)
    except OverflowError:  # as `1e999` is read, and as Arrow reads this one
        if value > 0:
            return math.inf
        return -math.inf


def number_in_text(text: str) -> float | None:
    """A number that a text file spells; an empty cell is None."""
    stripped = text.strip()
    if not stripped or len(stripped) > MAX_DIGITS or "_" in stripped:
        return None
    try:
        return float(stripped)
    except ValueError:
        return None


def step(value: object) -> int | None:
    """A step: an integer, or a float that is one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    if abs(value) < _MAX_STEP:
        return int(value)
    return None


def flat(record: Mapping[str, Any]) -> dict[str, object]:
    """The record with one level of nesting taken into the names, as in `train/loss`."""
    flattened: dict[str, object] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flattened.update({f"{key}/{inner}": item for inner, item in value.items()})
        else:
            flattened[key] = value
    return flattened


def json_or_none(text: str | bytes) -> object:
    """The JSON value in `text`.

    None where there is none, or where a word of it is no Unicode text (a byte that is no UTF-8,
    half of a surrogate pair): nothing could store or show it. `NaN` and `Infinity` are read as
    Python writes them.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode()
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value
