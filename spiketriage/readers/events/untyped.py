"""Looks into JSON and pickles whose shape nobody promised: the wrong type is empty or None.

This module never raises and never converts: a text that spells a number stays a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_COUNT = 1 << 62
_NOTHING: Mapping[Any, Any] = {}


def mapping(value: object) -> Mapping[Any, Any]:
    """`value` if it is a mapping, else an empty one."""
    if isinstance(value, Mapping):
        return value
    return _NOTHING


def sequence(value: object) -> Sequence[Any]:
    """`value` if it is a list or a tuple, else an empty one."""
    if isinstance(value, (list, tuple)):
        return value
    return ()


def whole(value: object) -> int | None:
    """`value` if it is an integer that could count or index something."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_COUNT:
        return value
    return None
