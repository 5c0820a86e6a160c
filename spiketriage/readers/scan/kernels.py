"""Counts over float elements given as integer words: nonfinite, largest, norm, zeros, saturated.

This module never converts what it can compare as an integer, and never keeps the words it is given.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spiketriage.readers.scan.floats import EXPONENT_NAN, FLOATS, FloatBits

Words = NDArray[Any]

# A float32 dot product squares: above this its sum may overflow, below it its squares may vanish.
_SAFE_LARGEST, _SAFE_SMALLEST = 1e15, 1e-15
_UPPER = np.uint32(0xFFFF0000)
_LOCAL = threading.local()
_SCRATCH_WORDS = 1 << 16  # 256 KiB of float32 stay in the second-level cache


@dataclass(slots=True, kw_only=True)
class Tally:
    """Running counts of one tensor, which add up in any order; `first` is an element's number."""

    num_elements: int = 0
    num_nan: int = 0
    num_positive_inf: int = 0
    num_negative_inf: int = 0
    first: int | None = None
    largest_bits: int = 0
    squares: float = 0.0
    num_zeros: int = 0
    num_negative: int = 0
    num_saturated: int = 0

    def add(self, other: Tally) -> None:
        """Take over the counts of elements that lie elsewhere in the same tensor."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.largest_bits = max(self.largest_bits, other.largest_bits)
        firsts = [first for first in (self.first, other.first) if first is not None]
        self.first = min(firsts, default=None)


_SUMS = (
    "num_elements",
    "num_nan",
    "num_positive_inf",
    "num_negative_inf",
    "squares",
    "num_zeros",
    "num_negative",
    "num_saturated",
)


def is_scannable(dtype: str) -> bool:
    """Whether elements of this dtype can be other than finite."""
    return dtype in FLOATS or dtype == "F8_E8M0"


def item_bytes(dtype: str) -> int:
    """Bytes of one word of this dtype; a complex number is two."""
    if dtype in FLOATS:
        return np.dtype(FLOATS[dtype].unsigned).itemsize
    return 1


def tally(
    data: memoryview,
    dtype: str,
    *,
    first_element: int,
    is_full: bool,
    counts_negatives: bool = True,
) -> Tally:
    """Counts over whole words of `dtype` in `data`, the first of which is word `first_element`.

    Negatives are half of any weights, so counting them costs a pass that only sums of squares are
    worth.
    """
    if dtype == "F8_E8M0":
        return _exponents(np.frombuffer(data, dtype="u1"), first_element)
    bits = FLOATS[dtype]
    words = np.frombuffer(data, dtype=bits.unsigned)
    if not words.flags.aligned:
        words = words.copy()  # cheaper than what numpy does to look at unaligned words
    counts = Tally(num_elements=words.size)
    # Two integer maxima instead of isfinite(): no temporary array, and exact. Read as unsigned, the
    # largest word is the negative number of largest magnitude, if there is one; read as signed, it
    # is the largest positive number.
    signed = words.view(bits.signed)
    top, positive = int(words.max()), int(signed.max())
    has_negative = top > bits.magnitude
    counts.largest_bits = max(0, positive)
    if has_negative:
        counts.largest_bits = max(counts.largest_bits, top & bits.magnitude)
    if counts.largest_bits >= bits.infinity:
        _count_nonfinite(counts, words, bits, first_element)
    if not is_full:
        return counts
    num_negative_zeros = 0
    if has_negative:
        num_negative_zeros = _negative_zeros(words, signed, bits)
    if has_negative and counts_negatives:
        num_signed = _negatives(words, signed, bits, has_nan=counts.num_nan > 0)
        counts.num_negative = num_signed - num_negative_zeros
    _count_rest(counts, words, bits, dtype, num_negative_zeros=num_negative_zeros)
    return counts


def value_of(dtype: str, magnitude_bits: int) -> float:
    """The number that these magnitude bits stand for in `dtype`."""
    if dtype == "F8_E8M0":
        return math.ldexp(1.0, magnitude_bits - 127)
    bits = FLOATS[dtype]
    mantissa_bits = bits.smallest_normal.bit_length() - 1
    exponent_bits = (bits.magnitude + 1).bit_length() - 1 - mantissa_bits
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = magnitude_bits >> mantissa_bits
    mantissa = magnitude_bits & (bits.smallest_normal - 1)
    if exponent == 0:
        return math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return math.ldexp(mantissa | bits.smallest_normal, exponent - bias - mantissa_bits)


def _exponents(words: Words, first_element: int) -> Tally:
    """Counts over F8_E8M0, which are exponents alone: nothing is negative, infinite or zero."""
    counts = Tally(num_elements=words.size)
    is_nan = words == EXPONENT_NAN
    counts.num_nan = int(np.count_nonzero(is_nan))
    if counts.num_nan:
        counts.first = first_element + int(is_nan.argmax())
        words = words[~is_nan]
    if words.size:
        counts.largest_bits = int(words.max())
    return counts


def _count_nonfinite(counts: Tally, words: Words, bits: FloatBits, first_element: int) -> None:
    magnitudes = words & words.dtype.type(bits.magnitude)
    is_nonfinite = magnitudes >= bits.infinity
    num_nonfinite = int(np.count_nonzero(is_nonfinite))
    if bits.has_infinity:
        counts.num_positive_inf = int(np.count_nonzero(words == bits.infinity))
        counts.num_negative_inf = int(np.count_nonzero(words == (bits.infinity | bits.sign)))
    counts.num_nan = num_nonfinite - counts.num_positive_inf - counts.num_negative_inf
    counts.first = first_element + int(is_nonfinite.argmax())
    finite = magnitudes[~is_nonfinite]
    counts.largest_bits = int(finite.max()) if finite.size else 0


def _negative_zeros(words: Words, signed: Words, bits: FloatBits) -> int:
    # Read as signed, -0.0 is the smallest of all words: one look tells whether there is any.
    if int(signed.min()) == -bits.sign:
        return int(np.count_nonzero(words == bits.sign))
    return 0


def _negatives(words: Words, signed: Words, bits: FloatBits, *, has_nan: bool) -> int:
    """Words with a sign, -0.0 among them, but no NaN: that of 0 * inf has its sign bit set."""
    num_signed = int(np.count_nonzero(signed < 0))
    if has_nan:
        largest = (bits.infinity | bits.sign) - (not bits.has_infinity)
        num_signed -= int(np.count_nonzero(words > largest))
    return num_signed


def _count_rest(
    counts: Tally, words: Words, bits: FloatBits, dtype: str, *, num_negative_zeros: int
) -> None:
    counts.num_zeros = words.size - int(np.count_nonzero(words)) + num_negative_zeros
    if words.itemsize == 1 and counts.largest_bits == bits.largest:
        counts.num_saturated = int(np.count_nonzero((words & bits.magnitude) == bits.largest))
    counts.squares = _squares(words, dtype, value_of(dtype, counts.largest_bits))


def _squares(words: Words, dtype: str, absmax: float) -> float:
    """Sum of squares; NaN or infinite if an element is."""
    with np.errstate(all="ignore"):  # a signalling NaN is a NaN like any other
        is_safe = absmax == 0 or _SAFE_SMALLEST < absmax < _SAFE_LARGEST
        if is_safe and dtype == "BF16":
            return _squares_of_pairs(words)
        width = np.float32 if is_safe else np.float64
        return sum(float(np.dot(part, part)) for part in _as(words, dtype, width))


def _squares_of_pairs(words: Words) -> float:
    """Sum of squares of bf16: two lie in a 32-bit word, each the upper half of a float32."""
    pairs = words[: words.size & ~1].view(np.uint32)
    scratch = _scratch()
    total = 0.0
    for start in range(0, pairs.size, scratch.size):
        part = pairs[start : start + scratch.size]
        upper = np.bitwise_and(part, _UPPER, out=scratch[: part.size]).view(np.float32)
        total += float(np.dot(upper, upper))
        lower = np.left_shift(part, 16, out=scratch[: part.size]).view(np.float32)
        total += float(np.dot(lower, lower))
    if words.size & 1:
        total += float((words[-1:].astype(np.uint32) << 16).view(np.float32)[0]) ** 2
    return total


def _scratch() -> Words:
    if not hasattr(_LOCAL, "scratch"):
        _LOCAL.scratch = np.empty(_SCRATCH_WORDS, dtype=np.uint32)
    scratch: Words = _LOCAL.scratch
    return scratch


def _as(words: Words, dtype: str, width: type[np.floating[Any]]) -> Iterator[Words]:
    """The elements as floats of that width or more, in parts that fit the cache."""
    for start in range(0, words.size, _SCRATCH_WORDS):
        part = words[start : start + _SCRATCH_WORDS]
        if dtype in ("F64", "C128"):
            yield part.view("<f8")
        else:
            yield _floats(part, dtype).astype(width, copy=False)


def _floats(words: Words, dtype: str) -> Words:
    if dtype in ("F32", "C64"):
        return words.view("<f4")
    if dtype == "F16":
        return words.view("<f2").astype(np.float32)
    if dtype == "BF16":
        return (words.astype(np.uint32) << 16).view(np.float32)
    return _FP8[dtype][words]


def _table(dtype: str) -> Words:
    """The value of each of the 256 words of an FP8 format."""
    bits = FLOATS[dtype]
    values = []
    for word in range(256):
        magnitude = word & bits.magnitude
        values.append(value_of(dtype, magnitude) if magnitude < bits.infinity else math.nan)
    if bits.has_infinity:
        values[bits.infinity] = values[bits.infinity | bits.sign] = math.inf
    return np.array(values, dtype=np.float32)


_FP8 = {dtype: _table(dtype) for dtype in ("F8_E4M3", "F8_E5M2")}
