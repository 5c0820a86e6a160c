"""Digests of bytes, files, trees and mappings, with one read pass that can feed several sinks.

This module never writes and never maps a file: a truncated mapped file kills the process, a short
`readinto` does not.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import FileIO
from pathlib import Path

import xxhash

from spiketriage.errors import EvidenceError

# Larger buffers fall out of cache, smaller pieces of a tree digest cost more to hand out than to
# read: docs/design-reasons.md#buffers-and-pieces.
BUFFER_BYTES = 1 << 20
PIECE_BYTES = 64 << 20
ALGORITHM = "xxh3-128"

Sink = Callable[[memoryview], object]


def of_bytes(data: bytes | memoryview) -> str:
    """Hex XXH3-128 of `data`."""
    return xxhash.xxh3_128_hexdigest(data)


def raw_of_bytes(data: bytes | memoryview) -> bytes:
    """The 16 raw bytes of XXH3-128 of `data`."""
    return xxhash.xxh3_128_digest(data)


def tree_root(pieces: Sequence[bytes]) -> str:
    """Hex digest of a file from the raw digests of its pieces of `PIECE_BYTES`, in order.

    It is XXH3-128 over them; a file of one piece has that piece's own digest, which any xxhsum
    prints.
    """
    if len(pieces) == 1:
        return pieces[0].hex()
    return xxhash.xxh3_128_hexdigest(b"".join(pieces))


def of_mapping(parts: Mapping[str, str]) -> str:
    """Digest of named digests, independent of their order."""
    state = xxhash.xxh3_128()
    for name in sorted(parts):
        state.update(f"{name}\0{parts[name]}\n".encode())
    return state.hexdigest()


def sha256_of_bytes(data: bytes) -> str:
    """Hex SHA-256, for anything that a report quotes: XXH3 finds corruption, not tampering."""
    return hashlib.sha256(data).hexdigest()


def open_regular(path: str | Path) -> FileIO:
    """Open a regular file for reading, unbuffered.

    Whatever else stands in its place is refused without waiting for it.

    Raises:
        OSError: it cannot be opened, or is a pipe, a device or a folder.
    """
    handle = os.open(
        path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    )  # a pipe would wait for a writer
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return FileIO(handle, "rb")


def read_pass(path: Path, sinks: Iterable[Sink]) -> int:
    """Read `path` once and hand every chunk to every sink; returns the number of bytes read.

    The file is read to where it ended when it was opened: one that grows meanwhile, however fast,
    has an end.

    Raises:
        EvidenceError: the file cannot be opened or read.
    """
    sinks = tuple(sinks)
    buffer = bytearray(BUFFER_BYTES)
    view = memoryview(buffer)
    total = 0
    try:
        with open_regular(path) as stream:
            num_left = os.fstat(stream.fileno()).st_size
            while count := stream.readinto(view[:num_left]):
                for sink in sinks:
                    sink(view[:count])
                total += count
                num_left -= count
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error
    return total


def of_file(path: Path) -> str:
    """Hex XXH3-128 of a file's bytes.

    Raises:
        EvidenceError: the file cannot be read.
    """
    state = xxhash.xxh3_128()
    read_pass(path, (state.update,))
    return state.hexdigest()


def tree_of_file(path: Path) -> str:
    """Hex tree digest of a file (`tree_root`), whose pieces many workers can take.

    Up to 64 MiB the same as `of_file`.

    Raises:
        EvidenceError: the file cannot be read.
    """
    pieces = _Pieces()
    read_pass(path, (pieces.update,))
    return tree_root(pieces.done())


class _Pieces:
    """The raw digests of a file's pieces while it is read in order, in chunks of any length."""

    def __init__(self) -> None:
        self._done: list[bytes] = []
        self._state, self._num_bytes = xxhash.xxh3_128(), 0

    def update(self, chunk: memoryview) -> None:
        """The next bytes."""
        while len(chunk):
            if self._num_bytes == PIECE_BYTES:
                self._next()
            taken = chunk[: PIECE_BYTES - self._num_bytes]
            self._state.update(taken)
            self._num_bytes += len(taken)
            chunk = chunk[len(taken) :]

    def done(self) -> list[bytes]:
        """Every piece's digest; a file without a byte has one piece."""
        if self._num_bytes or not self._done:
            self._next()
        return self._done

    def _next(self) -> None:
        self._done.append(self._state.digest())
        self._state, self._num_bytes = xxhash.xxh3_128(), 0


def sha256_of_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes.

    Raises:
        EvidenceError: the file cannot be read.
    """
    state = hashlib.sha256()
    read_pass(path, (state.update,))
    return state.hexdigest()


def of_tree(folder: Path, pattern: str = "*.py") -> str:
    """Digest of every file below `folder` that matches `pattern`, with its relative POSIX path.

    Raises:
        EvidenceError: a file cannot be read.
    """
    parts = {}
    for path in sorted(folder.rglob(pattern)):
        if path.is_file() and "__pycache__" not in path.parts:
            parts[path.relative_to(folder).as_posix()] = of_file(path)
    return of_mapping(parts)
