"""The Hugging Face `Trainer`, recorded, guarded, saved and replayed: its own loop runs, we listen.

It never re-implements the inner loop and never changes a loss, a gradient or a batch.

    def make_trainer(run):  # builds everything; runs in production and in every replay
        args = TrainingArguments(run / "hf", …)
        return Trainer(model=…, args=args, train_dataset=…, data_collator=…)

    job = HfJob(make_trainer, policy=Policy())
    factory = job.harness

    if __name__ == "__main__":
        job.train(Path("run"))

Generations are saved where the trainer saves (`save_strategy`, `save_steps`), or every `save_every`
steps, and the job resumes from them, not by `resume_from_checkpoint`. The norm and the gradients
are taken before the trainer clips, and the loss of every micro-batch before it is averaged over
`logging_steps` and before `logging_nan_inf_filter` hides a NaN.

- Data: a map-style data set (`source` says how it is read); not `dispatch_batches`, not an
  `IterableDataset`.
- Parallelism: one process, and DDP. FSDP, DeepSpeed, tensor and context parallelism, and fp16 are
  untested.
- In a replay the callbacks of `transformers.integrations` (trackers) are left out and nothing is
  saved; evaluation runs, since it may draw random numbers. `state.epoch` of an epoch that was
  resumed midway is only near.
- A trial that leaves a step out just before an epoch whose last step is short cannot be run.

Written against transformers 5.24: it wraps `Trainer._run_epoch`, which is private, to begin in the
middle of an epoch.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback

from spiketriage.errors import UsageError
from spiketriage.train.adapters import hf_settings
from spiketriage.train.adapters.gate import gate
from spiketriage.train.adapters.hf_losses import counted_labels, per_sample, shifts_labels
from spiketriage.train.adapters.job import Job
from spiketriage.train.adapters.session import Session
from spiketriage.train.adapters.source import Source
from spiketriage.train.adapters.state import Parts
from spiketriage.train.generations.retention import Retention
from spiketriage.train.guarding.guard import Policy
from spiketriage.train.harness import Overrides
from spiketriage.train.recording.recorder import BUDGET_SHARE

FILTER_WARNING = (
    "logging_nan_inf_filter is on: the trainer's own log shows the mean of earlier losses "
    "in place of a NaN. "
    "The records of spiketriage do not; set logging_nan_inf_filter=False to see it in the log, too."
)


class HfJob(Job):
    """A job whose objects `make_trainer(run)` builds: a `Trainer` that has not trained yet."""

    def __init__(
        self,
        make_trainer: Callable[[Path], Trainer],
        *,
        policy: Policy | None = None,
        save_every: int | None = None,
        retention: Retention | None = None,
        budget_share: float | None = BUDGET_SHARE,
    ) -> None:
        def loop_in(run: Path) -> Callable[[Session], None]:
            return lambda session: _run(make_trainer, run, session)

        super().__init__(
            make_trainer,
            loop_in,
            policy=policy,
            save_every=save_every,
            retention=retention,
            budget_share=budget_share,
        )


def _run(make_trainer: Callable[[Path], Trainer], run: Path, session: Session) -> None:
    if not session.feed.acts and os.environ.get("WORLD_SIZE") == "1":
        # The desk's launcher sets it; a lone process would be wrapped in DDP.
        os.environ.pop("LOCAL_RANK", None)
    trainer = make_trainer(run)
    _Attached(trainer, session)
    trainer.train()


class _Loader:
    """Stands where the trainer expects its data loader, and gives what the session feeds."""

    def __init__(self, session: Session, source: Source, dataset: Any) -> None:
        self._session, self._source, self.dataset = session, source, dataset

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        return self._session.epoch()


class _Attached:
    """A trainer whose instance tells a session what happens."""

    def __init__(self, trainer: Trainer, session: Session) -> None:
        if not hasattr(trainer, "_run_epoch"):
            raise UsageError(
                f"transformers {transformers.__version__} runs its epochs in another way "
                "than this adapter knows",
                hint="pip install 'transformers>=5.24'",
            )
        self.trainer: Any = trainer
        self.session = session
        self._own_loader: Any = trainer.get_train_dataloader
        self._own_loss: Any = trainer.compute_loss
        self._own_epoch: Any = trainer._run_epoch
        self._source: Source
        self._is_shifted = shifts_labels(self.trainer)
        for name in ("get_train_dataloader", "compute_loss", "_run_epoch"):
            setattr(trainer, name, getattr(self, f"_{name.strip('_')}"))
        if not session.feed.acts:
            _leave_alone(self.trainer)
        # First of all callbacks: what the user's own ones change after a load is then seen.
        self.trainer.callback_handler.callbacks.insert(0, _Listener(self))

    # --- before the first step

    def _get_train_dataloader(self) -> _Loader:
        own = self._own_loader()
        self._source = Source(own, seed=self.trainer.args.data_seed or self.trainer.args.seed)
        return _Loader(self.session, self._source, own.dataset)

    def begin(self) -> None:
        """All objects are built: hand them to the session, and let the trainer go on from there."""
        trainer, session = self.trainer, self.session
        session.take(self._parts())
        step = session.last_step
        trainer.state.global_step = step
        trainer._globalstep_last_logged = trainer._initial_global_step = step
        gate(trainer.optimizer, lambda: session.is_taken)
        self._wrap_clipping()
        if session.feed.acts and trainer.args.logging_nan_inf_filter:
            session.feed.recorder.notice("off", FILTER_WARNING)
            warnings.warn(FILTER_WARNING, stacklevel=2)

    def _parts(self) -> Parts:
        trainer = self.trainer
        reducer = trainer.model_wrapped
        if not isinstance(reducer, DistributedDataParallel):
            reducer = None
        return Parts(
            model=trainer.model,
            optimizer=getattr(trainer.optimizer, "optimizer", trainer.optimizer),
            source=self._source,
            num_micro=trainer.args.gradient_accumulation_steps,
            scheduler=trainer.lr_scheduler,
            scaler=trainer.accelerator.scaler,
            reducer=reducer,
            max_norm=float(trainer.args.max_grad_norm),
            hparams=hf_settings.hparams(trainer),
            schedule=hf_settings.schedule(trainer),
            config=hf_settings.config(trainer),
            precision=hf_settings.precision(trainer),
            kernel=hf_settings.kernel(trainer),
            passes=self._passes,
            capabilities=self._capabilities(),
        )

    def _wrap_clipping(self) -> None:
        accelerator = self.trainer.accelerator
        own = accelerator.clip_grad_norm_

        def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: int = 2) -> Any:
            self.look_at_gradients()
            return own(parameters, max_norm, norm_type)

        accelerator.clip_grad_norm_ = clip_grad_norm_

    # --- in a step

    def _run_epoch(self, **named: Any) -> Any:
        trainer, left = self.trainer, self.session.start_epoch()
        if self.session.last_step >= trainer.state.max_steps:
            trainer.control.should_training_stop = True
            return None
        named["epoch"] = self.session.epoch_number
        named["steps_in_epoch"] = left
        named["num_update_steps_per_epoch"] = math.ceil(
            left / trainer.args.gradient_accumulation_steps
        )
        return self._own_epoch(**named)

    def _compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
        **named: Any,
    ) -> Any:
        if not self.session.is_open:  # an evaluation
            return self._own_loss(
                model,
                inputs,
                return_outputs=return_outputs,
                num_items_in_batch=num_items_in_batch,
                **named,
            )
        labels = counted_labels(inputs, is_shifted=self._is_shifted)
        self.session.micro()
        loss, outputs = self._own_loss(
            model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch, **named
        )
        with torch.no_grad():
            self._tell_loss(loss, outputs, labels, num_items_in_batch)
        if return_outputs:
            return (loss, outputs)
        return loss

    def _tell_loss(self, loss: Tensor, outputs: Any, labels: Tensor | None, num_items: Any) -> None:
        trainer = self.trainer
        num_tokens = torch.ones((), device=loss.device)
        if labels is not None:
            num_tokens = labels.ne(-100).sum()
        is_scaled = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None
        loss_sum = loss.detach() * num_tokens  # the loss is the mean of this micro-batch
        if num_items is not None and is_scaled:
            # The loss is this micro-batch's part of the mean of the step, on all ranks perhaps.
            loss_sum = loss.detach() * num_items
            if trainer.args.average_tokens_across_devices:
                loss_sum = loss_sum / trainer.accelerator.num_processes
        self.session.loss(loss_sum, num_tokens, per_sample_B=per_sample(outputs, labels))

    def look_at_gradients(self) -> None:
        """Gradients as reduced, unscaled and not yet clipped; the guard's word on the update."""
        session = self.session
        if session.is_open and not session.is_judged:
            self.trainer.accelerator.unscale_gradients()
            session.may_update(session.reduced())

    def optimizer_stepped(self) -> None:
        """The optimizer has stepped, or was held back; gradients and rate are still the step's."""
        if self.session.is_taken:
            self.session.updated()

    def end_step(self) -> None:
        """The step is over; after the last one, save what is due before the trainer finalises."""
        self.session.end()
        if self.session.last_step >= self.trainer.state.max_steps:
            self.session.finish()

    def save(self) -> None:
        """The trainer saves: a generation is due, at the next moment between steps."""
        self.session.is_save_due = True
        if self.session.last_step >= self.trainer.state.max_steps:
            self.session.finish()

    # --- probes

    def _capabilities(self) -> frozenset[str]:
        model = self.trainer.model
        capabilities = set()
        if hasattr(model, "set_attn_implementation"):
            capabilities.add("kernel=math")
        is_fp32 = all(param.dtype is torch.float32 for param in model.parameters())
        is_mixed = self.trainer.accelerator.mixed_precision not in (None, "no")
        if is_fp32 and (not is_mixed or hasattr(model, "_original_forward")):
            capabilities.add("precision=fp32")
        return frozenset(capabilities)

    def _passes(self, batches: Sequence[Any], overrides: Overrides) -> None:
        trainer = self.trainer
        model, accelerator = trainer.model_wrapped, trainer.accelerator
        samples, num_items = trainer.get_batch_samples(
            iter(batches), len(batches), trainer.args.device
        )
        trainer.current_gradient_accumulation_steps = len(samples)
        with _overridden(trainer, overrides):
            for number, inputs in enumerate(samples):
                is_last = number == len(samples) - 1
                accelerator.gradient_state._set_sync_gradients(is_last)
                with nullcontext() if is_last else accelerator.no_sync(model=model):
                    trainer.training_step(model, inputs, num_items)
        if accelerator.scaler is not None:
            accelerator.unscale_gradients()
            accelerator.scaler.update(accelerator.scaler.get_scale())


