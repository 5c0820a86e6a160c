"""Files as an index, a manifest or a checkpoint lists them.

This module holds no behaviour beyond small derived properties and never reads or writes a file.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file as a manifest or an index lists it; `path` is relative to that file's folder."""

    path: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file of a checkpoint; `path` is relative to it."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """A file's tree digest (`digests.tree_root`) and the hex digests of its pieces, in order."""

    path: str
    size_bytes: int
    digest: str
    pieces: tuple[str, ...]
