"""The optimizer's moments of another generation were loaded once.

A later load of the same files is right.

This file is data; it never loads a moment.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, ONCE, Cause

CAUSE = Cause(
    name="stale-optimizer",
    cause_class="optimization",
    summary="the restart loaded optimizer moments that are not those of its generation; a replayed "
    "load is right",
    predicts={
        **BATCH_CELLS_OPEN,
        **ONCE,
        "restored-optimizer": ("differs",),
        "replay": ("differs@restored",),
        "composition": ANY,
    },
    decides=("restored-optimizer", "replay", "replay-determinism"),
    decides_on_spike=("replay-spike",),
    located_by=("restored-optimizer",),
    repair="roll back to the generation of the restart and load its own moments; verify digests "
    "after every load",
    control="the same continuation with the stale moments must leave production's chain again",
)