class _Listener(TrainerCallback):
    """The trainer's events, passed on."""

    def __init__(self, attached: _Attached) -> None:
        self._attached = attached

    def on_train_begin(self, *args: Any, **named: Any) -> None:
        self._attached.begin()

    def on_step_begin(self, *args: Any, **named: Any) -> None:
        self._attached.session.begin()

    def on_pre_optimizer_step(self, *args: Any, **named: Any) -> None:
        # a trainer that does not clip may not ask for a norm either
        self._attached.look_at_gradients()

    def on_optimizer_step(self, *args: Any, **named: Any) -> None:
        self._attached.optimizer_stepped()

    def on_step_end(self, *args: Any, **named: Any) -> None:
        self._attached.end_step()

    def on_save(self, *args: Any, **named: Any) -> None:
        self._attached.save()


def _leave_alone(trainer: Any) -> None:
    """A replay writes no checkpoint and calls no tracker."""
    trainer.args.save_strategy = type(trainer.args.save_strategy)("no")
    trainer.args.load_best_model_at_end = False
    handler = trainer.callback_handler
    for callback in list(handler.callbacks):
        if ".integrations." in f"{type(callback).__module__}.":
            handler.callbacks.remove(callback)


@contextmanager
def _overridden(trainer: Any, overrides: Overrides) -> Iterator[None]:
    model = trainer.model
    kernel = hf_settings.kernel(trainer)
    forward = model.__dict__.get("forward")
    if overrides.kernel == "math":
        model.set_attn_implementation("eager")
    if overrides.precision == "fp32" and hasattr(model, "_original_forward"):
        model.forward = model._original_forward
    try:
        yield
    finally:
        if overrides.kernel == "math":
            model.set_attn_implementation(kernel)
        if forward is not None:
            model.forward = forward
