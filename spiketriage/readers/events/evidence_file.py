"""A file of system evidence before it is parsed: regular, fetched, and no larger than it can be.

This module never waits for a pipe and never reads a folder.
"""

from __future__ import annotations

from pathlib import Path

from spiketriage.errors import CorruptFileError
from spiketriage.readers.json_file import read_bytes
from spiketriage.readers.look import look_at_file


def file_bytes(path: Path, max_bytes: int) -> bytes:
    """All bytes of a file of at most `max_bytes`.

    Raises:
        EvidenceError: as `look.look_at_file`, or it is larger.
    """
    seen = look_at_file(path)
    if seen.size_bytes > max_bytes:
        raise CorruptFileError(
            path, "size", expected=f"at most {max_bytes} bytes", seen=seen.size_bytes
        )
    return read_bytes(path)
