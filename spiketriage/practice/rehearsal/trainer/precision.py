"""Reduced precision as a CPU can afford it: fp32 results, rounded where they leave a matmul.

It never changes a dtype that the caller sees; the gradient is rounded on the way back too, as
autograd does for a cast.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rounded(values: Tensor, place: str, precision: str) -> Tensor:
    """`values` rounded as the run's precision says.

    `place` names the layer, `fp32` rounds nothing.
    """
    if precision == "fp32":
        return values
    return values.to(torch.bfloat16).to(torch.float32)


def loss_scale(step: int, precision: str) -> float:
    """Factor on the loss before the backward pass of `step`; bf16 and fp32 need none."""
    return 1.0
