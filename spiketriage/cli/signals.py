"""How a signal ends a command: in order where it is listened to, and outright where it is not.

This module never undoes anything: a command that is ended outright is like one that was killed,
which every incident outlives.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from spiketriage.errors import Exit

# After a signal a command has the first for its last row, and the second is for its last words:
# together less than the two seconds in which every command ends.
ORDERLY_S, WORDS_S = 1.4, 0.2
EXITS = {signal.SIGINT: Exit.INTERRUPTED, signal.SIGTERM: Exit.TERMINATED}


class Ending:
    """A context in which the first signal ends what is done; those that follow change nothing.

    `code` is the exit code that the signal means, once there was one. `last_words` is called with
    it when what is done has not ended in time.
    """

    def __init__(self, last_words: Callable[[Exit], object]) -> None:
        self.code: Exit | None = None
        self._last_words = last_words
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Ending:
        # A handler runs between two lines of Python, and a query or a hung read may never come to
        # the next one. The number of the signal is in this pipe at once.
        told, teller = os.pipe()
        os.set_blocking(teller, False)
        threading.Thread(
            target=self._end_in_time, args=(told,), name="spiketriage-end", daemon=True
        ).start()
        signal.set_wakeup_fd(teller, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_let_go)
        for number in EXITS:
            if signal.getsignal(number) != signal.SIG_IGN:  # `nohup`, or a job in the background
                self._handlers[number] = signal.signal(number, self._begin)
        return self

    def __exit__(self, *error: object) -> None:
        if self.code is None:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def _begin(self, number: int, frame: FrameType | None) -> NoReturn:
        for other in EXITS:
            signal.signal(other, signal.SIG_IGN)
        self.code = EXITS[signal.Signals(number)]
        if self.code == Exit.INTERRUPTED:
            raise KeyboardInterrupt
        raise SystemExit(self.code)

    def _end_in_time(self, told: int) -> None:
        while (number := os.read(told, 1)[0]) not in EXITS:
            pass
        time.sleep(ORDERLY_S)
        code = EXITS[signal.Signals(number)]
        # In a thread of their own: whoever should read them may have stopped reading.
        words = threading.Thread(target=self._last_words, args=(code,), daemon=True)
        words.start()
        words.join(WORDS_S)
        os._exit(code)


def _let_go() -> None:
    """Leave the pipe to the parent of a fork: a signal to the child is none to the parent."""
    signal.set_wakeup_fd(-1)
