"""One bit of one weight flips on one rank, between two steps.

The plant acts inside the running process, as a memory fault would; it never repeats.
"""

from __future__ import annotations

from typing import Any

from spiketriage.practice.rehearsal.staging import Staging

NAME = "weight-bit-flip"
CAUSE = "weight-bit-flip"
ABOUT = "one bit of one weight flips on one rank"


def plant(stage: Staging) -> None:
    """Choose tensor, element and bit: mantissa, sign, or the exponent's lower half."""
    stage.hook(
        step=stage.fault_step,
        rank=stage.rank,
        tensor=stage.chooser.random(),
        element=stage.chooser.random(),
        bit=stage.chooser.choice((2, 9, 15, 20, 23, 24, 25, 31)),
    )


def before_step(
    trainer: Any, number: int, *, step: int, rank: int, tensor: float, element: float, bit: int
) -> None:
    """Flip the bit just before `step` on `rank`."""
    import torch

    if number != step or trainer.context.rank != rank:
        return
    names = sorted(trainer.params)
    flat = trainer.params[names[int(tensor * len(names))]].detach().view(-1).view(torch.int32)
    place = int(element * flat.numel())
    mask = 1 << bit
    flat[place] ^= mask - (1 << 32) if bit == 31 else mask
