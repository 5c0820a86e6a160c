"""Files that are written whole or not at all, and that survive a power loss.

This module never appends to a file and never removes one.
"""

from __future__ import annotations

import os
from pathlib import Path


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
