"""Accelerate: the user's own loop over an `Accelerator`, recorded, guarded and replayed.

It never runs a forward pass, a clipping or a scheduler itself: it listens where the loop calls
`accelerate`.

    def train(loop):  # builds everything; runs in production and in every replay
        accelerator = Accelerator(gradient_accumulation_steps=2)
        model, optimizer, loader, scheduler = accelerator.prepare(…)
        loop.take(
            accelerator,
            model=model,
            optimizer=optimizer,
            loader=loader,
            scheduler=scheduler,
            max_norm=1.0,
        )
        for batches in loop.epochs(num_steps=1000):
            for batch in batches:  # in place of `for batch in loader`
                with accelerator.accumulate(model):
                    loss_sum, num_tokens = …  # nats, summed over valid tokens of this rank
                    loop.loss(loss_sum, num_tokens)  # else the mean that `backward` gets counts
                    accelerator.backward(loss_sum / num_tokens)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()

    job = AccelerateJob(train, save_every=100, policy=Policy())
    factory = job.harness

    if __name__ == "__main__":
        job.train(Path("run"))

What a replay rests on (accelerate 1.15):

- `DataLoaderShard` reads one batch ahead, to know which one is the last. Here the data themselves
  say which one is, so nothing is read ahead, and the loop pauses exactly between two steps.
- On the last micro-batch of an epoch accelerate steps, however few there are, with the loss still
  divided by the whole number, and counts afresh: a loop that goes on from any step boundary
  therefore stands where it would have stood.
- A step that is held back looks to accelerate like one that overflowed:
  `optimizer.step_was_skipped`, by which a prepared scheduler stays. An average of the weights must
  ask the same: `if not optimizer.step_was_skipped:`.
- A loop keeps nothing between steps beside what it handed over. In a probe it runs a step without
  an update.
- A lone process under torchrun is not wrapped in DDP, whatever the launcher says: the desk's
  launcher says so.

DDP on more than two ranks (it lays out its buckets anew after its first step, so that a sum may
round otherwise), fp16 with a loss scale, FSDP, DeepSpeed and XLA are untested; Megatron-LM and
LOMO, whose steps are the engine's, do not work. A probe takes no overrides of precision or kernel.
A loader that dispatches from rank 0 is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderDispatcher, DataLoaderStateMixin
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import GradientState
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from spiketriage.errors import UsageError
from spiketriage.train.adapters.gate import gate
from spiketriage.train.adapters.job import LoopJob
from spiketriage.train.adapters.losses import tell_mean
from spiketriage.train.adapters.session import Session
from spiketriage.train.adapters.settings import hparams_of
from spiketriage.train.adapters.source import Source
from spiketriage.train.adapters.state import Parts


class AccelerateLoop:
    """What the user's function is given: hand the objects over, then iterate."""

    def __init__(self, session: Session, run: Path) -> None:
        self._session, self.run = session, run
        self._batches: _Batches
        if os.environ.get("WORLD_SIZE") == "1":
            os.environ.pop("LOCAL_RANK", None)

    def take(
        self,
        accelerator: Accelerator,
        *,
        model: nn.Module,
        optimizer: AcceleratedOptimizer,
        loader: Any,
        scheduler: Any = None,
        max_norm: float = 0.0,
        schedule: Mapping[str, Any] | None = None,
        hparams: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        """Hand over what `accelerator.prepare` returned.

        It then holds the generation to go on from, if there is one.

        `loader` is prepared or not; only its samplers and collation are used. `max_norm` is what
        the loop clips to. `schedule` is the learning rate's, as `diagnosis.checks.lr_schedule`
        knows it; `seed` fixes the order of the data, on several ranks also in place of a generator
        that the loader has.

        Raises:
            UsageError: something is not prepared, or read in a way that cannot be read again.
        """
        if not isinstance(optimizer, AcceleratedOptimizer):
            raise UsageError("hand over the optimizer that accelerator.prepare returned")
        if isinstance(loader, DataLoaderDispatcher):
            raise UsageError(
                "a loader that dispatches from rank 0 cannot be read again",
                hint="DataLoaderConfiguration(dispatch_batches=False)",
            )
        reducer: DistributedDataParallel | None = None
        inner = model
        if isinstance(model, DistributedDataParallel):
            reducer, inner = model, model.module
        num_micro = accelerator.gradient_accumulation_steps
        settings = {
            **hparams_of(optimizer.optimizer, clip=max_norm, num_micro=num_micro, seed=seed),
            **(hparams or {}),
        }
        self._batches = _Batches(self._session, accelerator, optimizer, loader, max_norm, seed)
        self._session.take(
            Parts(
                model=inner,
                optimizer=optimizer.optimizer,
                source=self._batches.source,
                num_micro=num_micro,
                scheduler=getattr(scheduler, "scheduler", scheduler),
                scaler=accelerator.scaler,
                reducer=reducer,
                max_norm=max_norm,
                hparams=settings,
                schedule=schedule or {},
                config={"hparams": settings, "schedule": schedule or {}, "model": repr(model)},
                precision=_precision(accelerator),
            )
        )

    def epochs(self, num_steps: int) -> Iterator[_Batches]:
        """The micro-batches of one epoch after the other, up to step `num_steps`."""
        self._batches.num_steps = num_steps
        while self._session.last_step < num_steps:
            yield self._batches

    @property
    def step(self) -> int:
        """Number of the step under way, or of the last one."""
        return self._session.step

    def loss(
        self, loss_sum: Tensor, num_tokens: Tensor | float, *, per_sample_B: Tensor | None = None
    ) -> None:
        """The loss of the micro-batch at hand, before `backward`: nats summed over valid tokens."""
        self._batches.is_loss_known = True
        self._session.loss(loss_sum, num_tokens, per_sample_B=per_sample_B)


def _precision(accelerator: Accelerator) -> str:
    """The precision as segments name it."""
    if accelerator.mixed_precision == "no":
        return "fp32"
    return str(accelerator.mixed_precision)


class _Batches(DataLoaderStateMixin):  # type: ignore[misc]
    """Stands where the loop had its prepared loader, and hears what the loop asks of accelerate."""

    def __init__(
        self,
        session: Session,
        accelerator: Any,
        optimizer: AcceleratedOptimizer,
        loader: Any,
        max_norm: float,
        seed: int,
    ) -> None:
        self.gradient_state, self.dataset = GradientState(), loader.dataset
        # For `gather_for_metrics`.
        self.total_batch_size = getattr(loader, "total_batch_size", loader.batch_size)
        self._drop_last = getattr(loader, "_drop_last", loader.drop_last)
        generator = getattr(loader, "synchronized_generator", None)
        if isinstance(generator, torch.Generator):
            # On several ranks, accelerate seeds it by chance and takes rank 0's ever after.
            generator.manual_seed(seed)
        self.source, self.num_steps, self.is_loss_known = Source(loader, seed=seed), 0, False
        self._session, self._accelerator, self._max_norm = session, accelerator, max_norm
        self._batch: Any = None
        self._is_unscaled = False
        self._own_backward, self._own_clip = accelerator.backward, accelerator.clip_grad_norm_
        self._own_unscale = accelerator.unscale_gradients
        accelerator.backward, accelerator.clip_grad_norm_ = self._backward, self._clip
        accelerator.unscale_gradients = self._unscale
        gate(optimizer, self._may_update)
        self._gated = optimizer.step
        optimizer.step = self._step

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Any]:
        session = self._session
        self.begin()
        try:
            for batch in session.epoch():
                session.begin()
                session.micro()
                self.is_loss_known, self.end_of_dataloader = False, session.is_at_end
                self._batch = send_to_device(batch, self._accelerator.device)
                yield self._batch
                self._end_step()
                if session.last_step >= self.num_steps:
                    return
        finally:
            self.end()

    # --- what the loop calls

    def _backward(self, loss: Tensor, **named: Any) -> None:
        if self._session.is_open and not self.is_loss_known:
            tell_mean(self._session, loss, self._batch)
        self._own_backward(loss, **named)

    def _clip(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        self._ask_guard()
        if self._session.is_open and float(max_norm) != self._max_norm:
            raise UsageError(
                f"the loop clips to {max_norm}, but take(max_norm={self._max_norm}) was "
                "told otherwise"
            )
        return self._own_clip(parameters, max_norm, norm_type)

    def _unscale(self, optimizer: Any = None) -> None:
        """Once a step, whoever asks: a scaler refuses to do it twice."""
        if not self._is_unscaled:
            self._own_unscale(optimizer)
            self._is_unscaled = self._accelerator.sync_gradients

    def _step(self, closure: Any = None) -> None:
        if closure is not None:
            raise UsageError(
                "an optimizer with a closure runs forward and backward itself, out of sight"
            )
        self._gated()
        if self._accelerator.sync_gradients and self._session.is_taken:
            self._session.updated()

    # --- inside

    def _ask_guard(self) -> None:
        """Gradients as reduced, unscaled and not yet clipped; the guard's word on the update."""
        session = self._session
        if self._accelerator.sync_gradients and session.is_open and not session.is_judged:
            self._unscale()
            session.may_update(session.reduced())

    def _may_update(self) -> bool:
        self._ask_guard()
        return (
            not self._accelerator.sync_gradients
            or not self._session.is_open
            or self._session.is_taken
        )

    def _end_step(self) -> None:
        if self._session.is_judged:
            self._is_unscaled = False
            self._session.end()


class AccelerateJob(LoopJob):
    """A job whose loop is the user's function `train(loop)`; see the page above."""

    LOOP = AccelerateLoop
