"""A value left the range of a 16-bit format.

A gradient, loss or activation is nonfinite, and fp32 is finite.

This file is data; it never computes in fp16.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, Cause

CAUSE = Cause(
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
    control="the same continuation in the deployed precision must overflow again",
)
