"""A kernel is wrong for the suspect batch's shape.

It replays bitwise and skips clean, and the reference is right.

This file is data; it never runs a kernel.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_FOLLOWS, Cause

CAUSE = Cause(
    name="kernel-shape-bug",
    cause_class="numerics",
    summary="the deployed attention kernel is wrong for the suspect batch, and right for clean "
    "batches",
    predicts={
        **BATCH_FOLLOWS,
        "reference-kernel": ("differs",),
        "kernel-heals": ("agrees",),
        "reference-code": ANY,
        "composition": ANY,
    },
    decides=("reference-kernel", "content-profile", "replay"),
    decides_on_spike=(
        "suspect-batch/older-state",
        "skip-batch",
        "kernel-heals",
        "reference-precision",
    ),
    located_by=("reference-kernel",),
    needs_spike=True,
    repair="use the reference kernel for the affected shape until the kernel is fixed; replay "
    "from known good",
    control="the same continuation on the deployed kernel must spike again",
)
