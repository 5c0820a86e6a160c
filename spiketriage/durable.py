"""Files that are written whole or not at all, and that survive a power loss.

It also knows the one sentence for a full disk. It never appends to a file and never removes one.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from pathlib import Path

from spiketriage.errors import DiskFullError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write(path: Path, data: bytes) -> None:
    """Put `data` at `path` in one step: a draft beside it, synced, renamed, and the folder synced.

    Whoever looks finds the old file, the new one, or none. Two writers of one path must not meet:
    the draft's name is fixed, so that a killed writer's draft is overwritten by the next.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.partial")
    draft.write_bytes(data)
    sync(draft)
    draft.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_full(path: Path | str | None, needed_bytes: int | None = None) -> DiskFullError:
    """The error for a full disk, wherever it was met: what could not be written, and the room.

    `path` is None where it is not a file, as for a pipe behind standard output.
    """
    room = ""
    if path is None:
        folder, what = Path(), "standard output"
    else:
        folder, what = _folder_of(Path(path)), str(path)
    if needed_bytes is not None:
        room = f": {needed_bytes / 1e6:.1f} MB are needed, {_free(folder)}"
    return DiskFullError(
        f"the disk is full: {what} could not be written{room}; what was recorded before stands",
        hint=f"df -h {shlex.quote(str(folder))}",
    )


def _folder_of(path: Path) -> Path:
    """The nearest folder above `path` that will still be there when the hint is typed."""
    for parent in path.parents:
        if parent.is_dir() and not parent.name.startswith("."):  # a draft's folder is removed
            return parent
    return Path()


def _free(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free / 1e6:.1f} MB are free"
    except OSError:
        return "and nobody can say what is free"
