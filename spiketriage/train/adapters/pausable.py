"""A training loop that can be paused between steps, so that a replay runs production's very code.

It never runs the loop and its caller at the same time: one of the two always waits for the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import torch

from spiketriage.errors import UsageError


class Ended(BaseException):
    """Unwinds a paused loop that is no longer needed, past its own `except Exception`."""


class PausableLoop:
    """`loop` in a thread of its own: it gives way when it calls `pause`, and goes on at `resume`.

    What torch keeps by thread starts afresh there, as in a new process: gradients on, no autocast.
    """

    def __init__(self, loop: Callable[[], object]) -> None:
        self._loop = loop
        self._orders: SimpleQueue[bool] = SimpleQueue()
        self._answers: SimpleQueue[BaseException | None] = SimpleQueue()
        self._num_threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._main, name="pausable loop", daemon=True)
        self._is_started = self.is_over = False

    def resume(self) -> None:
        """Let the loop run until it pauses or ends; raises what it raised.

        Raises:
            UsageError: the loop has ended already.
        """
        if self.is_over:
            raise UsageError("the training loop has ended: it has no further step")
        if self._is_started:
            self._orders.put(True)
        else:
            self._is_started = True
            self._thread.start()
        error = self._answers.get()
        if error is not None:
            raise error

    def pause(self) -> None:
        """Give way until the next `resume`; called by the loop itself."""
        self._answers.put(None)
        if not self._orders.get():
            raise Ended

    def end(self) -> None:
        """Unwind the loop where it stands, and wait for it."""
        if self._is_started and not self.is_over:
            self._orders.put(False)
            self._answers.get()
            self._thread.join()
        self.is_over = True

    def _main(self) -> None:
        torch.set_num_threads(self._num_threads)  # OpenMP counts by thread
        error: BaseException | None = None
        try:
            self._loop()
        except Ended:
            pass
        except BaseException as raised:  # noqa: BLE001 - raised again where the caller waits
            error = raised
        self.is_over = True
        self._answers.put(error)
