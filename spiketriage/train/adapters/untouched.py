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
    """Generators, gradients, buffers and modes of modules are put back.

    Inside, there are no gradients at first.
    """
    params = list(model.parameters())
    gradients = [one.grad for one in params]
    buffers = [(one, one.detach().clone()) for one in model.buffers()]
    modes = [(one, one.training) for one in model.modules()]
    for one in params:
        one.grad = None
    if torch.cuda.is_available():
        cuda = torch.cuda.get_rng_state()
    else:
        cuda = None
    with Stream.from_here():
        yield
    if cuda is not None:
        torch.cuda.set_rng_state(cuda)
    for one, gradient in zip(params, gradients, strict=True):
        one.grad = gradient
    for live, copy in buffers:
        live.copy_(copy)
    for module, mode in modes:
        module.training = mode
