"""A file of system evidence before it is parsed: a regular file, fetched, and no larger than such a file can be.

This module never waits for a pipe and never reads a folder.
"""

from __future__ import annotations

from pathlib import Path

from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.readers.json_file import read_bytes
from spiketriage.readers.look import Look, look


def file_look(path: Path) -> Look:
    """The first bytes of a file whose content is there.

    Raises:
        EvidenceError: it is missing, no regular file, cannot be read, or is a Git-LFS pointer.
    """
    seen = look(path)
    if seen.is_folder:
        raise EvidenceError(f"{path}: is a folder, not a file")
    if seen.is_lfs_pointer:
        raise EvidenceError(f"{path}: is a Git-LFS pointer: the file was never fetched", hint="git lfs pull")
    return seen


def file_bytes(path: Path, max_bytes: int) -> bytes:
    """All bytes of a file of at most `max_bytes`.

    Raises:
        EvidenceError: as `file_look`, or it is larger.
    """
    seen = file_look(path)
    if seen.size_bytes > max_bytes:
        raise CorruptFileError(path, "size", expected=f"at most {max_bytes} bytes", seen=seen.size_bytes)
    return read_bytes(path)
