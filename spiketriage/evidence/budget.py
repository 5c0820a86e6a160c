"""What one freeze may copy: files, bytes in all, and the room of the disk that it writes to.

This module never copies, and never grants what a later step needs to write the record.
"""

from __future__ import annotations

import os
from pathlib import Path

from spiketriage.disk_room import needed_bytes, room_bytes
from spiketriage.errors import NoRoomError

# The record of a small run takes 5 MB, twice while it is replaced, and its report 0.2 MB.
RECORD_BYTES = 8 << 20
FILE_BYTES = 1 << 10  # a file's rows and its lines in manifest and report, twice as well
MAX_NUM_FILES = 1 << 16  # eight of each of 8,192 ranks; their manifest is read in a second
MAX_FILE_BYTES = 1 << 36  # 64 GiB: of a larger log nobody waits for the copy
MAX_TOTAL_BYTES = 1 << 38  # 256 GiB: ten minutes of a disk that takes 400 MB a second


class Budget:
    """What is left for copies below `folder`, asked before each of them.

    `num_files` and `num_bytes` were copied before, by a process that did not live to go on.
    """

    def __init__(self, folder: Path, *, num_files: int = 0, num_bytes: int = 0) -> None:
        self._folder = folder
        self._num_files, self._num_bytes = num_files, num_bytes
        self._held_bytes = RECORD_BYTES
        self.begin(1.0)

    def begin(self, share: float) -> None:
        """From now on take at most `share` of what is left, for one kind of evidence."""
        room = max(0, room_bytes(self._folder) - self._held_bytes)
        self._floor_bytes = self._held_bytes + int(room * (1 - share))
        self._last_file = self._num_files + int((MAX_NUM_FILES - self._num_files) * share)
        self._last_byte = self._num_bytes + int((MAX_TOTAL_BYTES - self._num_bytes) * share)

    def require(self, status: os.stat_result) -> None:
        """Refuse one file more, whatever it takes on the disk.

        Raises:
            NoRoomError: it is too large, or enough was kept.
        """
        size_bytes = status.st_size
        if size_bytes > MAX_FILE_BYTES:
            raise NoRoomError(
                f"{size_bytes} bytes, of which {needed_bytes(status)} are on the disk; at most "
                f"{MAX_FILE_BYTES} of a file are copied"
            )
        if self._num_files >= self._last_file:
            raise NoRoomError(f"{self._num_files} files were kept already, of {MAX_NUM_FILES}")
        if self._num_bytes + size_bytes > self._last_byte:
            raise NoRoomError(
                f"{size_bytes} bytes; {self._num_bytes} were kept already, of {MAX_TOTAL_BYTES}"
            )

    def require_room(self, num_bytes: int) -> None:
        """Refuse what the disk has no room for.

        Raises:
            NoRoomError: the run, the record and other evidence need what is free.
        """
        spare_bytes = max(0, room_bytes(self._folder) - self._floor_bytes)
        if num_bytes > spare_bytes:
            raise NoRoomError(
                f"{num_bytes} bytes, and the disk of {self._folder} has {spare_bytes} to spare"
            )

    def take(self, size_bytes: int) -> None:
        """Count a file that was kept."""
        self._num_files += 1
        self._num_bytes += size_bytes
        self.hold(FILE_BYTES)

    def hold(self, num_bytes: int) -> None:
        """Keep room for what is made of a copy later: columns, never larger than their source."""
        self._held_bytes += num_bytes
        self._floor_bytes += num_bytes
