"""Reads foreign pickles, Arrow and Parquet in one child process with limits on CPU time and memory.

What a hostile file can do there is to end the child, which costs that file and nothing else. This
module never takes anything from the child but records of ours and plain values.
"""

from __future__ import annotations

import os
import pickle
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from spiketriage import children
from spiketriage.errors import EvidenceError
from spiketriage.foreign_text import printable
from spiketriage.readers import limited_answer

P = ParamSpec("P")
R = TypeVar("R")
LENGTH_BYTES = 8
_PROGRAM = "from spiketriage.readers.limited_child import serve; serve()"
_CPU_SIGNALS = (signal.SIGXCPU, signal.SIGPROF)


def limited(function: Callable[P, R]) -> Callable[P, R]:
    """Let `function` run in the child.

    It stands at the top of a module, takes plain values, and gives records of ours and what the
    inert unpickler makes. Its first argument says what is read: a path, or bytes with a `where`.

    Raises:
        EvidenceError: what the function raised, or the file ended the child.
    """

    @wraps(function)
    def ask(*args: P.args, **kwargs: P.kwargs) -> R:
        if _Child.is_here:
            return function(*args, **kwargs)
        request = pickle.dumps((function.__module__, function.__qualname__, args, kwargs))
        answer: R = _CHILD.answer(request, of=subject(args, kwargs))
        return answer

    return ask


def subject(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """What is read, for a sentence: the path, or what the caller says the bytes are."""
    return kwargs.get("where") or args[0]


class _Child:
    """The child: started when it is first needed, and again after a file has ended it."""

    is_here = False  # whether this very process is one

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: children.Guarded | None = None

    def answer(self, request: bytes, *, of: object) -> Any:
        """What the child gives or raises for `request`."""
        with self._lock:
            try:
                reply = _exchange(self._running(), request)
            except BaseException:  # an interrupt: the child may still be at work on that file
                self.end()
                raise
            if reply is None:
                status = self.end()
                raise _ended(of, status)
        return limited_answer.decoded(reply)

    def end(self) -> int:
        """End the child, if there is one, and say how it ended."""
        process, self._process = self._process, None
        if process is None:
            return 0
        return process.end()

    def leave(self) -> None:
        """Forget a child of the process that this one was forked from: it answers that one."""
        self._lock = threading.Lock()
        process, self._process = self._process, None
        if process is not None:
            process.leave()

    def _running(self) -> children.Guarded:
        if self._process is not None and self._process.poll() is not None:
            self.end()
        if self._process is None:
            self._process = children.Guarded(
                children.python("-c", _PROGRAM),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._process


def _exchange(process: children.Guarded, request: bytes) -> bytes | None:
    """The reply to a request; None if the child ended before it gave one."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(len(request).to_bytes(LENGTH_BYTES, "little"))
        process.stdin.write(request)
        process.stdin.flush()
    except BrokenPipeError:
        return None
    head = process.stdout.read(LENGTH_BYTES)
    num_bytes = int.from_bytes(head, "little")
    reply = process.stdout.read(num_bytes)
    if len(head) < LENGTH_BYTES or len(reply) < num_bytes:
        return None
    return reply


def _ended(of: object, status: int) -> EvidenceError:
    """The sentence about a file that ended the child."""
    number = status - 128  # of a signal, as shells and guardians have it
    if number in _CPU_SIGNALS:
        how = "reading it took more CPU time than a file of its size is worth"
    elif number in set(signal.Signals):
        how = f"reading it ended the reader with {signal.Signals(number).name}"
    else:
        how = f"reading it ended the reader with status {status}"
    hint = ""
    if isinstance(of, Path):
        hint = f"sha256sum {shlex.quote(str(of))}  # is it the file that was written?"
    return EvidenceError(f"{printable(of)}: cannot be read: {how}", hint=hint)


_CHILD = _Child()
os.register_at_fork(after_in_child=_CHILD.leave)


@contextmanager
def cpu_bound(limit_s: float) -> Iterator[None]:
    """Let what is within take that much CPU time in the child, and none more; elsewhere as much."""
    if not _Child.is_here:
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, limit_s)  # whose signal ends a process that has no handler
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def enter() -> None:
    """Say that this process is the child: from here on, readers run where they are called."""
    _Child.is_here = True
