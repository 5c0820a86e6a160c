"""Bytes of a shard changed on disk after the index was written, and training consumed them.

This file is data; it never reads a shard.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, Cause

CAUSE = Cause(
    name="shard-bitrot",
    cause_class="data",
    summary="bytes of a data shard no longer match the index, and the run consumed them",
    predicts={
        "shard-digests": ("differs",),
        "consumed-content": ("differs",),
        "consumed-at-spike": ("differs",),
        "content-profile": ANY,
        "composition": ANY,
        "suspect-batch/suspect-state": ANY,
        "suspect-batch/older-state": ANY,
    },
    predicts_on_spike={"content-profile": ("differs",)},
    decides=("shard-digests", "consumed-content", "replay"),
    decides_on_spike=(
        "consumed-at-spike",
        "content-profile",
        "skip-batch",
        "suspect-batch/older-state",
        "reference-kernel",
        "reference-precision",
    ),
    located_by=("consumed-content", "shard-digests"),
    repair="restore every shard that `hash` names from a copy that matches the index; roll back "
    "to known good; replay",
    control="the same continuation on the rotten shard must fail again",
)
