"""One TensorBoard event as protobuf: step, time, scalars, and where in the bytes each number lies.

This module never needs TensorFlow's schema files and never returns a tensor of more than one
element.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from spiketriage.readers.telemetry.stores.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    Field,
    MalformedError,
    double,
    fields,
    float32,
    signed,
    text,
)

_WALL_TIME, _STEP, _VERSION, _SUMMARY = 1, 2, 3, 5
_TAG, _SIMPLE_VALUE, _TENSOR, _METADATA = 1, 2, 8, 9
_CONTENT = {1: "<f", 2: "<d", 3: "<i", 4: "<B", 6: "<b", 9: "<q", 19: "<e", 10: "<?"}
_BFLOAT16, _HALF = 14, 19
_FLOATS, _DOUBLES, _INTS, _INT64S, _HALVES = 5, 6, 7, 10, 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """One value.

    `place` is where its four bytes lie, None where it was not stored as a 32-bit float.
    """

    tag: str
    value: float
    place: int | None


@dataclass(slots=True)
class Event:
    """One event. `is_common` is True for exactly a time, a step and one summary, in that order."""

    wall_time_s: float = 0.0  # proto3 leaves zeros out
    step: int = 0
    version: str = ""
    scalars: list[Scalar] = field(default_factory=list)
    num_others: int = 0
    shape: list[int] = field(default_factory=list)


def parse(data: bytes, start: int, end: int) -> Event:
    """The event in `data[start:end]`.

    Raises:
        MalformedError: the bytes are no event.
    """
    event = Event()
    for part in fields(data, start, end):
        event.shape.append(part.id)
        if part.id == _WALL_TIME and part.wire == FIXED64:
            event.wall_time_s = double(data, part)
        elif part.id == _STEP and part.wire == VARINT:
            event.step = signed(part.number)
        elif part.id == _SUMMARY and part.wire == BYTES:
            for value in fields(data, part.start, part.end):
                if value.id == 1 and value.wire == BYTES:
                    _take_value(event, data, value)
        elif part.id == _VERSION and part.wire == BYTES:
            event.version = text(data, part)
    return event


def is_common(event: Event) -> bool:
    """Whether the event holds exactly a time, a step and one 32-bit scalar, in that order."""
    return (
        event.shape == [_WALL_TIME, _STEP, _SUMMARY]
        and len(event.scalars) == 1
        and not event.num_others
        and event.scalars[0].place is not None
    )


def _take_value(event: Event, data: bytes, value: Field) -> None:
    tag, plugin = "", ""
    scalar: Scalar | None = None
    for part in fields(data, value.start, value.end):
        if part.id == _TAG and part.wire == BYTES:
            tag = text(data, part)
        elif part.id == _SIMPLE_VALUE and part.wire == FIXED32:
            scalar = Scalar(tag="", value=float32(data, part), place=part.start)
        elif part.id == _TENSOR and part.wire == BYTES:
            scalar = _of_tensor(data, part)
        elif part.id == _METADATA and part.wire == BYTES:
            plugin = _plugin(data, part)
    if scalar is None or plugin not in ("", "scalars"):
        event.num_others += 1
        return
    event.scalars.append(Scalar(tag=tag, value=scalar.value, place=scalar.place))


def _plugin(data: bytes, metadata: Field) -> str:
    for part in fields(data, metadata.start, metadata.end):
        if part.id == 1 and part.wire == BYTES:
            for inner in fields(data, part.start, part.end):
                if inner.id == 1 and inner.wire == BYTES:
                    return text(data, inner)
    return ""


def _of_tensor(data: bytes, tensor: Field) -> Scalar | None:
    """The element of a tensor that has one, whichever of protobuf's fields holds it."""
    dtype = 0
    scalar: Scalar | None = None
    for part in fields(data, tensor.start, tensor.end):
        if part.id == 1 and part.wire == VARINT:
            dtype = part.number
        elif part.id == 2 and part.wire == BYTES:
            if not _is_scalar_shape(data, part):
                return None
        elif part.id == 4 and part.wire == BYTES:
            scalar = _of_content(data, part, dtype)
        elif part.id in (_FLOATS, _DOUBLES, _INTS, _INT64S, _HALVES):
            scalar = _of_list(data, part, dtype)
    return scalar


def _is_scalar_shape(data: bytes, shape: Field) -> bool:
    for dim in fields(data, shape.start, shape.end):
        if dim.id == 2 and dim.wire == BYTES:
            sizes = []
            for size in fields(data, dim.start, dim.end):
                if size.id == 1:
                    sizes.append(signed(size.number))
            if sizes != [1]:
                return False
    return True


def _of_content(data: bytes, part: Field, dtype: int) -> Scalar | None:
    if dtype == _BFLOAT16 and part.end - part.start == 2:
        value = struct.unpack("<f", b"\0\0" + data[part.start : part.end])[0]
        return Scalar(tag="", value=value, place=None)
    code = _CONTENT.get(dtype)
    if code is None or struct.calcsize(code) != part.end - part.start:
        return None
    value = float(struct.unpack_from(code, data, part.start)[0])
    return Scalar(tag="", value=value, place=part.start if code == "<f" else None)


def _of_list(data: bytes, part: Field, dtype: int) -> Scalar | None:
    size_bytes = part.end - part.start
    if part.id == _FLOATS and size_bytes == 4:
        return Scalar(tag="", value=float32(data, part), place=part.start)
    if part.id == _DOUBLES and size_bytes == 8:
        return Scalar(tag="", value=double(data, part), place=None)
    if part.id in (_INTS, _INT64S, _HALVES):
        value = _one_varint(data, part)
        if value is not None and part.id != _HALVES:
            return Scalar(tag="", value=float(signed(value)), place=None)
        if value is not None and dtype == _HALF and value < 1 << 16:
            return Scalar(
                tag="", value=struct.unpack("<e", value.to_bytes(2, "little"))[0], place=None
            )
    return None


def _one_varint(data: bytes, part: Field) -> int | None:
    """The only number of a list of numbers, packed or not."""
    if part.wire == VARINT:
        return part.number
    content = data[part.start : part.end]
    if (
        part.wire != BYTES
        or not 0 < len(content) <= 10
        or any(byte < 0x80 for byte in content[:-1])
    ):
        return None
    return next(fields(b"\x08" + content, 0, len(content) + 1)).number


__all__ = ["Event", "MalformedError", "Scalar", "is_common", "parse"]
