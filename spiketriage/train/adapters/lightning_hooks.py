"""What a Lightning `Trainer` is given so that it tells a session what it does: hooks and data.

It never steps, clips or schedules anything itself; `lightning` says what a replay rests on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import wraps
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from spiketriage.errors import UsageError
from spiketriage.train.adapters.lightning_progress import Progress
from spiketriage.train.adapters.losses import tell_mean
from spiketriage.train.adapters.session import Session
from spiketriage.train.adapters.settings import hparams_of
from spiketriage.train.adapters.source import Source
from spiketriage.train.adapters.state import Parts
from spiketriage.train.harness import Overrides

PRECISIONS = {"32-true": "fp32", "bf16-mixed": "bf16", "16-mixed": "fp16", "64-true": "fp64"}


class _Batches:
    """The training data as `Trainer.fit` takes it: an iterable of known length, epoch by epoch."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def __len__(self) -> int:
        return len(self._hooks.source)

    def __iter__(self) -> Iterator[Any]:
        return self._hooks.epoch()


class Hooks(Callback):
    """Tells the session what the trainer does."""

    def __init__(
        self,
        session: Session,
        trainer: Trainer,
        module: LightningModule,
        loader: DataLoader[Any],
        schedule: Mapping[str, Any],
        seed: int,
    ) -> None:
        self.session, self.trainer, self.module = session, trainer, module
        self.batches, self.progress = _Batches(self), Progress(trainer)
        self._loader, self._schedule, self._seed = loader, schedule, seed
        self._source: Source | None = None
        self._is_taken = self._is_decided = self._is_held = self.has_trained = False
        self._scaler_before: dict[str, Any] | None = None
        self._run = module.training_step

    @property
    def source(self) -> Source:
        """The data, shared out among ranks as the trainer would."""
        if self._source is None:
            self._source = Source(_shared_out(self._loader, self.trainer), seed=self._seed)
        return self._source

    def epoch(self) -> Iterator[Any]:
        """The batches of an epoch; before the very first one the session is given everything."""
        if not self._is_taken:
            self._is_taken = True
            self._take()
            if self.trainer.fit_loop.done:
                return  # the generation is the end of the run already
            progress = self.trainer.fit_loop.epoch_loop.batch_progress
            if self.session.num_left <= 0 < progress.current.ready:
                progress.is_last_batch = True  # a rollback left out all that this epoch had left
                return
        self.has_trained = True
        yield from self.session.epoch()

    # --- what the trainer calls, in this order

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """A micro-batch has come; the data say, not a count, whether it is the epoch's last."""
        self.session.begin()
        self.session.micro()
        trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = self.session.is_at_end

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Gradients are complete, unscaled, and not yet clipped."""
        self._is_held = not self.session.may_update(self.session.reduced())
        self._is_decided = True
        self._scaler_before = None
        if self._is_held and self._scaler is not None:
            self._scaler_before = self._scaler.state_dict()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The schedulers have been stepped; if the optimizer was due, so is the end of the step."""
        if not self._is_decided:
            return
        self._is_decided = False
        if self._scaler_before is not None:
            # The trainer has updated it after the held step.
            self._scaler.load_state_dict(self._scaler_before)
        self.session.end()

    # --- handing over

    def _take(self) -> None:
        trainer, module, optimizer = self.trainer, self.module, self.trainer.optimizers[0]
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UsageError(
                "LBFGS runs forward and backward several times a step, which is no chain of stages"
            )
        self._watch_losses()
        self._hold_optimizer(optimizer)
        self._hold_schedulers()
        reducer = trainer.strategy.model
        if not isinstance(reducer, torch.nn.parallel.DistributedDataParallel):
            reducer = None
        clip = 0.0
        if trainer.gradient_clip_algorithm != "value":
            clip = float(trainer.gradient_clip_val or 0.0)
        num_micro = trainer.accumulate_grad_batches
        hparams = hparams_of(optimizer, clip=clip, num_micro=num_micro, seed=self._seed)
        precision = PRECISIONS.get(str(trainer.precision), str(trainer.precision))
        capabilities = {"kernel=math"}
        if precision in ("fp32", "bf16", "fp16"):
            capabilities.add("precision=fp32")
        self.session.take(
            Parts(
                model=module,
                optimizer=optimizer,
                source=self.source,
                num_micro=num_micro,
                scheduler=self.progress,
                scaler=self._scaler,
                reducer=reducer,
                max_norm=clip,
                hparams=hparams,
                schedule=self._schedule,
                config={
                    "hparams": {**hparams, "module": dict(module.hparams)},
                    "model": repr(module),
                },
                precision=precision,
                passes=self._passes,
                capabilities=frozenset(capabilities),
            )
        )

    @property
    def _scaler(self) -> Any:
        return getattr(self.trainer.precision_plugin, "scaler", None)

    def _watch_losses(self) -> None:
        run = self.module.training_step

        @wraps(run)
        def training_step(*args: Any, **kwargs: Any) -> Any:
            output = run(*args, **kwargs)
            batch = (*args, *kwargs.values())[0]
            self._tell_loss(output, batch)
            return output

        self.module.training_step = training_step  # type: ignore[method-assign]

    def _tell_loss(self, output: Any, batch: Any) -> None:
        parts = {"loss": output}
        if isinstance(output, Mapping):
            parts = dict(output)
        if "loss_sum" in parts:
            self.session.loss(
                parts["loss_sum"], parts["num_tokens"], per_sample_B=parts.get("per_sample")
            )
            return
        mean = parts.get("loss")
        if mean is None:
            mean = torch.tensor(torch.nan)
        tell_mean(self.session, mean, batch)

    def _hold_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        take_step = optimizer.step

        @wraps(take_step)
        def step(closure: Callable[[], Any] | None = None) -> Any:
            value = None
            if closure is not None:
                with torch.enable_grad():
                    value = closure()  # `on_before_optimizer_step` is its last act
            if not self._is_held:
                take_step()
                self.session.updated()
            return value

        optimizer.step = step  # type: ignore[method-assign]

    def _hold_schedulers(self) -> None:
        take_step = self.module.lr_scheduler_step
        by_step = set()
        for config in self.trainer.lr_scheduler_configs:
            if config.interval == "step":
                by_step.add(id(config.scheduler))

        @wraps(take_step)
        def lr_scheduler_step(scheduler: Any, metric: Any) -> None:
            if not (self._is_held and id(scheduler) in by_step):
                take_step(scheduler, metric)

        self.module.lr_scheduler_step = lr_scheduler_step  # type: ignore[method-assign]

    # --- one pass that changes nothing

    def _passes(self, batches: Sequence[Any], overrides: Overrides) -> None:
        """Forward and backward as `_AutomaticOptimization` does them; nothing is logged."""
        trainer, module, strategy = self.trainer, self.module, self.trainer.strategy
        takes_index = len(inspect.signature(self._run).parameters) > 1
        with ExitStack() as stack:
            for context in _overridden(trainer, overrides):
                stack.enter_context(context)
            stack.enter_context(_replaced(module, log=_nothing, log_dict=_nothing))
            for number, given in enumerate(batches):
                batch = trainer.precision_plugin.convert_input(given)
                batch = strategy.batch_to_device(
                    module.on_before_batch_transfer(batch, 0), dataloader_idx=0
                )
                block = getattr(strategy, "block_backward_sync", None)
                is_last = number + 1 == len(batches)
                with nullcontext() if is_last or block is None else block():
                    self.session.micro()
                    arguments = [batch]
                    if takes_index:
                        arguments.append(number)
                    loss = strategy.training_step(*arguments)
                    if isinstance(loss, Mapping):
                        loss = loss["loss"]
                    if isinstance(loss, Tensor):
                        strategy.backward(
                            loss / trainer.accumulate_grad_batches, trainer.optimizers[0]
                        )


def _shared_out(loader: DataLoader[Any], trainer: Trainer) -> DataLoader[Any]:
    """The loader with this rank's share of the data, as the trainer itself would make it."""
    if trainer.world_size == 1 or isinstance(loader.sampler, DistributedSampler):
        return loader
    sampler: DistributedSampler[Any] = DistributedSampler(
        loader.dataset,
        **(trainer.distributed_sampler_kwargs or {}),
        shuffle=isinstance(loader.sampler, RandomSampler),
    )
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        worker_init_fn=loader.worker_init_fn,
    )


def _overridden(trainer: Trainer, overrides: Overrides) -> Iterator[AbstractContextManager[Any]]:
    if overrides.precision == "fp32":
        yield _replaced(trainer.precision_plugin, forward_context=nullcontext)
    if overrides.kernel == "math":
        yield torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """In place of `self.log`, outside of the trainer's loop."""


def _replaced(target: object, **attributes: Any) -> ExitStack:
    """Attributes of this one object, until the context ends."""
    stack = ExitStack()
    for name, value in attributes.items():
        setattr(target, name, value)
        stack.callback(delattr, target, name)
    return stack
