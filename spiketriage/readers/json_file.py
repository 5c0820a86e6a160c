"""A JSON object from a file that somebody else wrote; every way it can be wrong is one error.

This module never trusts a path found in such a file and never opens anything but the file it is
given.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from spiketriage.errors import CorruptFileError, EvidenceError

MAX_BYTES = 1 << 30  # a manifest or an index above this is damage, not data


def read_bytes(path: Path) -> bytes:
    """The bytes of a small file.

    Raises:
        EvidenceError: the file is missing or cannot be read.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(
            found.st_mode
        ):  # a pipe would wait for a writer
            raise EvidenceError(f"{path}: is neither a folder nor a regular file")
        size_bytes = found.st_size
        if size_bytes > MAX_BYTES:
            raise CorruptFileError(
                path, "size", expected=f"at most {MAX_BYTES} bytes", seen=size_bytes
            )
        return path.read_bytes()
    except FileNotFoundError as error:
        raise EvidenceError(f"{path}: is missing") from error
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error


def parse_object(path: Path, data: bytes) -> dict[str, Any]:
    """The JSON object in `data`, which came from `path`.

    Raises:
        CorruptFileError: not UTF-8, not JSON, or not an object.
    """
    try:
        value = json.loads(data.decode())
    except UnicodeDecodeError as error:
        raise CorruptFileError(
            path, f"byte {error.start}", expected="UTF-8 text", seen=error.reason
        ) from error
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(path, "content", expected="JSON", seen=error) from error
    if not isinstance(value, dict):
        raise CorruptFileError(path, "content", expected="a JSON object", seen=type(value).__name__)
    return value


def is_inside(relative: object) -> bool:
    """Whether `relative` is a path that stays inside the folder it is relative to."""
    if not isinstance(relative, str) or not relative or "\0" in relative:
        return False
    try:
        os.fsencode(relative)  # half of a surrogate pair is JSON, but no path
    except UnicodeEncodeError:
        return False
    path = PurePosixPath(relative)
    return not path.is_absolute() and ".." not in path.parts


def is_count(value: object) -> TypeGuard[int]:
    """Whether `value` is an integer of at least zero."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
