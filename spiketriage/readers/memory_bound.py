"""Bounds the memory that unpickling may take: a hostile pickle fails, and the machine does not.

This module never bounds for good: the limit that was there before comes back.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ALLOWANCE_BYTES = 64 << 20
_MAX_ALLOWANCE_BYTES = 4 << 30
# An empty dict and its memo slot take 80 bytes for two; 160,000 DCP chunks take 20 a byte.
_ALLOWANCE_A_BYTE = 60


@contextmanager
def memory_bound(size_bytes: int) -> Iterator[None]:
    """Bound the address space by what an honest pickle of that size needs; keep the gc out too."""
    is_collecting = gc.isenabled()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = _num_pages()
    if pages is not None:
        allowance = _ALLOWANCE_BYTES + _ALLOWANCE_A_BYTE * size_bytes
        bound = pages * resource.getpagesize() + min(_MAX_ALLOWANCE_BYTES, allowance)
        finite = [limit for limit in (*limits, bound) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min(finite), limits[1]))
    gc.disable()  # half a million new objects would be visited again and again
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        if is_collecting:
            gc.enable()


def _num_pages() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[0])
    except (OSError, ValueError, IndexError):
        return None  # not Linux: the cap on the size is what bounds it
