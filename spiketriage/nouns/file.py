"""A file of a checkpoint or of a data store, and what it hashes to.

This module holds no behaviour beyond small derived properties and never reads or writes a file.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file of a checkpoint or of a data store, as it lies there or as a list names it.

    `path` is relative to the folder of the checkpoint, the store or the list (empty where the
    checkpoint is one file). `digest` is what a manifest or an index states, empty where nobody
    states one.
    """

    path: str
    size_bytes: int
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """A file's tree digest (`digests.tree_root`) and the hex digests of its pieces, in order."""

    path: str
    size_bytes: int
    digest: str
    pieces: tuple[str, ...]
