"""A block that leaves a model and the generators as they were, whatever passes go through it.

It never looks at an optimizer: nothing may step in the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from spiketriage.train.adapters.streams import Stream


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Generators, gradients, buffers and modes are put back; at first there are no gradients."""
    params = list(model.parameters())
    gradients = [param.grad for param in params]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    modes = [(module, module.training) for module in model.modules()]
    for param in params:
        param.grad = None
    cuda: torch.Tensor | None = None
    if torch.cuda.is_available():
        cuda = torch.cuda.get_rng_state()
    with Stream.from_here():
        yield
    if cuda is not None:
        torch.cuda.set_rng_state(cuda)
    for param, gradient in zip(params, gradients, strict=True):
        param.grad = gradient
    for live, copy in buffers:
        live.copy_(copy)
    for module, mode in modes:
        module.training = mode
