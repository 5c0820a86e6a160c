"""The index is not the one that the generations were trained with.

It accuses nobody until it is restored.

This file is data; it never reads an index.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, Cause

CAUSE = Cause(
    name="index-changed",
    cause_class="data",
    summary="the data index differs from the one that the generations recorded",
    predicts={
        **BATCH_CELLS_OPEN,
        "index-identity": ("differs",),
        "shard-digests": ANY,
        "consumed-content": ANY,
        "consumed-at-spike": ANY,
        "content-profile": ANY,
        "composition": ANY,
        "ids": ANY,
        "replay": ("agrees", "differs@ids", "differs@content"),
    },
    decides=("index-identity", "replay"),
    decides_on_spike=("index-restored",),
    located_by=("index-identity",),
    repair="restore the index whose digest the manifests hold, then triage again",
    control="none",
)
