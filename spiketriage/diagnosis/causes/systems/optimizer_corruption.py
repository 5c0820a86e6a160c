"""The optimizer's state or its update was another one on one rank, once.

Memory and arithmetic cannot be told apart.

This file is data; it never reads a moment.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, ONCE, RANKS_APART, Cause

CAUSE = Cause(
    name="optimizer-corruption",
    cause_class="systems",
    summary="optimizer state or update of one rank was another one, once: a memory fault or a "
    "wrong computation",
    predicts={
        **BATCH_CELLS_OPEN,
        **RANKS_APART,
        **ONCE,
        "composition": ANY,
        "replay": ("differs@optimizer#1", "differs@params_after#1"),
        "later-window": ("agrees",),
    },
    decides=("replay", "replay-determinism", "later-window", "continuity"),
    decides_on_spike=("replay-spike",),
    located_by=("replay",),
    repair="drain the host of the named rank and screen it; roll back to the known-good generation",
    control="none: a transient does not come back on request",
)
