"""One rank computed something else once, from the same state and the same batch.

This file is data; it never computes.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, ONCE, RANKS_APART, Cause

CAUSE = Cause(
    name="transient-compute-error",
    cause_class="systems",
    summary="one rank computed another result once, from the same state and batch; replays agree "
    "with each other",
    predicts={
        **BATCH_CELLS_OPEN,
        **RANKS_APART,
        **ONCE,
        "ranks-reduced-gradient": ANY,
        "finiteness": ANY,
        "composition": ANY,
        "replay": ("differs@activations#1", "differs@loss#1", "differs@local_gradient#1"),
        "later-window": ("agrees",),
    },
    decides=("replay", "replay-determinism", "later-window", "continuity"),
    decides_on_spike=("replay-spike",),
    located_by=("replay",),
    repair="drain the host of the named rank and screen it; roll back to the known-good generation",
    control="none: a transient does not come back on request",
)
