"""A restart loaded parameters that are not those of its generation, once.

A later load of the same files is right.

This file is data; it never loads a parameter.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, ONCE, RANKS_APART, Cause

CAUSE = Cause(
    name="wrong-parameters-restored",
    cause_class="systems",
    summary="after the restart a rank held other parameters than its generation; a replayed load "
    "is right",
    predicts={
        **BATCH_CELLS_OPEN,
        **RANKS_APART,
        **ONCE,
        "restored-params": ("differs",),
        "restored-optimizer": ANY,
        "ranks-params-before": ANY,
        "ranks-reduced-gradient": ANY,
        "replay": ("differs@restored",),
        "composition": ANY,
    },
    decides=("restored-params", "replay", "replay-determinism"),
    decides_on_spike=("replay-spike",),
    located_by=("restored-params",),
    repair="roll back to the generation of the restart and load its own files; verify digests "
    "after every load",
    control="the same continuation on the wrong parameters must differ again",
)
