"""The files of a checkpoint folder, and a few of its small JSON files as facts.

This module never follows a link to a folder and never reads a file that is not small.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from stat import S_ISREG
from typing import Any

from spiketriage.digests import of_bytes
from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import FieldFacts, FieldKind
from spiketriage.nouns.file import StoredFile
from spiketriage.readers.checkpoints.building.state_fields import scalars
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
                found = path.stat()
            except (OSError, ValueError):
                continue  # a dangling or looping link
            if not S_ISREG(found.st_mode):
                continue
            yield StoredFile(path=path.relative_to(folder).as_posix(), size_bytes=found.st_size)
            num_left -= 1
            if not num_left:
                return


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a small file.

    Raises:
        EvidenceError: it is missing, unreadable, a Git-LFS pointer, or no JSON object.
    """
    return parse_object(path, _small_file(path))


def _small_file(path: Path) -> bytes:
    data = read_bytes(path)
    refuse_pointer(path, data)
    return data


def sentence(error: EvidenceError) -> str:
    """What is wrong, and what can be done about it."""
    if error.hint:
        return f"{error.message} ({error.hint})"
    return error.message


def json_field(folder: Path, name: str, kind: FieldKind, problems: list[str]) -> FieldFacts | None:
    """A JSON file of `folder` as a field with its scalars.

    What is wrong with it goes to `problems`.
    """
    try:
        data = _small_file(folder / name)
        value = parse_object(folder / name, data)
    except EvidenceError as error:
        problems.append(sentence(error))
        return None
    values = scalars(
        {key: item for key, item in value.items() if not isinstance(item, list)}
    )  # a history is no scalar
    return FieldFacts(
        kind=kind, name=name, rank=None, path=name, digest=of_bytes(data), values=values
    )


def some(names: Collection[str] | Iterable[str]) -> str:
    """A few of `names`, and how many more there are."""
    names = sorted(names)
    if len(names) > _SHOWN:
        more = f" and {len(names) - _SHOWN} more"
    else:
        more = ""
    return ", ".join(names[:_SHOWN]) + more
