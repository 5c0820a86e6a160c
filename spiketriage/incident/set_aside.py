"""Keeps what a colleague's own DuckDB client left at, or has open in, the place of the record.

Such a client works on the file that was there when it opened it: file and log go on existing
together under `set-aside/`, where it can be opened again. This module never deletes either.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from spiketriage import durable

FOLDER = "set-aside"


def move(database: Path) -> None:
    """Set aside the log beside `database`, and the file itself while a client may write it.

    Our next swap puts another file in its place, which that log does not fit: DuckDB refuses to
    open the two together.

    Raises:
        OSError: the folder cannot be written.
    """
    log = database.with_name(f"{database.name}.wal")
    has_log = os.path.lexists(log)
    if not has_log and (not _is_locked(database) or _kept(database) is not None):
        return
    folder = _folder(database, log)
    if not (folder / database.name).exists():
        try:
            os.link(database, folder / database.name)
        except OSError:  # a file system without links; a copy keeps what was written so far
            shutil.copyfile(database, folder / database.name)
    with suppress(FileNotFoundError):
        os.rename(log, folder / log.name)
    durable.sync(folder)
    durable.sync(database.parent)


def names(incident: Path) -> Sequence[str]:
    """What was set aside so far, oldest first."""
    return sorted(path.name for path in (incident / FOLDER).glob("*"))


def _folder(database: Path, log: Path) -> Path:
    """Where the log belongs: to the file that a client still has open, else to this very file."""
    parent = database.parent / FOLDER
    for folder in sorted(parent.glob("*"), reverse=True):
        kept = folder / database.name
        if kept.exists() and not (folder / log.name).exists() and _is_locked(kept):
            return folder
    folder = parent / f"{datetime.now(UTC):%Y-%m-%dT%H%M%S.%fZ}"
    folder.mkdir(parents=True)
    return folder


def _kept(database: Path) -> Path | None:
    """The folder in which this very file was set aside."""
    for kept in (database.parent / FOLDER).glob(f"*/{database.name}"):
        if kept.samefile(database):
            return kept.parent
    return None


def _is_locked(database: Path) -> bool:
    """Whether another process has the file open for writing: DuckDB locks it as long."""
    handle = os.open(database, os.O_RDONLY)
    try:
        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(handle)
    return False
