"""Causes in the optimizer, its state and its schedule.

This table is data: it never reads evidence and never computes.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, ONCE, Cause

OPTIMIZATION: tuple[Cause, ...] = (
    # The scheduler's counter was lost at a restart, so the learning rate follows another part of
    # the schedule.
    Cause(
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
        repair="restore the scheduler's counter on load (fix the loader), roll back to the "
        "generation of the restart",
    ),
    # The optimizer's moments of another generation were loaded once. A later load of the same files
    # is right.
    Cause(
        name="stale-optimizer",
        cause_class="optimization",
        summary="the restart loaded optimizer moments that are not those of its generation; a "
        "replayed load is right",
        predicts={
            **BATCH_CELLS_OPEN,
            **ONCE,
            "restored-params": ("agrees",),
            "restored-optimizer": ("differs",),
            "replay": ("differs@restored",),
            "composition": ANY,
        },
        decides=("restored-optimizer", "replay", "replay-determinism"),
        decides_on_spike=("replay-spike",),
        located_by=("restored-optimizer",),
        repair="roll back to the generation of the restart and load its own moments; verify "
        "digests after every load",
    ),
    # The deployed loader does not restore the optimizer. Every load through it is wrong in the same
    # way.
    Cause(
        name="optimizer-not-restored",
        cause_class="optimization",
        summary="the deployed loader leaves another optimizer state than the generation holds, "
        "every time",
        predicts={
            **BATCH_CELLS_OPEN,
            "restored-params": ("agrees",),
            "restored-optimizer": ("differs",),
            "reference-loader": ("differs@restored", "differs@optimizer"),
            "reference-code": ANY,
            "loader-heals": ("agrees",),
            "composition": ANY,
        },
        decides=("restored-optimizer", "replay", "reference-loader"),
        decides_on_spike=("loader-heals",),
        located_by=("restored-optimizer",),
        repair="fix the loader, roll back to the generation of the restart",
    ),
    # A hyper-parameter, or the schedule's settings, changed between the generations and the run.
    Cause(
        name="hyperparameter-change",
        cause_class="optimization",
        summary="hyper-parameters as applied differ from those that the generation before recorded",
        predicts={
            **BATCH_CELLS_OPEN,
            "hyperparameters": ("differs",),
            "config-identity": ANY,
            "lr-schedule": ANY,
            "reference-code": (
                "agrees",
                "differs@clip_lr",
                "differs@optimizer",
                "differs@params_after",
            ),
            "code-heals": ("agrees",),
            "composition": ANY,
        },
        decides=("hyperparameters", "replay"),
        decides_on_spike=(
            "code-heals",
            "reference-code",
            "content-profile",
            "reference-kernel",
            "reference-precision",
        ),
        located_by=("hyperparameters",),
        repair="put the recorded value back, roll back to the newest generation before the change",
    ),
)
