"""Lightning: the `Trainer`'s own loop, recorded, guarded and replayed, through `loop.fit`.

It never replaces a hook of the user's module for good, and never computes a loss itself.

    def train(loop):  # builds everything; runs in production and in every replay
        module, loader = …
        trainer = Trainer(accumulate_grad_batches=2, gradient_clip_val=1.0, max_steps=1000, …)
        loop.fit(trainer, module, loader)  # in place of trainer.fit(module, loader)

    job = LightningJob(train, save_every=100, policy=Policy())
    factory = job.harness

    if __name__ == "__main__":
        job.train(Path("run"))

`training_step` may return `{"loss": mean, "loss_sum": …, "num_tokens": …, "per_sample": …}`; from
the mean alone the sum is taken over the valid labels of the batch, or over its rows. Automatic
optimization with one optimizer only.

What a replay rests on (Lightning 2.6, `training_epoch_loop.py`):

- A loader of known length is asked for one batch at a time, inside `advance`, when everything of
  the batch before is over: schedulers, validation, hooks of the epoch's end. There the loop pauses,
  and there its counters are put back: it then goes on as if it had never stopped. (Lightning's own
  resume takes another way at first: it counts a batch twice for its loggers, and leaves out a
  plateau's scheduler at the end of the epoch.)
- The closure with forward and backward runs inside `optimizer.step`, and the guard's word comes at
  its end. So a step is held back around `optimizer.step` itself, which is then not called: no
  moment, no counter inside can change.
- `global_step` counts a step that was held back, schedulers with `interval="step"` do not.
- The number of batches of an epoch need not divide by `accumulate_grad_batches`: Lightning steps on
  the last one, with its loss still divided by the whole number.
- After a rollback that left out all that an epoch had left, that epoch ends without its validation.

Hooks that run before the first batch (`on_fit_start`, `on_train_start`, `on_train_epoch_start`) see
counters of 0 in a run that goes on from a generation. Sums that Lightning keeps over an epoch for
its loggers start anew there, and what a plateau's scheduler is told of them with them.
`on_train_batch_start` must not return -1. DDP is tested by hand on two ranks; it lays out its
buckets anew after its first step, so that on more ranks a sum may round otherwise. Half precision
with a loss scale, FSDP and DeepSpeed strategies are untested.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, GradientAccumulationScheduler, ProgressBar
from lightning.pytorch.callbacks.weight_averaging import WeightAveraging
from torch.utils.data import DataLoader

from spiketriage.errors import UsageError
from spiketriage.train.adapters.job import LoopJob
from spiketriage.train.adapters.lightning_hooks import Hooks
from spiketriage.train.adapters.session import Session


class LightningLoop:
    """What the user's function is given."""

    def __init__(self, session: Session, run: Path) -> None:
        self._session, self.run = session, run

    def fit(
        self,
        trainer: Trainer,
        module: LightningModule,
        train_dataloader: DataLoader[Any],
        val_dataloaders: Any = None,
        *,
        schedule: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        """`trainer.fit(module, train_dataloader, val_dataloaders)` from the newest generation on.

        `schedule` is the learning rate's, as `diagnosis.checks.lr_schedule` knows it; `seed` fixes
        the order of the data. In a replay the trainer's loggers, checkpoints and progress bars are
        off.

        Raises:
            UsageError: the trainer or module works in a way that cannot be replayed; said before
            any step.
        """
        _require_replayable(trainer, module)
        callbacks = _callbacks(trainer)
        if not self._session.feed.acts:
            trainer.loggers = []
            for callback in list(callbacks):
                if isinstance(callback, Checkpoint | ProgressBar):
                    callbacks.remove(callback)
        hooks = Hooks(self._session, trainer, module, train_dataloader, schedule or {}, seed)
        callbacks.insert(0, hooks)  # before whatever other callbacks do to gradients
        trainer.fit(module, hooks.batches, val_dataloaders)
        if hooks.has_trained:
            hooks.progress.stand(is_epoch_over=self._session.num_left <= 0)


def _require_replayable(trainer: Any, module: LightningModule) -> None:
    refusals = {
        "manual optimization: a step cannot be told from its batches": (
            not module.automatic_optimization
        ),
        "GradientAccumulationScheduler: a step must have one number of micro-batches": any(
            isinstance(callback, GradientAccumulationScheduler)
            and callback.going_to_accumulate_grad_batches()
            for callback in _callbacks(trainer)
        ),
        (
            "limit_train_batches, overfit_batches and fast_dev_run: an epoch must end where "
            "its data end"
        ): (trainer.limit_train_batches != 1.0 or trainer.overfit_batches > 0),
        "WeightAveraging: a generation would not hold its averages": any(
            isinstance(callback, WeightAveraging) for callback in _callbacks(trainer)
        ),
    }
    for text, is_so in refusals.items():
        if is_so:
            raise UsageError(f"this Lightning run cannot be replayed: {text}")


def _callbacks(trainer: Any) -> list[Any]:
    """The trainer's own list, which its type does not show."""
    callbacks: list[Any] = trainer.callbacks
    return callbacks


class LightningJob(LoopJob):
    """A job whose loop is `loop.fit(…)` in the user's function `train(loop)`; see above."""

    LOOP = LightningLoop
