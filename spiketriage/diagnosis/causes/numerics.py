"""Causes in precision, ranges and kernels.

This table is data: it never reads evidence and never computes.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, BATCH_FOLLOWS, Cause

NUMERICS: tuple[Cause, ...] = (
    # A kernel is wrong for the suspect batch's shape. It replays bitwise and skips clean, and the
    # reference is right.
    Cause(
        name="kernel-shape-bug",
        cause_class="numerics",
        summary="the deployed attention kernel is wrong for the suspect batch, and right for "
        "clean batches",
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
    ),
    # A value left the range of a 16-bit format. A gradient, loss or activation is nonfinite, and
    # fp32 is finite.
    Cause(
        name="fp16-overflow",
        cause_class="numerics",
        summary="a value overflowed the reduced-precision format; the same step in fp32 is finite",
        predicts={
            **BATCH_CELLS_OPEN,
            "finiteness": ("nonfinite@local_gradient", "nonfinite@activations", "nonfinite@loss"),
            "reference-precision": ("differs",),
            "precision-heals": ("agrees",),
            "reference-code": ANY,
            "reference-kernel": ANY,
            "hyperparameters": ANY,
            "composition": ANY,
            "content-profile": ANY,
        },
        decides=("finiteness", "reference-precision", "precision-heals", "replay"),
        located_by=("finiteness",),
        needs_spike=True,
        repair="check for overflow and back the loss scale off, or use bf16; roll back to the "
        "known-good generation",
    ),
)
