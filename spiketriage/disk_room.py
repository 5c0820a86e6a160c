"""How much of a disk we may take: what is free, less what the run needs to save itself.

This module never writes, and never counts a quota, which only the write itself meets.
"""

from __future__ import annotations

import os
from pathlib import Path

# The run may need the disk to save itself: a twentieth of it, at most a gigabyte, stays free.
RESERVE_SHARE, MAX_RESERVE_BYTES = 20, 1 << 30
BLOCK_BYTES = 512  # in which st_blocks counts, whatever the file system's own are


def room_bytes(folder: Path) -> int:
    """What may still be written to the disk of `folder`; negative where the reserve is touched.

    Raises:
        OSError: the folder cannot be looked at.
    """
    disk = os.statvfs(folder)
    reserve_bytes = min(MAX_RESERVE_BYTES, disk.f_blocks * disk.f_frsize // RESERVE_SHARE)
    return disk.f_bavail * disk.f_frsize - reserve_bytes


def needed_bytes(status: os.stat_result) -> int:
    """What a copy of a file takes when its holes stay holes."""
    return min(status.st_size, status.st_blocks * BLOCK_BYTES)
