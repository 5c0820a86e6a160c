"""The float formats as bit patterns, so that numpy integers can scan them without a framework.

This module knows patterns only; it reads nothing and computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatBits:
    """Bit patterns of a float: an element is nonfinite when its magnitude bits reach `infinity`.

    `has_infinity` is False where the format has NaN only (OCP E4M3). `largest` is the largest
    finite magnitude, `smallest_normal` the smallest normal one. `parts` is 2 for a complex number.
    """

    unsigned: str
    signed: str
    magnitude: int
    infinity: int
    has_infinity: bool
    smallest_normal: int
    parts: int = 1

    @property
    def sign(self) -> int:
        """The sign bit, which alone is -0.0."""
        return self.magnitude + 1

    @property
    def largest(self) -> int:
        """The largest finite magnitude."""
        return self.infinity - 1


def _bits(num_bytes: int, exponent_bits: int, *, parts: int = 1) -> FloatBits:
    mantissa_bits = 8 * num_bytes - 1 - exponent_bits
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    word = "u1" if num_bytes == 1 else f"<u{num_bytes}"
    return FloatBits(
        unsigned=word,
        signed=word.replace("u", "i"),
        magnitude=(1 << (8 * num_bytes - 1)) - 1,
        infinity=infinity,
        has_infinity=True,
        smallest_normal=1 << mantissa_bits,
        parts=parts,
    )


FLOATS: Mapping[str, FloatBits] = {
    "F64": _bits(8, 11),
    "F32": _bits(4, 8),
    "C64": _bits(4, 8, parts=2),
    "C128": _bits(8, 11, parts=2),
    "F16": _bits(2, 5),
    "BF16": _bits(2, 8),
    "F8_E5M2": _bits(1, 5),
    # OCP 8-bit floating point specification 1.0: E4M3 has no infinity, and one NaN pattern a sign.
    "F8_E4M3": FloatBits(
        unsigned="u1",
        signed="i1",
        magnitude=0x7F,
        infinity=0x7F,
        has_infinity=False,
        smallest_normal=0x08,
    ),
}
EXPONENT_NAN = 0xFF  # the only nonfinite value of F8_E8M0, which has neither sign nor mantissa
