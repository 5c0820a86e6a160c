"""A plain training loop: ten lines around the user's own, and the desk can replay it.

It never computes a loss, and touches the optimizer only to clip.

    def train(loop):  # builds everything; runs in production and in every replay
        model, optimizer, scheduler, loader = …
        loop.take(
            model=model,
            optimizer=optimizer,
            loader=loader,
            scheduler=scheduler,
            num_micro=2,
            max_norm=1.0,
        )
        for step in loop.steps(1000):
            for batch in step.batches:
                loss_sum, num_tokens = …  # nats, summed over valid tokens of this rank
                (loss_sum / …).backward()
                step.loss(loss_sum, num_tokens)
            if step.may_update():  # gradients on record and clipped, the guard asked
                optimizer.step()
                step.updated()
                scheduler.step()
            optimizer.zero_grad()

    job = PlainJob(train, save_every=100, policy=Policy())
    factory = job.harness

    if __name__ == "__main__":
        job.train(Path("run"))

A loop keeps nothing between steps beside what it handed to `take`, the loop variable included:
where it goes on after a load, `step.number` says. In a probe the loop runs a step without an
update, and everything handed over is put back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from spiketriage.train.adapters.job import LoopJob
from spiketriage.train.adapters.session import Session
from spiketriage.train.adapters.settings import hparams_of
from spiketriage.train.adapters.source import Source
from spiketriage.train.adapters.state import Parts, Stateful


class Step:
    """One step under way: its micro-batches, and what the loop tells about them."""

    def __init__(self, session: Session, batches: list[Any]) -> None:
        self._session, self._batches = session, batches
        self.number = session.step

    @property
    def batches(self) -> Iterator[Any]:
        """The micro-batches, to be passed forward and backward one after the other."""
        for batch in self._batches:
            self._session.micro()
            yield batch

    def loss(
        self, loss_sum: Tensor, num_tokens: Tensor | float, *, per_sample_B: Tensor | None = None
    ) -> None:
        """The loss of the micro-batch at hand: nats summed over valid tokens, never a mean."""
        self._session.loss(loss_sum, num_tokens, per_sample_B=per_sample_B)

    def may_update(self) -> bool:
        """Whether to update, after the last backward; gradients are then recorded and clipped."""
        norm = self._session.reduced()
        if not self._session.may_update(norm):
            return False
        parts = self._session.parts
        if parts.max_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(parts.params.values(), parts.max_norm, norm)
        return True

    def updated(self) -> None:
        """The optimizer's step is done: before the scheduler's, and before the gradients go."""
        self._session.updated()


class PlainLoop:
    """What the user's function is given: hand the objects over, then iterate."""

    def __init__(self, session: Session, run: Path) -> None:
        self._session, self.run = session, run

    def take(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: Any,
        num_micro: int = 1,
        scheduler: Stateful | None = None,
        scaler: Stateful | None = None,
        max_norm: float = 0.0,
        schedule: Mapping[str, Any] | None = None,
        hparams: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        """Hand over what was built; it then holds the generation to go on from, if there is one.

        `model` may be wrapped in `DistributedDataParallel`. `loader` is a `DataLoader` over a
        map-style data set, with the sampler of this rank; `schedule` as
        `diagnosis.checks.lr_schedule` knows it.
        """
        settings = {
            **hparams_of(optimizer, clip=max_norm, num_micro=num_micro, seed=seed),
            **(hparams or {}),
        }
        reducer: DistributedDataParallel | None = None
        inner = model
        if isinstance(model, DistributedDataParallel):
            reducer, inner = model, model.module
        self._session.take(
            Parts(
                model=inner,
                optimizer=optimizer,
                source=Source(loader, seed=seed),
                num_micro=num_micro,
                scheduler=scheduler,
                scaler=scaler,
                reducer=reducer,
                max_norm=max_norm,
                hparams=settings,
                schedule=schedule or {},
                config={"hparams": settings, "schedule": schedule or {}, "model": repr(model)},
            )
        )

    def steps(self, num_steps: int) -> Iterator[Step]:
        """Steps up to number `num_steps`; a step ends where the next one is asked for."""
        session = self._session
        while session.last_step < num_steps:
            batches = session.epoch()
            while session.last_step < num_steps and (
                taken := list(islice(batches, session.parts.num_micro))
            ):
                session.begin()
                yield Step(session, taken)
                session.end()
            with suppress(AttributeError):
                batches.close()  # type: ignore[attr-defined]


class PlainJob(LoopJob):
    """A job whose loop is the user's function `train(loop)`; see the page above."""

    LOOP = PlainLoop
