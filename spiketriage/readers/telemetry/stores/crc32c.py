"""CRC-32C (Castagnoli) over many short records at once, and the masked form of TensorBoard.

This module never reads a file: it takes bytes and arrays of bytes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_BLOCK = 256


@lru_cache(maxsize=1)
def _byte_table() -> Words:
    table: Words = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = ((table >> 1) ^ ((table & 1) * np.uint32(_POLYNOMIAL))).astype(np.uint32)
    return table


@lru_cache(maxsize=8)
def tables(num_bytes: int) -> Words:
    """Row `d` holds what each byte value adds to the register when `d` more bytes follow it."""
    first = _byte_table()
    rows = np.empty((num_bytes, 256), dtype=np.uint32)
    rows[0] = first
    for distance in range(1, num_bytes):
        rows[distance] = (rows[distance - 1] >> 8) ^ first[rows[distance - 1] & 0xFF]
    return rows


def of_rows(rows: Bytes) -> Words:
    """The CRC-32C of each row of a matrix of bytes; a row has 4 to 256 of them."""
    num_bytes = rows.shape[1]
    started = rows.copy()
    started[:, :4] ^= 0xFF
    if num_bytes:
        return _register(started) ^ np.uint32(_ONES)
    return np.zeros(len(rows), dtype=np.uint32)


def _register(rows: Bytes) -> Words:
    num_bytes = rows.shape[1]
    if num_bytes:
        reversed_tables = tables(_BLOCK)[num_bytes - 1 :: -1]
    else:
        reversed_tables = tables(_BLOCK)[:0]
    taken = reversed_tables[np.arange(num_bytes), rows]
    return np.bitwise_xor.reduce(taken, axis=1)  # type: ignore[no-any-return]


def of_bytes(data: bytes | memoryview) -> int:
    """The CRC-32C of `data`."""
    register = _ONES
    whole = len(data) // _BLOCK
    if whole:
        far = [row.tolist() for row in tables(_BLOCK)[_BLOCK - 4 :]][::-1]
        first, second, third, fourth = far
        for added in _whole_blocks(data, whole):
            register = (
                added
                ^ first[register & 0xFF]
                ^ second[register >> 8 & 0xFF]
                ^ third[register >> 16 & 0xFF]
                ^ fourth[register >> 24]
            )
    table = _byte_list()
    for byte in bytes(data[whole * _BLOCK :]):
        register = table[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register ^ _ONES


def _whole_blocks(data: bytes | memoryview, whole: int) -> list[int]:
    rows = np.frombuffer(data, dtype=np.uint8, count=whole * _BLOCK).reshape(whole, _BLOCK)
    added: list[int] = []
    for start in range(
        0, whole, 4096
    ):  # a mebibyte at a time: the tables' answers take four bytes a byte
        added += _register(rows[start : start + 4096]).tolist()
    return added


@lru_cache(maxsize=1)
def _byte_list() -> list[int]:
    values: list[int] = _byte_table().tolist()
    return values


def mask(crc: Words) -> Words:
    """CRCs as TensorBoard stores them."""
    rotated = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    return rotated + np.uint32(0xA282EAD8)


def masked_of_bytes(data: bytes | memoryview) -> int:
    """The masked CRC-32C of `data`."""
    crc = of_bytes(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _ONES
