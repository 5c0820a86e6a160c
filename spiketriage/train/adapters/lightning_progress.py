"""Where a Lightning `Trainer` stands, as one more state to save and put back.

Schedulers, counters, callbacks.

It never steps a scheduler and never runs a loop.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Trainer


class Progress:
    """The state of `trainer` beside model, optimizer and scaler.

    While its loop asks for a batch, it can be put back.

    Callbacks (early stopping, for one) keep what their `state_dict` says.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer: Any = trainer
        self._has_place = False

    @property
    def last_epoch(self) -> int | None:
        """The counter of the first scheduler that is stepped with the optimizer."""
        counters = [one.scheduler.last_epoch for one in self._configs if one.interval == "step"]
        return counters[0] if counters else None

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON, but for what callbacks may hold."""
        return {
            "schedulers": [one.scheduler.state_dict() for one in self._configs],
            "loops": copy.deepcopy(self._trainer.fit_loop.state_dict()),
            "callbacks": {
                one.state_key: state
                for one in self._trainer.callbacks
                if (state := one.state_dict())
            },
        }

    def load_state_dict(self, told: Mapping[str, Any]) -> None:
        """Go on from there.

        To be called while the loop asks for a batch, where `state_dict` was taken.
        """
        for one, state in zip(self._configs, told["schedulers"], strict=True):
            one.scheduler.load_state_dict(state)
        for callback in self._trainer.callbacks:
            state = told["callbacks"].get(callback.state_key)
            if state:
                callback.load_state_dict(state)
        if (
            not self._has_place
        ):  # once: by a second time, the loop may have gone on to the next epoch
            self._has_place = True
            self._put_counters(told["loops"])

    def stand(self, *, is_epoch_over: bool) -> None:
        """After the end of `fit`.

        The counters as if the loop asked for one more batch, so that a run can go on.
        """
        fit_loop = self._trainer.fit_loop
        if (
            not is_epoch_over
        ):  # `max_steps` ended it in the midst of an epoch, which Lightning counts as a whole one
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
