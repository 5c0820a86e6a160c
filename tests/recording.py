"""What tests of the recorder share; it never records anything by itself."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spiketriage.nouns.telemetry import Identity
from spiketriage.wire import ring as wire_ring

ROOT = Path(__file__).parents[1]
IDENTITY = Identity(
    world_size=2,
    host="node-0",
    device="cpu",
    num_threads=1,
    precision="bf16",
    kernel="fused",
    deterministic=True,
    code_path="code/r1",
    code_digest="0" * 32,
    config_digest="1" * 32,
    hparams={"clip": 1.0},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingBatch:
    """One batch as a slot of a recorder's ring holds it; `tokens` are the ids row by row."""

    sequence: int
    record: dict[str, Any]
    shape: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def step(self) -> int:
        step: int = self.record["step"]
        return step


def ring_batches(path: Path) -> tuple[list[RingBatch], int]:
    """The intact batches of a ring, oldest first, and how many slots are torn or missing.

    Raises:
        ValueError: the first page is no ring's.
    """
    content = path.read_bytes()
    num_slots, slot_bytes = wire_ring.decode_geometry(content[: wire_ring.PAGE_BYTES])
    batches, num_torn = [], 0
    for number in range(num_slots):
        start = wire_ring.PAGE_BYTES + number * slot_bytes
        try:
            decoded = wire_ring.decode_slot(content[start : start + slot_bytes])
        except (ValueError, KeyError, TypeError, struct.error):
            num_torn += 1
            continue
        if decoded is not None:
            sequence, record, tokens = decoded
            batches.append(
                RingBatch(
                    sequence=sequence,
                    record=record,
                    shape=tokens.shape,
                    tokens=tuple(tokens.reshape(-1).tolist()),
                )
            )
    return sorted(batches, key=lambda batch: batch.sequence), num_torn
