"""The code that was deployed at a restart computes something else, and a spike goes with it.

No finer cause is known.

This file is data; it never reads code.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, Cause

CAUSE = Cause(
    name="code-change",
    cause_class="systems",
    summary="the code deployed at the restart computes something else than the code before it",
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
    repair="read the change; unless it was meant, roll code and state back to before the restart; "
    "replay",
    control="the same continuation on the deployed code must spike again",
)
