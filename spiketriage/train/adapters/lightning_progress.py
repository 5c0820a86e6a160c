"""Where a Lightning `Trainer` stands, as a state to save: schedulers, counters, callbacks.

It never steps a scheduler and never runs a loop.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Trainer


class Progress:
    """The state of `trainer` beside model, optimizer and scaler.

    It can be put back while the trainer's loop asks for a batch. Callbacks (early stopping, say)
    keep what their `state_dict` holds.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer: Any = trainer
        self._has_place = False

    @property
    def last_epoch(self) -> int | None:
        """The counter of the first scheduler that is stepped with the optimizer."""
        for config in self._configs:
            if config.interval == "step":
                counter: int = config.scheduler.last_epoch
                return counter
        return None

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON, but for what callbacks may hold."""
        callbacks: dict[str, Any] = {}
        for callback in self._trainer.callbacks:
            state = callback.state_dict()
            if state:
                callbacks[callback.state_key] = state
        return {
            "schedulers": [config.scheduler.state_dict() for config in self._configs],
            "loops": copy.deepcopy(self._trainer.fit_loop.state_dict()),
            "callbacks": callbacks,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from there; to be called while the loop asks for a batch, as `state_dict` was."""
        for config, state in zip(self._configs, saved["schedulers"], strict=True):
            config.scheduler.load_state_dict(state)
        for callback in self._trainer.callbacks:
            state = saved["callbacks"].get(callback.state_key)
            if state:
                callback.load_state_dict(state)
        if not self._has_place:
            # Once: by a second time, the loop may have gone on to the next epoch.
            self._has_place = True
            self._put_counters(saved["loops"])

    def stand(self, *, is_epoch_over: bool) -> None:
        """After `fit`, let the counters stand as if the loop asked for one more batch."""
        fit_loop = self._trainer.fit_loop
        if not is_epoch_over:
            # `max_steps` ended it in the midst of an epoch, which Lightning counts as a whole one.
            for counts in (fit_loop.epoch_progress.total, fit_loop.epoch_progress.current):
                counts.processed -= 1
                counts.completed -= 1
            return
        fit_loop.epoch_progress.increment_ready()
        fit_loop.epoch_progress.increment_started()
        fit_loop.epoch_loop.batch_progress.reset_on_run()
        fit_loop.epoch_loop.scheduler_progress.reset_on_run()
        fit_loop.epoch_loop.automatic_optimization.optim_progress.reset_on_run()
        fit_loop.epoch_loop.val_loop.batch_progress.total.reset()

    def _put_counters(self, loops: Mapping[str, Any]) -> None:
        fit_loop = self._trainer.fit_loop
        fit_loop.load_state_dict(copy.deepcopy(dict(loops)))
        # To the loops this is no restart: they stand where they stood, and a restart would take
        # other ways.
        for loop in (fit_loop, fit_loop.epoch_loop, fit_loop.epoch_loop.val_loop):
            loop.on_iteration_done()

    @property
    def _configs(self) -> list[Any]:
        return list(self._trainer.lr_scheduler_configs)
