"""A restart loaded parameters that are not those of its generation.

This file is data; it never loads a parameter.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, RANKS_APART, Cause

CAUSE = Cause(
    name="wrong-parameters-restored",
    cause_class="systems",
    summary="after the restart a rank held other parameters than its generation",
    predicts={
        **BATCH_CELLS_OPEN,
        **RANKS_APART,
        "restored-params": ("differs",),
        "restored-optimizer": ANY,
        "ranks-params-before": ANY,
        "ranks-reduced-gradient": ANY,
        "replay": ("agrees", "differs@restored"),
        "reference-loader": ANY,
        "reference-code": ANY,
        "composition": ANY,
    },
    decides=("restored-params", "replay"),
    located_by=("restored-params",),
    repair="roll back to the generation of the restart and load its own files; verify digests after every load",
    control="the same continuation on the wrong parameters must differ again",
)
