"""The child in which foreign pickles, Arrow and Parquet are read: one request after the other.

This module never runs but in that child, and never asks for more CPU time or memory than a file of
the size is worth.
"""

from __future__ import annotations

import importlib
import math
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from typing import Any, BinaryIO

from spiketriage.errors import EvidenceError, SpiketriageError
from spiketriage.readers import limited, limited_answer

CPU_S = 20
BYTES_A_CPU_S = 1 << 20  # the slowest reader takes some 20 MB/s
MEMORY_SHARE = 2  # of the machine's memory, one part in so many


def serve() -> None:
    """Answer requests until there are none."""
    requests = sys.stdin.buffer
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no reply
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of ours when a command is stopped
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _bound_memory()
    limited.enter()
    while length := requests.read(limited.LENGTH_BYTES):
        request = requests.read(int.from_bytes(length, "little"))
        _send(replies, _reply(*pickle.loads(request)))  # ours: only the desk holds the other end


def _send(replies: BinaryIO, reply: bytes) -> None:
    replies.write(len(reply).to_bytes(limited.LENGTH_BYTES, "little"))
    replies.write(reply)
    replies.flush()


def _reply(module: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    function = getattr(importlib.import_module(module), name)
    _bound_cpu_time(_num_bytes(args))
    try:
        return limited_answer.encoded(function(*args, **kwargs))
    except SpiketriageError as error:
        return limited_answer.encoded_error(error)
    except (MemoryError, RecursionError) as error:
        if isinstance(error, MemoryError):
            how = "it takes more memory than a file of its size is worth"
        else:
            how = "it is nested deeper than any file of its kind"
        sentence = f"{limited.subject(args, kwargs)}: cannot be read: {how}"
        return limited_answer.encoded_error(EvidenceError(sentence))
    except Exception:  # noqa: BLE001  # a bug of ours, which the desk raises as one
        return limited_answer.encoded_bug(traceback.format_exc())


def _num_bytes(args: tuple[Any, ...]) -> int:
    """The size of what is read: of the bytes, or of the file."""
    total = 0
    for arg in args:
        if isinstance(arg, bytes):
            total += len(arg)
        elif isinstance(arg, os.PathLike):
            try:
                total += os.stat(arg).st_size
            except (OSError, ValueError):
                continue  # which the reader says
    return total


def _bound_cpu_time(num_bytes: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    limit_s = math.ceil(time.process_time()) + CPU_S + num_bytes // BYTES_A_CPU_S
    if hard != resource.RLIM_INFINITY:
        limit_s = min(limit_s, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, hard))


def _bound_memory() -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    bound = max(machine // MEMORY_SHARE, 1 << 30)
    finite = [limit for limit in (soft, bound) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(finite), hard))
