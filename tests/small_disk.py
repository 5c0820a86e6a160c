"""A file system of a few megabytes in memory, and how to fill it up to the last bytes.

Nothing here ever fills a disk that somebody else uses.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CHUNK_BYTES = 1 << 20


@contextmanager
def small_disk(folder: Path, *, size_mb: int = 60) -> Iterator[Path]:
    """Mount it at `folder`; the test is skipped where nothing may be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def free_bytes(disk: Path) -> int:
    """What can still be written there."""
    about = os.statvfs(disk)
    return about.f_bavail * about.f_frsize


@contextmanager
def filled(disk: Path, *, left_bytes: int) -> Iterator[None]:
    """The disk with `left_bytes` free at most, until the block ends."""
    assert os.path.ismount(disk), "only a small disk is ever filled"
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        while (room := free_bytes(disk) - left_bytes) > 0:
            file.write(bytes(min(room, CHUNK_BYTES)))
            file.flush()
    try:
        yield
    finally:
        ballast.unlink()
