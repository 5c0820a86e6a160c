"""Writes a copy of one file in the pass that digests it: whole or not at all, holes as holes.

This module never opens a source for writing, never takes more of the disk than its budget has, and
lets no credential pass that its rule finds.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import xxhash

from spiketriage.digests import Sink, open_regular, read_pass
from spiketriage.disk_room import needed_bytes
from spiketriage.errors import PartialError
from spiketriage.evidence.budget import Budget
from spiketriage.evidence.redacting import Redactor, Rule

ALIVE_BYTES = 1 << 26
CLONE = 0x40049409  # FICLONE of linux/fs.h; `fcntl` has no name for it before Python 3.13

_ZEROS = memoryview(bytes(4096))  # the smallest hole of the usual file systems

Alive = Callable[[Path], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a copy has become: its bytes and digests, and those of the bytes that were read.

    `num_redacted` values were replaced; without any the two are the same.
    """

    size_bytes: int
    digest: str
    sha256: str
    num_read: int
    read_digest: str
    num_redacted: int = 0


def stream_copy(
    source: Path,
    target: Path,
    *,
    rule: Rule | None,
    drafts: Path,
    budget: Budget,
    alive: Alive,
) -> Copied:
    """Put a copy of `source` at `target`, synced, without what `rule` finds.

    Where the file system can, the copy shares the blocks of its source (a clone, which what is
    written to the source later does not change); else `source` is read once.

    Raises:
        NoRoomError: the disk has no room for it.
        EvidenceError: the source cannot be read.
        OSError, PartialError: the copy cannot be written; the cause of the latter is an OSError.
    """
    status = source.stat()
    drafts.mkdir(parents=True, exist_ok=True)
    draft, clone = drafts / "copy", drafts / "clone"
    pulse = _Pulse(source, alive)
    try:
        if _clone(source, clone, status):
            copied = _pass(clone, put=_nowhere, rule=rule, pulse=pulse)
            if copied.num_redacted:
                budget.require_room(needed_bytes(status))
                copied = _write_draft(clone, draft, status=status, rule=rule, pulse=pulse)
            else:
                clone.replace(draft)
        else:
            budget.require_room(needed_bytes(status))
            copied = _write_draft(source, draft, status=status, rule=rule, pulse=pulse)
        if not copied.num_redacted:
            os.utime(draft, ns=(status.st_mtime_ns, status.st_mtime_ns))
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
        clone.unlink(missing_ok=True)
    return copied


def digested(target: Path) -> Copied:
    """A copy that stands already, read once."""
    return _pass(target, put=_nowhere, rule=None, pulse=_nowhere)


def _clone(source: Path, clone: Path, status: os.stat_result) -> bool:
    """Whether `clone` could be made one of `source`; what forbids one is met by the copy."""
    try:
        with open_regular(source) as read, clone.open("wb") as written:
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


class _Digest:
    """Digest and number of the bytes that pass."""

    def __init__(self) -> None:
        self.state, self.num_bytes = xxhash.xxh3_128(), 0

    def update(self, chunk: memoryview) -> None:
        self.state.update(chunk)
        self.num_bytes += len(chunk)


def _pass(source: Path, *, put: Sink, rule: Rule | None, pulse: Sink) -> Copied:
    """Read `source` once and hand it, without what `rule` finds, to `put`."""
    read, written, sha256 = _Digest(), _Digest(), hashlib.sha256()

    def hand_on(chunk: memoryview) -> None:
        for sink in (written.update, sha256.update, put):
            sink(chunk)

    num_redacted = 0
    if rule is None:
        read_pass(source, (read.update, hand_on, pulse))
    else:
        redactor = Redactor(rule, hand_on)
        read_pass(source, (read.update, redactor.update, pulse))
        redactor.finish()
        num_redacted = redactor.num_values
    return Copied(
        size_bytes=written.num_bytes,
        digest=written.state.hexdigest(),
        sha256=sha256.hexdigest(),
        num_read=read.num_bytes,
        read_digest=read.state.hexdigest(),
        num_redacted=num_redacted,
    )


def _nowhere(_chunk: memoryview) -> None:
    """Takes what is only to be read."""


def _write_draft(
    source: Path, draft: Path, *, status: os.stat_result, rule: Rule | None, pulse: Sink
) -> Copied:
    """Write the draft of a copy, synced, its holes as holes."""
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

        copied = _pass(source, put=put, rule=rule, pulse=pulse)
        stream.flush()
        stream.truncate(copied.size_bytes)
        os.fsync(stream.fileno())
    return copied


def _write_sparse(stream: BinaryIO, chunk: memoryview) -> None:
    """Write a chunk without its pages of zeros, so that the copy takes what its source does."""
    start = 0
    end = len(_ZEROS) - stream.tell() % len(_ZEROS)  # of the page that the last chunk ended in
    while start < len(chunk):
        page = chunk[start:end]
        if page == _ZEROS[: len(page)]:
            stream.seek(len(page), os.SEEK_CUR)
        else:
            stream.write(page)
        start, end = end, end + len(_ZEROS)


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
