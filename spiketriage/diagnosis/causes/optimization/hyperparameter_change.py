"""A hyper-parameter, or the schedule's settings, changed between the generations and the run.

This file is data; it never reads a config.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, Cause

CAUSE = Cause(
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
    control="the same continuation with the changed value must fail again",
)
