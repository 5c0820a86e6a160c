"""Hands jobs to any `concurrent.futures` executor, a window at a time; results come in order.

This module never hands out all jobs at once, and never lets an executor that breaks take the other
results with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

NOT_MEASURED = "not measured ("
# jobs handed out at once: enough for any pool of one machine, and nothing beside what they read
IN_FLIGHT = 256
POLL_S = 5.0


class RemoteExecutor(Executor):
    """An executor on other machines, which knows how much it can take and can tell it is gone."""

    in_flight: int = IN_FLIGHT

    def trouble(self) -> str:
        """Why no result will come any more; empty while one may."""
        return ""

    def why(self, error: BaseException) -> str:
        """What an error of a job means."""
        return _why(error)


class _Result(Protocol):
    @property
    def problem(self) -> str: ...


J = TypeVar("J")
R = TypeVar("R", bound=_Result)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Handed(Generic[J, R]):
    """A job and its future; none where the executor was gone before."""

    job: J
    future: Future[R] | None


def spread(
    function: Callable[[J], R],
    jobs: Iterable[J],
    executor: Executor,
    *,
    lost: Callable[[J, str], R],
) -> Iterator[R]:
    """The result of each job in turn; `lost` makes one of a job that no worker could finish.

    What a worker could not read is done again here, so that a machine without its mount accuses
    nobody. When this ends early, for instance by Ctrl-C, what was handed out and has not begun is
    cancelled.
    """
    window = _Window(function, executor, lost)
    try:
        for job in jobs:
            if window.is_full:
                yield window.take()
            window.hand_out(job)
        while window.handed:
            yield window.take()
    finally:
        window.cancel()


def not_measured(path: str, reason: str) -> str:
    """The sentence of a file that nobody has measured, which is no damage."""
    return f"{NOT_MEASURED}{reason.replace('): ', '; ')}): {path}"


def unmeasured_path(problem: str) -> str:
    """The path of a file, if the problem is only that nobody has measured it; else nothing."""
    if problem.startswith(NOT_MEASURED):
        return problem.partition("): ")[2]
    return ""


class _Window(Generic[J, R]):
    """Jobs that are handed out and not taken back yet, in order."""

    def __init__(
        self, function: Callable[[J], R], executor: Executor, lost: Callable[[J, str], R]
    ) -> None:
        self.handed: deque[_Handed[J, R]] = deque()
        self._function = function
        self._executor = executor
        self._lost = lost
        self._gone = ""

    @property
    def is_full(self) -> bool:
        size = IN_FLIGHT
        if isinstance(self._executor, RemoteExecutor):
            size = self._executor.in_flight
        return len(self.handed) >= size

    def hand_out(self, job: J) -> None:
        future = None
        if not self._gone:
            try:
                future = self._executor.submit(self._function, job)
            except RuntimeError as error:  # broken, or shut down
                self._gone = self._why(error)
        self.handed.append(_Handed(job=job, future=future))

    def take(self) -> R:
        """The result of the job that was handed out first."""
        handed = self.handed.popleft()
        job, future = handed.job, handed.future
        if future is None:
            return self._lost(job, self._gone)
        while not wait((future,), timeout=0 if self._gone else POLL_S).done:
            self._gone = self._gone or self._trouble()
            if self._gone:
                return self._lost(job, self._gone)
        if future.cancelled():  # not by us
            self._gone = self._gone or self._trouble() or "the executor was stopped"
            return self._lost(job, self._gone)
        error = future.exception()
        if error is not None:
            if isinstance(error, BrokenExecutor):
                self._gone = self._gone or self._why(error)
            return self._lost(job, self._why(error))
        result = future.result()
        if result.problem:
            return self._function(job)
        return result

    def cancel(self) -> None:
        if self._gone:
            return
        for handed in self.handed:
            if handed.future is not None:
                handed.future.cancel()

    def _trouble(self) -> str:
        if isinstance(self._executor, RemoteExecutor):
            return self._executor.trouble()
        return ""

    def _why(self, error: BaseException) -> str:
        if isinstance(self._executor, RemoteExecutor):
            return self._executor.why(error)
        return _why(error)


def _why(error: BaseException) -> str:
    words = str(error).partition("\n")[0]
    if words:
        return f"{type(error).__name__}: {words:.200}"
    return type(error).__name__
