"""Pieces of a data store's files: sizes, ranges and blocks, each bounded by what is really on disk.

This module never opens a pipe, never follows a Git-LFS pointer and never allocates what a file
merely claims.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.nouns.data import DocumentBytes
from spiketriage.nouns.file import StoredFile
from spiketriage.nouns.series import Integers
from spiketriage.readers.look import look, look_at_file

T = TypeVar("T")
BLOCK_BYTES = 1 << 20
# A longer document is damage or a file without borders, and would fill the memory.
MAX_DOCUMENT_BYTES = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDocument(DocumentBytes):
    """One document as it was read, with its tokens."""

    tokens: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a document of a store of several files lies: which file, and its number there."""

    part: int
    number: int


def is_folder(path: Path) -> bool:
    """Whether `path` is a folder that can be read."""
    try:
        return look(path).is_folder
    except EvidenceError:
        return False


def is_file(path: Path) -> bool:
    """Whether `path` is a file that can be read."""
    try:
        return not look(path).is_folder
    except EvidenceError:
        return False


def head_of(path: Path) -> bytes:
    """The first bytes of a file, none where it cannot be read: for claims, which never raise."""
    try:
        return look(path).head
    except EvidenceError:
        return b""


def once_a_file(read: Callable[[Path], T]) -> Callable[[Path], T]:
    """A reader of a file's head or footer that reads it again only when the file has changed."""

    @lru_cache(maxsize=4096)
    def kept(path: Path, *_state: int) -> T:
        return read(path)

    def ask(path: Path) -> T:
        try:
            state = path.stat()
        except OSError as error:
            raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error
        return kept(path, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)

    return ask


def read_range(path: Path, start: int, end: int, what: str) -> bytes:
    """The bytes `start` to `end` of a file; `what` names them in errors.

    Raises:
        CorruptFileError: the file has no such bytes, or they are more than a document can be.
        EvidenceError: the file cannot be read.
    """
    size_bytes = look_at_file(path).size_bytes
    if not 0 <= start <= end <= size_bytes:
        raise CorruptFileError(
            path, what, expected=f"a place within {size_bytes} bytes", seen=f"{start} to {end}"
        )
    if end - start > MAX_DOCUMENT_BYTES:
        raise CorruptFileError(
            path, what, expected=f"at most {MAX_DOCUMENT_BYTES} bytes", seen=end - start
        )
    try:
        with path.open("rb", buffering=0) as stream:
            stream.seek(start)
            data = bytearray()
            while len(data) < end - start and (piece := stream.read(end - start - len(data))):
                data += piece
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) != end - start:
        raise CorruptFileError(
            path, what, expected=f"{end - start} bytes at {start}", seen=f"{len(data)} bytes"
        )
    return bytes(data)


def blocks(path: Path, start: int, end: int, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The bytes `start` to `end` of a file in blocks; it ends early where the file does.

    Raises:
        EvidenceError: the file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            stream.seek(start)
            while start < end and (data := stream.read(min(block_bytes, end - start))):
                start += len(data)
                yield data
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error


def elements(data: bytes, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """The elements in `data` as they lie there; an incomplete last one is left out."""
    return np.frombuffer(data, dtype=dtype, count=len(data) // dtype.itemsize)


def integers(data: bytes, dtype: np.dtype[np.generic]) -> Integers:
    """The integers in `data`, of which an incomplete last one is left out."""
    return elements(data, dtype).astype(np.int64)


def of_text(data: bytes) -> Integers:
    """Bytes as token ids of 0 to 255."""
    return integers(data, np.dtype(np.uint8))


def document_of(path: str, start: int, data: bytes, tokens: Integers) -> StoredDocument:
    """The document whose bytes on disk are `data`."""
    digest = xxhash.xxh3_128_hexdigest(data)
    return StoredDocument(
        path=path, start=start, end=start + len(data), digest=digest, tokens=tokens
    )


def place(store: Path, counts: Sequence[int], number: int) -> Placed:
    """Where the `number`-th document lies in files that hold `counts` documents each.

    Raises:
        EvidenceError: there is no such document.
    """
    ends = list(accumulate(counts))  # of Python, since what an index claims may not fit 64 bits
    total = ends[-1] if ends else 0
    if not 0 <= number < total:
        raise EvidenceError(f"{store}: has no document {number}; it holds {total}")
    part = bisect_right(ends, number)
    return Placed(part=part, number=number - (ends[part - 1] if part else 0))


def stored_files(root: Path, paths: Iterable[Path]) -> tuple[StoredFile, ...]:
    """Those of `paths` that can be seen, relative to `root`, with their sizes."""
    files: list[StoredFile] = []
    for path in paths:
        try:
            size_bytes = path.stat().st_size
        except OSError:
            continue  # what cannot be seen is named in `problems` by whoever needs it
        files.append(StoredFile(path=path.relative_to(root).as_posix(), size_bytes=size_bytes))
    return tuple(files)


def parts_of(path: Path, suffixes: tuple[str, ...]) -> tuple[Path, ...]:
    """The files of a store: `path` itself, or those with one of `suffixes` in that folder.

    Raises:
        EvidenceError: `path` cannot be read.
    """
    seen = look(path)
    if not seen.is_folder:
        return (path,)
    files: list[Path] = []
    for name in seen.names:
        if name.lower().endswith(suffixes) and is_file(path / name):
            files.append(path / name)
    return tuple(files)
