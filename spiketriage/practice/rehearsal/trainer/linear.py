"""A linear layer whose result is rounded as the run's precision says.

It never draws its own weights: whoever builds the model gives every weight its first values.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .passes import Pass, Trace
from .precision import rounded


class Linear(nn.Module):
    """`inputs @ weight.T` (…, O) without a bias; `place` names the layer."""

    def __init__(self, num_inputs: int, num_outputs: int, place: str) -> None:
        super().__init__()
        self.place = place
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs))

    def forward(self, inputs: Tensor, how: Pass, trace: Trace) -> Tensor:
        """The product, rounded."""
        return rounded(F.linear(inputs, self.weight), self.place, how.precision)
