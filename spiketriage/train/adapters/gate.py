"""How to hold back one update of an optimizer that accelerate has wrapped, as an overflow would.

It never steps an optimizer on its own account.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def gate(optimizer: Any, may_update: Callable[[], bool]) -> None:
    """Let `optimizer.step` (an `AcceleratedOptimizer`) do nothing while `may_update` says no.

    Then `step_was_skipped` is true, so that whoever asks leaves the scheduler alone; parameters,
    moments and the loss scale stay as they are. With a loss scale (untested: no CPU has one in
    accelerate) the scaler forgets that it unscaled.
    """
    step = optimizer.step

    @wraps(step)  # a scheduler of torch has left its mark on it, and looks for that
    def gated(closure: Any = None) -> None:
        if may_update():
            if optimizer.scaler is None:
                optimizer._is_overflow = False  # only a scaler would take it back
            step(closure)
            return
        optimizer._is_overflow = True
        if optimizer.scaler is not None:
            optimizer.scaler.update(optimizer.scaler.get_scale())

    optimizer.step = gated
