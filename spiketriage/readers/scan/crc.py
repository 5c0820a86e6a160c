"""CRC-32 of two neighbouring ranges from that of each, so that pieces can be read at once.

This module never reads a byte: it multiplies polynomials modulo the CRC's own.
"""

from __future__ import annotations

from functools import cache

_POLYNOMIAL = 0xEDB88320  # reflected, as zlib and zip use it (RFC 1952, section 8)


def combine(first: int, second: int, second_bytes: int) -> int:
    """CRC-32 of the bytes behind `first`, followed by the `second_bytes` ones behind `second`."""
    return _multiply(_shift(second_bytes), first) ^ second


def _multiply(a: int, b: int) -> int:
    """Product of two polynomials over GF(2), highest power in the lowest bit."""
    product, power = 0, 1 << 31
    while power:
        if a & power:
            product ^= b
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
        power >>= 1
    return product


@cache
def _shift(num_bytes: int) -> int:
    """The polynomial that appends `num_bytes` zero bytes: x to the power of eight times that."""
    power, square = 1 << 31, 1 << 23  # x^0 and x^8
    while num_bytes:
        if num_bytes & 1:
            power = _multiply(square, power)
        square = _multiply(square, square)
        num_bytes >>= 1
    return power
