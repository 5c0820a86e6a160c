"""A loop that is given the loss as a function, and runs forward, backward and update by itself.

It never computes a loss of its own, and touches nothing between steps but by the optimizer.

    def train(loop):  # builds everything; runs in production and in every replay
        loop.run(model=…, optimizer=…, loader=…, loss=…, num_steps=1000)

    job = ClosureJob(train, save_every=100)
    factory = job.harness
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spiketriage.train.adapters.job import LoopJob
from spiketriage.train.adapters.loop import PlainLoop
from spiketriage.train.adapters.session import Session

# The sum of a micro-batch's losses, in nats, and how many tokens it is over.
Loss = Callable[[nn.Module, Any], tuple[Tensor, int]]


class ClosureLoop:
    """What the user's function is given."""

    def __init__(self, session: Session, run: Path) -> None:
        self._loop = PlainLoop(session, run)

    def run(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: Any,
        loss: Loss,
        num_steps: int,
    ) -> None:
        """Train up to step `num_steps`."""
        self._loop.take(model=model, optimizer=optimizer, loader=loader)
        for step in self._loop.steps(num_steps):
            for batch in step.batches:
                loss_sum, num_tokens = loss(model, batch)
                (loss_sum / num_tokens).backward()
                step.loss(loss_sum, num_tokens)
            if step.may_update():
                optimizer.step()
                step.updated()
            optimizer.zero_grad()


class ClosureJob(LoopJob):
    """A job whose user function is `train(loop)`; see the page above."""

    LOOP = ClosureLoop
