"""The deployed loader does not restore the optimizer.

Every load through it is wrong in the same way.

This file is data; it never loads a moment.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, Cause

CAUSE = Cause(
    name="optimizer-not-restored",
    cause_class="optimization",
    summary="the deployed loader leaves another optimizer state than the generation holds, every "
    "time",
    predicts={
        **BATCH_CELLS_OPEN,
        "restored-optimizer": ("differs",),
        "reference-loader": ("differs@restored", "differs@optimizer"),
        "reference-code": ANY,
        "loader-heals": ("agrees",),
        "composition": ANY,
    },
    decides=("restored-optimizer", "replay", "reference-loader"),
    decides_on_spike=("loader-heals",),
    located_by=("restored-optimizer",),
    repair="fix the loader, roll back to the generation of the restart",
    control="the same continuation through the deployed loader must differ again",
)
