"""Jobs done in order by one background thread: a disk or a network may hang, and nobody waits.

It never blocks whoever hands it a job and never grows without bound: what does not fit is refused
and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

Job = Callable[[], bool]
_LOG = logging.getLogger(__name__)


class BackgroundQueue:
    """A bounded queue and the daemon thread behind it.

    The thread starts with the first job, or at once where there is a `tick`. A job returns whether
    it succeeded; one that fails or raises is counted in `num_failed`. `tick` is called by the same
    thread between jobs, at most every `interval_s`.
    """

    def __init__(
        self,
        name: str,
        *,
        max_jobs: int = 256,
        tick: Callable[[], object] | None = None,
        interval_s: float = 1.0,
    ) -> None:
        self.name, self.max_jobs, self.interval_s = name, max_jobs, interval_s
        self.num_refused = 0
        self.num_failed = 0
        self._tick = tick
        self._jobs: deque[Job] = deque()
        self.num_put = 0
        self._num_done = 0
        self._closing = False
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        if tick is not None:
            with self._condition:
                self._start()

    @property
    def num_lost(self) -> int:
        """Jobs that were refused or that failed."""
        return self.num_refused + self.num_failed

    @property
    def num_waiting(self) -> int:
        """Jobs that were taken and are not done, the one in progress included."""
        return self.num_put - self._num_done

    def put(self, job: Job) -> int | None:
        """Queue `job` and return its number, or None when the queue is full or closing.

        It never waits for a job.
        """
        with self._condition:
            if self._closing or self.num_waiting >= self.max_jobs:
                self.num_refused += 1
                return None
            self._start()
            self._jobs.append(job)
            self.num_put += 1
            self._condition.notify_all()
            return self.num_put

    def wait(self, number: int, timeout_s: float) -> bool:
        """Whether job `number` was done within `timeout_s` seconds."""
        with self._condition:
            return self._condition.wait_for(lambda: self._num_done >= number, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Take no more jobs; returns whether the thread was through within `timeout_s`."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=f"spiketriage-{self.name}", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        due_s = time.monotonic() + self.interval_s
        while True:
            with self._condition:
                patience_s: float | None = None
                if self._tick is not None:
                    patience_s = max(0.0, due_s - time.monotonic())
                self._condition.wait_for(lambda: self._jobs or self._closing, patience_s)
                if self._closing and not self._jobs:
                    return
                job: Job | None = None
                if self._jobs:
                    job = self._jobs.popleft()
            if job is not None:
                self._do(job)
            if self._tick is not None and time.monotonic() >= due_s:
                self._try(self._tick)
                due_s = time.monotonic() + self.interval_s

    def _do(self, job: Job) -> None:
        succeeded = self._try(job)
        with self._condition:
            self.num_failed += not succeeded
            self._num_done += 1
            self._condition.notify_all()

    def _try(self, work: Callable[[], object]) -> bool:
        try:
            return bool(work())
        except Exception as error:  # noqa: BLE001 - nothing here may end a training job
            with suppress(Exception):
                _LOG.warning("%s: %s: %s", self.name, type(error).__name__, error)
            return False
