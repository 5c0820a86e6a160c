"""The scheduler's counter was lost at a restart.

The learning rate follows another part of the schedule.

This file is data; it never computes a rate.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, Cause

CAUSE = Cause(
    name="scheduler-reset",
    cause_class="optimization",
    summary="the restart lost the scheduler's counter, and the learning rate left its schedule",
    predicts={
        **BATCH_CELLS_OPEN,
        "lr-schedule": ("differs",),
        "restored-scheduler": ("differs",),
        "reference-loader": ("differs@restored", "differs@clip_lr"),
        "reference-code": ANY,
        "loader-heals": ("agrees",),
        "composition": ANY,
    },
    decides=("lr-schedule", "restored-scheduler", "replay", "reference-loader"),
    decides_on_spike=("loader-heals",),
    located_by=("restored-scheduler", "lr-schedule"),
    repair="restore the scheduler's counter on load (fix the loader), roll back to the generation "
    "of the restart",
    control="the same continuation through the deployed loader must leave the schedule again",
)
