"""A walk over the fields of a protobuf message, without a schema and without the protobuf library.

This module never allocates by a length that a message claims: a length past its end is malformed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")


class MalformedError(ValueError):
    """Bytes that are no protobuf message."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its content lies from `start` to `end`; `number` is the value of a varint."""

    id: int
    wire: int
    start: int
    end: int
    number: int = 0


def fields(data: bytes, start: int, end: int) -> Iterator[Field]:
    """The fields of the message that lies in `data[start:end]`.

    Raises:
        MalformedError: the bytes are no message.
    """
    position = start
    while position < end:
        key, position = _varint(data, position, end)
        wire = key & 7
        if wire == VARINT:
            value, after = _varint(data, position, end)
            yield Field(key >> 3, wire, position, after, value)
            position = after
            continue
        if wire == BYTES:
            length, position = _varint(data, position, end)
        elif wire == FIXED64:
            length = 8
        elif wire == FIXED32:
            length = 4
        else:
            raise MalformedError(f"wire type {wire} at byte {position}")
        if length > end - position:
            raise MalformedError(
                f"a field of {length} bytes at byte {position}, where {end - position} are left"
            )
        yield Field(key >> 3, wire, position, position + length)
        position += length


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
    raise MalformedError(f"a varint that does not end before byte {position}")


def signed(number: int) -> int:
    """A varint as the 64-bit signed integer it encodes."""
    if number >> 63:
        return number - (1 << 64)
    return number


def double(data: bytes, field: Field) -> float:
    """The value of a fixed64 field that is a double."""
    value: float = _DOUBLE.unpack_from(data, field.start)[0]
    return value


def float32(data: bytes, field: Field) -> float:
    """The value of a fixed32 field that is a float."""
    value: float = _FLOAT.unpack_from(data, field.start)[0]
    return value


def text(data: bytes, field: Field) -> str:
    """The content of a bytes field as text; bytes that are not UTF-8 are replaced."""
    return data[field.start : field.end].decode("utf-8", "replace")
