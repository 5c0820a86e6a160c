"""The data loader got other bytes than the disk holds, once.

This file is data; it never reads a shard.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, ONCE, Cause

CAUSE = Cause(
    name="wrong-read",
    cause_class="systems",
    summary="a read returned bytes that neither the disk nor the index holds; replays read the "
    "right ones",
    predicts={
        **BATCH_CELLS_OPEN,
        **ONCE,
        "consumed-content": ("differs",),
        "consumed-at-spike": ANY,
        "replay": ("differs@content",),
        "composition": ANY,
    },
    decides=("consumed-content", "shard-digests", "replay", "replay-determinism"),
    decides_on_spike=("replay-spike",),
    located_by=("consumed-content",),
    repair="roll back to the known-good generation; check digests on read; look at the named "
    "rank's storage path",
    control="none: a transient does not come back on request",
)
