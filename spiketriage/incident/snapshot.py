"""A copy of the database file of our own, which no colleague's lock, log or edit can reach.

It never opens the file in DuckDB and never reads the log that somebody's client keeps beside it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

NUM_TRIES = 5


def copy(source: Path, target: Path) -> None:
    """Copy `source` to `target` in a state in which nobody was writing it.

    A colleague's own client may be writing its blocks at this moment, so what changed meanwhile is
    copied again; DuckDB's checksums tell what is torn in spite of it.

    Raises:
        OSError: it cannot be read, is no plain file, or there is no room for it.
    """
    for _ in range(NUM_TRIES):
        before = source.lstat()
        if not stat.S_ISREG(before.st_mode):
            raise OSError(errno.EINVAL, "expected a plain file", str(source))
        if before.st_size > shutil.disk_usage(target.parent).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        shutil.copyfile(source, target)
        if _version(source.lstat()) == _version(before):
            return


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns
