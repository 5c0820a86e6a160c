"""The ring of recent batches: fixed slots beside a segment, which keep the tokens of a crash.

Layout: a page with the magic and the geometry, then slots of equal size, each `u32 length | u64
sequence | payload | u64 XXH3 of sequence and payload`. This module never imports torch and never
trusts a length that it has not checked.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash

from spiketriage.wire.telemetry import encode_json

MAGIC = b"STRNG001"
SUFFIX = ".ring"
PAGE_BYTES = 4096
MAX_SLOT_BYTES = 1 << 28  # a geometry that claims more is damage
MAX_SLOTS = 1 << 16
_GEOMETRY = struct.Struct("<II")
_SLOT = struct.Struct("<IQ")
_CHECK = struct.Struct("<Q")
OVERHEAD_BYTES = _SLOT.size + _CHECK.size


def ring_name(rank: int, attempt: int) -> str:
    """File name of the ring beside the segment of `rank` in its `attempt`-th start."""
    return f"rank-{rank:05d}.attempt-{attempt:03d}{SUFFIX}"


def encode_geometry(num_slots: int, slot_bytes: int) -> bytes:
    """The file's first page."""
    body = MAGIC + _GEOMETRY.pack(num_slots, slot_bytes)
    return (body + _CHECK.pack(xxhash.xxh3_64_intdigest(body))).ljust(PAGE_BYTES, b"\0")


def decode_geometry(page: bytes) -> tuple[int, int]:
    """Number of slots and bytes of each.

    Raises:
        ValueError: the page is not the first one of a ring.
    """
    end = len(MAGIC) + _GEOMETRY.size
    body = page[:end]
    if len(page) < end + _CHECK.size or not body.startswith(MAGIC):
        raise ValueError("not a ring of batches")
    if _CHECK.unpack_from(page, end)[0] != xxhash.xxh3_64_intdigest(body):
        raise ValueError("the first page is damaged")
    num_slots, slot_bytes = _GEOMETRY.unpack_from(body, len(MAGIC))
    if not 0 < num_slots <= MAX_SLOTS or not OVERHEAD_BYTES < slot_bytes <= MAX_SLOT_BYTES:
        raise ValueError(f"{num_slots} slots of {slot_bytes} bytes")
    return num_slots, slot_bytes


def encode_slot(sequence: int, record: Mapping[str, Any], tokens: np.ndarray[Any, Any]) -> bytes:
    """One slot's bytes, without padding; `record` gets the dtype and shape of `tokens`."""
    text = encode_json({**record, "dtype": tokens.dtype.str, "shape": list(tokens.shape)})
    payload = struct.pack("<I", len(text)) + text + tokens.tobytes()
    check = xxhash.xxh3_64_intdigest(struct.pack("<Q", sequence) + payload)
    return _SLOT.pack(len(payload), sequence) + payload + _CHECK.pack(check)


def decode_slot(slot: bytes) -> tuple[int, dict[str, Any], np.ndarray[Any, Any]] | None:
    """Sequence number, record and token ids of a slot; None for one that was never filled.

    Raises:
        ValueError, KeyError, TypeError, struct.error: the slot was torn or damaged.
    """
    length, sequence = _SLOT.unpack_from(slot)
    if not length and not sequence:
        return None
    if length + OVERHEAD_BYTES > len(slot):
        raise ValueError(f"a slot of {len(slot)} bytes claims {length}")
    payload = slot[_SLOT.size : _SLOT.size + length]
    expected = _CHECK.unpack_from(slot, _SLOT.size + length)[0]
    if expected != xxhash.xxh3_64_intdigest(struct.pack("<Q", sequence) + payload):
        raise ValueError("checksum")
    (size,) = struct.unpack_from("<I", payload)
    record = json.loads(payload[4 : 4 + size])
    dtype = np.dtype(str(record.pop("dtype")))
    if dtype.kind not in "iu":
        raise ValueError(f"token ids of dtype {dtype}")
    tokens = np.frombuffer(payload[4 + size :], dtype=dtype).reshape(record.pop("shape"))
    return sequence, record, tokens
