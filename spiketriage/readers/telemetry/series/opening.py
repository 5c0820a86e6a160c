"""Opens a telemetry file for reading, with every way that can fail turned into one error.

This module never opens anything but a regular file, and never for writing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from spiketriage.errors import EvidenceError
from spiketriage.readers.look import HEAD_BYTES, refuse_pointer


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An open file at byte 0, its first bytes, and its size when it was opened."""

    stream: BinaryIO
    head: bytes
    size_bytes: int


@contextmanager
def open_log(path: Path) -> Iterator[Opened]:
    """The file at `path`.

    Raises:
        EvidenceError: it is missing, no regular file, cannot be read, or is a Git-LFS pointer.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for a writer
            raise EvidenceError(f"{path}: is not a regular file")
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
            refuse_pointer(path, head)
            stream.seek(0)
            yield Opened(stream=stream, head=head, size_bytes=os.fstat(stream.fileno()).st_size)
    except FileNotFoundError as error:
        raise EvidenceError(f"{path}: is missing") from error
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        if "null byte" not in str(error):  # only a path can hold one; the reader's own errors pass
            raise
        raise EvidenceError(f"{path!r}: is not a path") from error
