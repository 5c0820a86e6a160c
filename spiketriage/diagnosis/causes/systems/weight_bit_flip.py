"""One tensor of one rank changed between two steps, and a replay does not repeat it.

This file is data; it never reads a weight.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, ONCE, RANKS_APART, Cause

CAUSE = Cause(
    name="weight-bit-flip",
    cause_class="systems",
    summary="a parameter tensor of one rank changed between two steps, outside any step; replays "
    "do not repeat it",
    predicts={
        **BATCH_CELLS_OPEN,
        **ONCE,
        **RANKS_APART,
        "continuity": ("differs@one tensor",),
        "ranks-params-before": ("differs",),
        "ranks-reduced-gradient": ANY,
        "replay": ("differs@params_before#1",),
        "finiteness": ANY,
        "composition": ANY,
    },
    decides=("continuity", "ranks-params-before", "replay", "replay-determinism"),
    decides_on_spike=("replay-spike",),
    located_by=("continuity",),
    repair="drain the host of the named rank and test its memory; roll back to the known-good "
    "generation",
    control="none: a transient does not come back on request",
)
