"""Production and its replays compute differently again and again.

Another kernel, library, device or setting.

This file is data; it never asks an environment.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, RANKS_APART, Cause

CAUSE = Cause(
    name="environment-differs",
    cause_class="systems",
    summary="production computes differently from its replays at every step looked at: their "
    "environments differ",
    predicts={
        **BATCH_CELLS_OPEN,
        **RANKS_APART,
        "ranks-params-before": ANY,
        "ranks-reduced-gradient": ANY,
        "finiteness": ANY,
        "composition": ANY,
        "replay-determinism": ("agrees",),
        "replay": (
            "differs@batch",
            "differs@activations",
            "differs@loss",
            "differs@local_gradient",
            "differs@reduced_gradient",
            "differs@optimizer",
        ),
        "later-window": ("differs",),
        "replay-spike": ("agrees",),
    },
    decides=("replay", "replay-determinism", "later-window"),
    decides_on_spike=("replay-spike",),
    located_by=("replay",),
    repair="compare device, libraries, flags and thread counts of production with those of the "
    "replay",
    control="the same window in production's own environment must repeat bit for bit",
)
