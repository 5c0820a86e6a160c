"""Looks into JSON and pickles whose shape nobody promised.

What has the wrong type is empty or None.

This module never raises and never converts: a text that spells a number stays a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_COUNT = 1 << 62
_NOTHING: Mapping[Any, Any] = {}


def mapping(value: object) -> Mapping[Any, Any]:
    """`value` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else _NOTHING


def sequence(value: object) -> Sequence[Any]:
    """`value` if it is a list or a tuple, else an empty one."""
    return value if isinstance(value, (list, tuple)) else ()


def whole(value: object) -> int | None:
    """`value` if it is an integer that could count or index something."""
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_COUNT
        else None
    )
