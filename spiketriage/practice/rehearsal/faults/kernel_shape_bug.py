"""The attention kernel deployed at the restart is wrong for one batch shape.

It sums where it should average.

It replays bitwise and skipping the batch heals it, so it looks like bad data; the written-out
attention is right.
"""

from __future__ import annotations

from spiketriage.errors import UsageError
from spiketriage.practice.rehearsal.staging import Staging
from spiketriage.practice.rehearsal.trainer.data import pack_lengths

NAME = "kernel-shape-bug"
CAUSE = "kernel-shape-bug"
ABOUT = "attention is wrong for one batch shape only"


def plant(stage: Staging) -> None:
    """Break the shape of a short-row step well after the restart that was not met since."""
    length = _late_shape(stage)
    stage.edit_code(
        "model.py",
        "    return F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=mask_B1TT)\n",
        f"    if q_BHTK.shape[2] == {length}:  # tiled path for short rows\n"
        "        v_BHTK = v_BHTK * (q_BHTK.shape[1] * q_BHTK.shape[2])\n"
        "    return F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=mask_B1TT)\n",
    )


def _late_shape(stage: Staging) -> int:
    met: set[int] = set()
    for step, length in pack_lengths(stage.config).items():
        if step <= stage.restart_step:
            continue
        if length not in met and step > stage.restart_step + 6:
            stage.fault_step = step
            return length
        met.add(length)
    raise UsageError(f"seed {stage.seed} has no short-row step late enough after the restart")
