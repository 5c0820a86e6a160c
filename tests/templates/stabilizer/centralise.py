"""Gradient centralisation: the mean over a matrix's inputs is taken out of its gradient.

This module never touches a vector's gradient and never allocates a second copy of one.

Source: Yong et al., Gradient Centralization (arXiv 2004.01461), section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

NAME = "gradient-centralisation"
LIFTS = ("centralise_",)
REMOVES = "A drift of all weights of a unit in one direction."
COST = "One mean and one subtraction a matrix."
WHEN = "Step 0, where the output of a layer drifts."
UNSEEN = "no configuration is known to name it, and the rehearsal has no switch for it"


@torch.no_grad()
def centralise_(parameters: Iterable[Tensor]) -> None:
    """Subtract from each gradient of two dimensions or more its mean over all but the first.

    Gradients keep their dtype; the mean is taken in float32.
    """
    for parameter in parameters:
        grad = parameter.grad
        if grad is None or grad.dim() < 2:
            continue
        dims = tuple(range(1, grad.dim()))
        grad.sub_(grad.float().mean(dim=dims, keepdim=True).to(grad.dtype))
