"""How many there are, in words: `3 steps`, `a, b and 4 more`; and sentences that can be read.

This module never decides what is listed, nor in which order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from spiketriage.foreign_text import printable

MAX_SENTENCE_CHARS = 1000  # a longer one quotes what nobody reads to its end
MAX_NAMED = 3  # more names than that are not read, and push the point of a sentence off the screen


def counted(number: int, noun: str) -> str:
    """`1 step`, `3 steps`."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"


def listed(names: Collection[str], unit: str = "", *, most: int = MAX_NAMED) -> str:
    """The first few of `names`, and how many more there are: `a, b, c and 2 more`."""
    shown = ", ".join(list(names)[:most])
    num_more = len(names) - most
    if num_more <= 0:
        return shown
    return f"{shown} and {num_more} more{_of(unit)}"


def joined(sentences: Sequence[str], *, most: int = MAX_NAMED) -> str:
    """The first few of `sentences`, and how many more there are: `x; y (and 4 more)`."""
    shown = "; ".join(sentences[:most])
    num_more = len(sentences) - most
    if num_more <= 0:
        return shown
    return f"{shown} (and {num_more} more)"


def readable(sentences: Iterable[str]) -> tuple[str, ...]:
    """Sentences about foreign things: each bounded, on one line, with nothing in it that acts."""
    return tuple(map(_readable, sentences))


def _readable(sentence: str) -> str:
    shown = printable(sentence)
    if len(shown) <= MAX_SENTENCE_CHARS:
        return shown
    return f"{shown[:MAX_SENTENCE_CHARS]}…"


def shortened(lines: Sequence[str], most: int, unit: str = "") -> list[str]:
    """The first `most` of `lines`, then a line that says how many more there are."""
    num_more = len(lines) - most
    if num_more <= 0:
        return list(lines)
    return [*lines[:most], f"… and {num_more} more{_of(unit)}"]


def _of(unit: str) -> str:
    if unit:
        return f" {unit}"
    return ""
