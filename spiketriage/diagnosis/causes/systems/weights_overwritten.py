"""Several tensors of one rank changed between two steps: more than a flipped bit.

This file is data; it never reads a weight.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, ONCE, RANKS_APART, Cause

CAUSE = Cause(
    name="weights-overwritten",
    cause_class="systems",
    summary="several parameter tensors of one rank changed between two steps, outside any step",
    predicts={
        **BATCH_CELLS_OPEN,
        **RANKS_APART,
        **ONCE,
        "continuity": ("differs@several tensors",),
        "ranks-params-before": ANY,
        "ranks-reduced-gradient": ANY,
        "replay": ("differs@params_before",),
        "finiteness": ANY,
        "composition": ANY,
    },
    decides=("continuity", "replay", "replay-determinism"),
    decides_on_spike=("replay-spike",),
    located_by=("continuity",),
    repair="look for code that writes weights between steps; test the rank's memory; roll back to "
    "known good",
    control="none: what happened once does not come back on request",
)
