"""The numbers of text logs: nonfinite spellings, suffixes, commas.

This module never raises and never makes a zero of what is no number.
"""

from __future__ import annotations

from collections.abc import Mapping

_EXPONENTS = {"K": "e3", "M": "e6", "B": "e9", "T": "e12", "P": "e15", "E": "e18"}


def number(text: str) -> float | None:
    """The number that `text` spells, nonfinite ones included; None if it spells none (`N/A`)."""
    try:
        return float(text)
    except ValueError:
        return None


def short_number(text: str) -> float | None:
    """A number that may have a suffix K, M, B, T, P or E (`4.19B`, `infE`), or commas (`7,012`)."""
    plain = text.strip().replace(",", "")
    value = number(plain)
    if value is None and plain[-1:] in _EXPONENTS:
        digits = plain[:-1]
        if digits.strip("+-").isalpha():  # infE
            return number(digits)
        return number(digits + _EXPONENTS[plain[-1]])
    return value


def numbers(texts: Mapping[str, str | None]) -> dict[str, float]:
    """The entries that are numbers; the others are left out."""
    values: dict[str, float] = {}
    for key, text in texts.items():
        value = number(text or "")
        if value is not None:
            values[key] = value
    return values
