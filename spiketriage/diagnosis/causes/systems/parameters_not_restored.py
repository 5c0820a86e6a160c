"""The deployed loader does not restore the parameters.

Every load through it is wrong in the same way.

This file is data; it never loads a parameter.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, RANKS_APART, Cause

CAUSE = Cause(
    name="parameters-not-restored",
    cause_class="systems",
    summary="the deployed loader leaves other parameters than the generation holds, every time",
    predicts={
        **BATCH_CELLS_OPEN,
        **RANKS_APART,
        "restored-params": ("differs",),
        "restored-optimizer": ANY,
        "ranks-params-before": ANY,
        "ranks-reduced-gradient": ANY,
        "reference-loader": ("differs@restored",),
        "loader-heals": ("agrees",),
        "reference-code": ANY,
        "composition": ANY,
    },
    decides=("restored-params", "replay", "reference-loader"),
    decides_on_spike=("loader-heals",),
    located_by=("restored-params",),
    repair="fix the loader, roll back to the generation of the restart",
    control="the same continuation through the deployed loader must differ again",
)
