"""The file behind a recorder: frames are appended whole or not at all, and synced on a timer.

It never runs in the training thread except to open the file, and never leaves half a frame before a
whole one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from spiketriage.train.recording.background import BackgroundQueue
from spiketriage.wire import telemetry

SYNC_EVERY_S = 2.0  # every step it would cost 330 us, p99 577 us: docs/design-reasons.md#recorder


class SegmentFile:
    """An append-only file and the background thread that flushes it.

    `append` may hang with the disk: never train in that thread.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._size_bytes = 0
        self._is_torn = False
        self._unsynced = threading.Event()
        self._syncer = BackgroundQueue(
            "fdatasync", max_jobs=2, tick=self._sync_if_written, interval_s=SYNC_EVERY_S
        )

    def append(self, data: bytes) -> bool:
        """Append `data` whole or not at all; False when it was lost."""
        try:
            if self._is_torn:
                os.ftruncate(self.descriptor, self._size_bytes)
                self._is_torn = False
            # A disk that fills up takes a part: what follows a torn frame could never be read
            # again.
            self._is_torn = os.write(self.descriptor, data) != len(data)
            if self._is_torn:
                os.ftruncate(self.descriptor, self._size_bytes)
                self._is_torn = False
                return False
        except OSError:
            return False
        self._size_bytes += len(data)
        self._unsynced.set()
        return True

    def sync_soon(self) -> None:
        """Have the syncing thread flush at once, as after an anomaly; does not wait."""
        self._syncer.put(self._sync_if_written)

    def close(self, timeout_s: float) -> None:
        """Flush and close; a disk that hangs keeps its descriptor and its thread."""
        self.sync_soon()
        if self._syncer.close(timeout_s):
            os.close(self.descriptor)

    def _sync_if_written(self) -> bool:
        if self._unsynced.is_set():
            self._unsynced.clear()
            try:
                os.fdatasync(self.descriptor)
            except OSError:
                return False  # a pipe cannot be flushed; a lost disk shows itself at the next write
        return True


def open_segment(
    folder: Path,
    rank: int,
    attempt: int | None,
    name: Callable[[int, int], str] = telemetry.segment_name,
) -> tuple[Path, int, int]:
    """Path, attempt and descriptor of a new segment in `folder`, by the first free attempt.

    Raises:
        OSError: the folder cannot be written; this happens before training starts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = attempt or 0
    while True:
        candidate = folder / name(rank, number)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            return candidate, number, os.open(candidate, flags, 0o644)
        except FileExistsError:
            number += 1


def open_at(path: Path) -> int:
    """Descriptor of a segment whose path the caller chose, emptied.

    Raises:
        OSError: the path cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
