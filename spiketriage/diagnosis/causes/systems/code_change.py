"""The code that was deployed at a restart computes something else, and the spike goes with it; no finer cause is known.

This file is data; it never reads code.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, Cause

CAUSE = Cause(
    name="code-change",
    cause_class="systems",
    summary="the deployed code computes something else than the code before it, and the older code has no spike",
    predicts={
        **BATCH_CELLS_OPEN,
        "clean-batch/older-state": ANY,
        "reference-code": ("differs",),
        "code-heals": ("agrees",),
        "composition": ANY,
    },
    decides=("reference-code", "replay"),
    decides_on_spike=("code-heals", "reference-kernel", "reference-precision", "content-profile"),
    located_by=("reference-code",),
    needs_spike=True,
    repair="roll the code back to the release before, roll back to the known-good generation, then read the change",
    control="the same continuation on the deployed code must spike again",
)
