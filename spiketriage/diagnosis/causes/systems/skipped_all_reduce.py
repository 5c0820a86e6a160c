"""One rank kept its own gradient instead of the reduced one, and left the others for good.

This file is data; it never calls a collective.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, ONCE, RANKS_APART, Cause

CAUSE = Cause(
    name="skipped-all-reduce",
    cause_class="systems",
    summary="one rank went on with its own gradient instead of the reduced one",
    predicts={
        **BATCH_CELLS_OPEN,
        **ONCE,
        **RANKS_APART,
        "reduction": ("differs",),
        "ranks-reduced-gradient": ("differs",),
        "replay": ("differs@reduced_gradient#1",),
        "composition": ANY,
    },
    decides=("reduction", "ranks-reduced-gradient", "replay", "replay-determinism"),
    decides_on_spike=("replay-spike",),
    located_by=("reduction",),
    repair="roll back to the known-good generation; look at the named rank's collective library "
    "and network",
    control="none: a transient does not come back on request",
)
