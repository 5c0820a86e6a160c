"""A first look at a path: what it is, the names in it or its first bytes, for formats to claim.

This module never reads more than a page of a file and never follows a link to a folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

from spiketriage.errors import EvidenceError

HEAD_BYTES = 4096
MAX_NAMES = 200_000
LFS_HEAD = b"version https://git-lfs.github.com/spec/"
SOURCE_SUFFIXES = (
    *(".py", ".pyi", ".ipynb", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"),
    *(".rs", ".go", ".js", ".ts", ".java", ".sh", ".bash", ".sbatch", ".slurm"),
    *(".md", ".rst", ".tex", ".html", ".css", ".diff", ".patch"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A folder with the sorted names in it, or a file with its first bytes; never both."""

    path: Path
    is_folder: bool
    names: tuple[str, ...] = ()
    head: bytes = b""
    size_bytes: int = 0

    @property
    def is_lfs_pointer(self) -> bool:
        """Whether the file is a Git-LFS pointer: a few lines for bytes that were never fetched."""
        return self.head.startswith(LFS_HEAD)

    @property
    def is_source(self) -> bool:
        """Whether the name is that of source code or prose, which may quote a log and is none."""
        return not self.is_folder and self.path.suffix.lower() in SOURCE_SUFFIXES


class Format(Protocol):
    """What every reader of a format has. `claims` is a confidence between 0 and 1 and never raises.

    `TELLS` and `CANNOT` say in one sentence each what the format can and cannot show.
    """

    NAME: str
    TELLS: str
    CANNOT: str

    def claims(self, look: Look, /) -> float:
        """How sure the reader is that this path is of its format."""
        ...


F = TypeVar("F", bound=Format)


def look(path: Path) -> Look:
    """Look at `path`.

    Raises:
        EvidenceError: it is missing, cannot be read, or is neither a folder nor a regular file.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(path) as entries:
                names = sorted(entry.name for entry in islice(entries, MAX_NAMES))
            return Look(path=path, is_folder=True, names=tuple(names))
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for a writer
            raise EvidenceError(f"{path}: is neither a folder nor a regular file")
        with path.open("rb", buffering=0) as stream:
            return Look(
                path=path, is_folder=False, head=stream.read(HEAD_BYTES), size_bytes=status.st_size
            )
    except FileNotFoundError as error:
        raise EvidenceError(f"{path}: there is no such file or folder") from error
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error


def refuse_pointer(path: object, head: bytes) -> None:
    """Refuse a Git-LFS pointer by the first bytes of the file.

    Raises:
        EvidenceError: it is one.
    """
    if head.startswith(LFS_HEAD):
        raise EvidenceError(
            f"{path}: is a Git-LFS pointer: the file was never fetched", hint="git lfs pull"
        )


def look_at_file(path: Path) -> Look:
    """Look at a file whose bytes are there.

    Raises:
        EvidenceError: it is missing, a folder or no regular file, cannot be read, or is a Git-LFS
        pointer.
    """
    seen = look(path)
    if seen.is_folder:
        raise EvidenceError(f"{path}: is a folder, expected a file")
    refuse_pointer(path, seen.head)
    return seen


def best(formats: Iterable[F], seen: Look) -> tuple[F, float] | None:
    """The format that is surest of `seen`, with its confidence; the earlier one wins a tie."""
    claimed = [(candidate, candidate.claims(seen)) for candidate in formats]
    surest = max(claimed, key=lambda pair: pair[1], default=None)
    if surest is not None and surest[1] > 0:
        return surest
    return None
