"""The files of a checkpoint folder, its small JSON files, and how a few names are put in words.

This module never follows a link to a folder and never reads a file that is not small.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from stat import S_ISREG
from typing import Any

from spiketriage.errors import EvidenceError
from spiketriage.nouns.file import StoredFile
from spiketriage.nouns.listing import listed
from spiketriage.readers.json_file import parse_object, read_bytes
from spiketriage.readers.look import MAX_NAMES, refuse_pointer

_SHOWN = 3
# where a freeze keeps its incidents, which may be in the folder that it looks at
OWN_FOLDER = ".spiketriage"


def stored_files(folder: Path) -> tuple[StoredFile, ...]:
    """Every regular file below `folder`, by name; at most `MAX_NAMES` of them."""
    return tuple(sorted(_walk(folder), key=lambda file: file.path))


def _walk(folder: Path) -> Iterator[StoredFile]:
    num_left = MAX_NAMES
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != OWN_FOLDER)
        for name in names:
            path = Path(here, name)
            try:
                status = path.stat()
            except (OSError, ValueError):
                continue  # a dangling or looping link
            if not S_ISREG(status.st_mode):
                continue
            yield StoredFile(path=path.relative_to(folder).as_posix(), size_bytes=status.st_size)
            num_left -= 1
            if not num_left:
                return


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a small file.

    Raises:
        EvidenceError: it is missing, unreadable, a Git-LFS pointer, or no JSON object.
    """
    return parse_object(path, read_small(path))


def read_small(path: Path) -> bytes:
    """The bytes of a small file.

    Raises:
        EvidenceError: it is missing, unreadable, or a Git-LFS pointer.
    """
    data = read_bytes(path)
    refuse_pointer(path, data)
    return data


def sentence(error: EvidenceError) -> str:
    """What is wrong, and what can be done about it."""
    if error.hint:
        return f"{error.message} ({error.hint})"
    return error.message


def some(names: Collection[str] | Iterable[str]) -> str:
    """A few of `names`, and how many more there are."""
    return listed(sorted(names), most=_SHOWN)
