"""What the tests let run in the child with limits: each ends or exhausts it in a way of its own.

The child imports this module; it never runs in the tests' own process.
"""

from __future__ import annotations

import os
from pathlib import Path

from spiketriage.readers.limited import limited


@limited
def die(of: Path, number: int) -> None:
    """End the child by a signal."""
    os.kill(os.getpid(), number)


@limited
def exhaust(of: Path) -> bytes:
    """Ask for more memory than there is."""
    return bytes(1 << 50)


@limited
def fail(of: Path) -> None:
    """Fail as a bug of ours would."""
    raise KeyError("a bug")


@limited
def process_id(of: Path) -> int:
    """Return which process this is."""
    return os.getpid()
