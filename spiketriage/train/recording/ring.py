"""Writes the ring of recent batches, a slot at a time: a crash costs at most the oldest batch.

It runs in the recorder's writing thread and never grows its file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spiketriage.wire import ring as wire

ROOM = 2  # slots are sized by the first batch, times this


class Ring:
    """The file of the last `num_slots` batches; the size of the first fixes that of the slots."""

    def __init__(self, path: Path, num_slots: int) -> None:
        self.path, self.num_slots = path, num_slots
        self._descriptor = -1
        self._slot_bytes = 0
        self._sequence = 0

    def write(self, record: Mapping[str, Any], tokens: np.ndarray[Any, Any]) -> bool:
        """Put one batch into the next slot; False when it was lost or is too large for a slot."""
        slot = wire.encode_slot(self._sequence + 1, record, tokens)
        try:
            if self._descriptor < 0:
                self._create(len(slot))
            if len(slot) > self._slot_bytes:
                return False
            at = wire.PAGE_BYTES + self._sequence % self.num_slots * self._slot_bytes
            if os.pwrite(self._descriptor, slot, at) != len(slot):
                return False
        except OSError:
            return False
        self._sequence += 1
        return True

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _create(self, num_bytes: int) -> None:
        pages = -(-ROOM * num_bytes // wire.PAGE_BYTES)
        slot_bytes = min(pages * wire.PAGE_BYTES, wire.MAX_SLOT_BYTES)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.ftruncate(descriptor, wire.PAGE_BYTES + self.num_slots * slot_bytes)
        os.pwrite(descriptor, wire.encode_geometry(self.num_slots, slot_bytes), 0)
        self._descriptor, self._slot_bytes = descriptor, slot_bytes
