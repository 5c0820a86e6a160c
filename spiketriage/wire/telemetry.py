"""The telemetry segment: a file per rank and attempt, readable after a crash at any byte.

Layout: 8 magic bytes, then frames `u32 length | u8 kind | payload | u64 XXH3 of kind and payload`,
little-endian. This module never imports torch and never trusts a length that it has not checked.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from spiketriage.nouns.telemetry import Link

MAGIC = b"STSEG001"
SCHEMA = "spiketriage.telemetry/1"
HEADER, LAYOUT, STEP, LOAD, NOTICE = 0, 1, 2, 3, 4
MAX_FRAME_BYTES = 1 << 28  # a length above this is damage, not data
DIGEST_BYTES = 16
_PREFIX = struct.Struct("<IB")
_TRAILER = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One intact frame and the file offset just behind it."""

    kind: int
    payload: bytes
    end: int


def segment_name(rank: int, attempt: int) -> str:
    """File name of the segment of `rank` in its `attempt`-th start."""
    return f"rank-{rank:05d}.attempt-{attempt:03d}.seg"


def encode_frame(kind: int, payload: bytes) -> bytes:
    """The bytes of one frame."""
    body = bytes([kind]) + payload
    return (
        _PREFIX.pack(len(payload), kind) + payload + _TRAILER.pack(xxhash.xxh3_64_intdigest(body))
    )


def encode_json(value: Mapping[str, Any]) -> bytes:
    """Compact JSON in which nonfinite numbers are the strings `NaN`, `Infinity`, `-Infinity`."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, TypeError):
        # A nonfinite number, or a mapping that is no dict: spelled out, which is slower.
        return json.dumps(_spell(value), separators=(",", ":"), allow_nan=False).encode()


def encode_step(record: Mapping[str, Any], layout: int, digests: bytes) -> bytes:
    """Payload of a step frame: JSON, then the digests in the order of layout number `layout`."""
    text = encode_json(record)
    return struct.pack("<II", len(text), layout) + text + digests


def decode_step(
    payload: bytes, layouts: Mapping[int, tuple[Link, ...]]
) -> tuple[dict[str, Any], dict[Link, bytes]]:
    """The JSON record and the digests of a step frame.

    Raises:
        ValueError: the payload contradicts its own lengths or names an unknown layout.
    """
    length, layout = struct.unpack_from("<II", payload)
    if 8 + length > len(payload) or layout not in layouts:
        raise ValueError(
            f"step frame of {len(payload)} bytes with a record of {length} and layout {layout}"
        )
    links = layouts[layout]
    raw = payload[8 + length :]
    if len(raw) != DIGEST_BYTES * len(links):
        raise ValueError(f"{len(raw)} bytes of digests for {len(links)} links")
    cut = [raw[i : i + DIGEST_BYTES] for i in range(0, len(raw), DIGEST_BYTES)]
    return json.loads(payload[8 : 8 + length]), dict(zip(links, cut, strict=True))


def iter_frames(data: bytes) -> Iterator[Frame]:
    """Every intact frame of a segment from its start; stops at the first byte that is not one."""
    at = len(MAGIC)
    while at + _PREFIX.size <= len(data):
        length, kind = _PREFIX.unpack_from(data, at)
        end = at + _PREFIX.size + length + _TRAILER.size
        if length > MAX_FRAME_BYTES or end > len(data):
            return
        payload = data[at + _PREFIX.size : end - _TRAILER.size]
        if _TRAILER.unpack_from(data, end - _TRAILER.size)[0] != xxhash.xxh3_64_intdigest(
            bytes([kind]) + payload
        ):
            return
        yield Frame(kind=kind, payload=payload, end=end)
        at = end


def number(value: object) -> float:
    """A number as this contract writes it; the strings of nonfinite values are understood.

    Raises:
        ValueError: `value` is neither.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"not a number: {value!r}")
    return float(value)


def _spell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        if value > 0:
            return "Infinity"
        return "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _spell(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spell(item) for item in value]
    return value
