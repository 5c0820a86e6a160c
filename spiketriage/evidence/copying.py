"""Copies one item of evidence and digests it in the same pass: whole or not at all, holes as holes.

This module never opens a source for writing, and never takes more of the disk than its budget has.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from spiketriage.digests import open_regular, read_pass
from spiketriage.disk_room import needed_bytes
from spiketriage.durable import write
from spiketriage.errors import EvidenceError, PartialError
from spiketriage.evidence.budget import Budget
from spiketriage.evidence.collectors import Item
from spiketriage.nouns.incident import Artifact

ALIVE_BYTES = 1 << 26
CLONE = 0x40049409  # FICLONE of linux/fs.h; `fcntl` has no name for it before Python 3.13

_ZEROS = memoryview(bytes(4096))  # the smallest hole of the usual file systems

Alive = Callable[[Path], object]


def copy(
    item: Item, target: Path, path: str, *, drafts: Path, budget: Budget, alive: Alive
) -> tuple[Artifact, str]:
    """Copy and digest in one read pass; a copy of the same size and time is digested where it is.

    Raises:
        NoRoomError: the budget does not allow it.
        EvidenceError: the source cannot be read or is not a regular file.
        OSError, PartialError: the copy cannot be written; the cause of the latter is an OSError.
    """
    quick, slow = xxhash.xxh3_128(), hashlib.sha256()
    note = ""
    if item.content is not None:
        for state in (quick, slow):
            state.update(item.content)
        size_bytes, mtime_ns = len(item.content), 0
        budget.require_room(size_bytes)
        write(target, item.content)
    else:
        status = regular(item.source)
        size_bytes, mtime_ns = status.st_size, status.st_mtime_ns
        budget.require(status)
        if _is_copy(target, status):
            read_pass(target, (quick.update, slow.update))
        else:
            size_bytes = stream_copy(
                item.source, target, (quick, slow), drafts=drafts, budget=budget, alive=alive
            )
            if size_bytes != status.st_size:
                note = "grew or shrank while it was copied"
    budget.take(size_bytes)
    artifact = Artifact(
        path=path,
        kind=item.kind,
        size_bytes=size_bytes,
        mtime_ns=mtime_ns,
        digest=quick.hexdigest(),
        expected="",
        kept="copied",
        note=note,
    )
    return artifact, slow.hexdigest()


def regular(source: Path) -> os.stat_result:
    """The status of a regular file; opening a pipe would wait for a writer.

    Raises:
        EvidenceError: it is none, or cannot be looked at.
    """
    try:
        status = source.stat()
    except OSError as error:
        raise EvidenceError(f"cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise EvidenceError("is not a regular file")
    return status


def _is_copy(target: Path, status: os.stat_result) -> bool:
    try:
        held = target.stat()
    except FileNotFoundError:
        return False
    return (held.st_size, held.st_mtime_ns) == (status.st_size, status.st_mtime_ns)


def stream_copy(
    source: Path,
    target: Path,
    states: tuple[Any, ...],
    *,
    drafts: Path,
    budget: Budget,
    alive: Alive,
) -> int:
    """Digest `source` into `states` and put a copy at `target`, synced; returns its bytes.

    Where the file system can, the copy shares the blocks of its source (a clone, which what is
    written to the source later does not change); else `source` is read once.

    Raises:
        NoRoomError: the disk has no room for it.
        EvidenceError: the source cannot be read.
        OSError, PartialError: the copy cannot be written; the cause of the latter is an OSError.
    """
    status = source.stat()
    drafts.mkdir(parents=True, exist_ok=True)
    draft = drafts / "copy"  # not beside the copies: the run may have a file of any name
    try:
        if _clone(source, draft, status):
            count = read_pass(draft, (*(state.update for state in states), _Pulse(source, alive)))
        else:
            budget.require_room(needed_bytes(status))
            count = _write_draft(source, draft, states, status=status, alive=alive)
        os.utime(draft, ns=(status.st_mtime_ns, status.st_mtime_ns))
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return count


def _clone(source: Path, draft: Path, status: os.stat_result) -> bool:
    """Whether `draft` could be made a clone of `source`; what forbids one is met by the copy."""
    try:
        with open_regular(source) as read, draft.open("wb") as written:
            os.fchmod(written.fileno(), _mode(status))
            fcntl.ioctl(written.fileno(), CLONE, read.fileno())
            os.fsync(written.fileno())
    except OSError:
        return False
    return True


class _Pulse:
    """Takes the bytes that are read, and says now and then that reading goes on."""

    def __init__(self, source: Path, alive: Alive) -> None:
        self._source, self._alive, self._num_bytes = source, alive, 0

    def __call__(self, chunk: memoryview) -> None:
        self._num_bytes += len(chunk)
        if self._num_bytes > ALIVE_BYTES:
            self._num_bytes = 0
            self._alive(self._source)


def _write_draft(
    source: Path, draft: Path, states: tuple[Any, ...], *, status: os.stat_result, alive: Alive
) -> int:
    """Write the draft of a copy, synced, its holes as holes, and return its number of bytes."""
    has_holes = needed_bytes(status) < status.st_size
    with draft.open("wb") as stream:
        os.fchmod(stream.fileno(), _mode(status))
        if not has_holes:
            _reserve(stream.fileno(), status.st_size)

        def put(chunk: memoryview) -> None:
            try:
                if has_holes:
                    _write_sparse(stream, chunk)
                else:
                    stream.write(chunk)
            except OSError as error:
                # told apart from an error of reading, which costs this item only
                raise PartialError(f"{draft}: cannot be written: {error}") from error

        updates = [state.update for state in states]
        count = read_pass(source, (*updates, put, _Pulse(source, alive)))
        stream.flush()
        stream.truncate(count)
        os.fsync(stream.fileno())
    return count


def _write_sparse(stream: BinaryIO, chunk: memoryview) -> None:
    """Write a chunk without its pages of zeros, so that the copy takes what its source does."""
    for start in range(0, len(chunk), len(_ZEROS)):
        page = chunk[start : start + len(_ZEROS)]
        if page == _ZEROS[: len(page)]:
            stream.seek(len(page), os.SEEK_CUR)
        else:
            stream.write(page)


def _mode(status: os.stat_result) -> int:
    """The mode of a copy: a secret stays one."""
    return stat.S_IMODE(status.st_mode) & 0o666 | stat.S_IRUSR


def _reserve(handle: int, num_bytes: int) -> None:
    """Ask for the space at once.

    It fails early on a full disk, and is a quarter faster:
    docs/design-reasons.md#buffers-and-pieces.
    """
    if not num_bytes:
        return
    try:
        os.posix_fallocate(handle, 0, num_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
