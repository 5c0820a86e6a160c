"""Holds the files of a torch DCP checkpoint against its metadata.

Missing, short, longer, swapped, overlapping.

This module never reads a tensor's bytes: of some slices it reads the little archive around them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from spiketriage.digests import open_regular
from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import Chunk, TensorFacts
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.dcp.metadata import Metadata, Slice
from spiketriage.readers.checkpoints.files import safetensors_file
from spiketriage.readers.checkpoints.files.torch_zip import TensorRef, read_torch_file
from spiketriage.readers.checkpoints.files.zip_records import LOCAL
from spiketriage.readers.look import LFS_HEAD

MAX_MISSING = 20  # told one by one
MAX_SAMPLES = 1024
MAX_SAMPLES_A_FILE = 16
_RANK = re.compile(r"__(\d{1,9})_\d+\.distcp\Z")
_SHARDING = "DCP_SHARDING_INFO"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What lies on disk.

    The tensors with those chunks that hold elements and do, and the other objects that do.
    """

    tensors: tuple[TensorFacts, ...]
    objects: tuple[Slice, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def check(folder: Path, metadata: Metadata, sizes: Mapping[str, int]) -> Checked:
    """Hold the files in `folder`, of the given sizes by relative path, against what the metadata says."""
    job = _Job(folder, metadata, sizes)
    missing = sorted(path for path in job.held if path not in sizes)
    if len(missing) > MAX_MISSING:
        held = [one for path in missing for one in job.held[path]]
        job.lose(missing[0], f"is missing, and {len(missing) - 1} files more", held)
        missing = []
    for path in missing:
        job.lose(path, "is missing")
    for path in sorted(job.held.keys() & sizes.keys()):
        try:
            job.file(path)
        except (
            EvidenceError,
            OSError,
            ValueError,
        ) as error:  # ValueError: a path that no system call takes
            job.lose(
                path,
                f"cannot be read ({error.message if isinstance(error, EvidenceError) else error})",
            )
    return job.result()


def world_size(paths: Iterable[str]) -> int | None:
    """The least number of ranks that can have written these files.

    The highest in a name, and one.
    """
    ranks = [int(found[1]) for path in paths if (found := _RANK.search(path))]
    if ranks:
        return max(ranks) + 1
    return None


class _Job:
    """Pieces are numbered: the objects first, then the chunks of one tensor after the other."""

    def __init__(self, folder: Path, metadata: Metadata, sizes: Mapping[str, int]) -> None:
        self._folder, self._metadata, self._sizes = folder, metadata, sizes
        self._pieces: list[Slice | Chunk] = [*metadata.objects]
        self._owners: list[TensorFacts | None] = [None] * len(self._pieces)
        for tensor in metadata.tensors:
            self._pieces += tensor.chunks
            self._owners += [tensor] * len(tensor.chunks)
        self.held: dict[
            str, list[tuple[int, int, int]]
        ] = {}  # by path: start, end, number of the piece
        for number, piece in enumerate(self._pieces):
            self.held.setdefault(piece.path, []).append((piece.start, piece.end, number))
        self._now: dict[int, Chunk | None] = {}
        self._samples_left = MAX_SAMPLES
        self._problems: list[str] = []
        self._scattered: list[str] = []

    def file(self, path: str) -> None:
        """Check one file."""
        held, size_bytes = sorted(self.held[path]), self._sizes[path]
        chunks = [one for one in held if self._owners[one[2]] is not None and one[1] > one[0]]
        with open_regular(self._folder / path) as stream:
            if os.pread(stream.fileno(), len(LFS_HEAD), 0) == LFS_HEAD:
                self.lose(path, "is a Git-LFS pointer: the file was never fetched (git lfs pull)")
                return
            if chunks:
                head = os.pread(stream.fileno(), 10, chunks[0][0])
            else:
                head = b""
        if head[8:9] == b"{" and not head.startswith(LOCAL):
            self._safetensors(path, held, chunks[0][0], size_bytes)
        else:
            self._sample(path, [one for one in chunks if one[1] <= size_bytes])
            if not all(number in self._now for _, _, number in held):
                self._size_of_zips(path, held, size_bytes)
            self._overlaps_of_zips(path, held)

    def lose(self, path: str, why: str, lost: Sequence[tuple[int, int, int]] | None = None) -> None:
        """Say why a file, or a part of it, is lost, and what with it."""
        lost = self.held[path] if lost is None else lost
        numbers = [number for _, _, number in lost]
        self._now.update(dict.fromkeys(numbers))
        keys = {self._key(number) for number in numbers}
        named = some(self._label(number) for number in numbers)
        self._problems.append(
            f"{self._folder / path}: {why}; {len(numbers)} slices of {len(keys)} keys: {named}"
        )

    def result(self) -> Checked:
        """Everything found."""
        tensors = list(self._metadata.tensors)
        first = len(self._metadata.objects)
        for place, tensor in enumerate(tensors):
            numbers = range(first, first + len(tensor.chunks))
            first = numbers.stop
            is_changed = bool(self._now) and any(number in self._now for number in numbers)
            if is_changed or any(0 in chunk.shape for chunk in tensor.chunks):
                now = (self._now.get(number, self._pieces[number]) for number in numbers)
                chunks = (
                    chunk for chunk in now if isinstance(chunk, Chunk) and 0 not in chunk.shape
                )
                tensors[place] = replace(tensor, chunks=tuple(chunks))
        return Checked(
            tensors=tuple(tensors),
            objects=tuple(
                one for number, one in enumerate(self._metadata.objects) if number not in self._now
            ),
            problems=tuple(self._problems),
            notes=(
                f"{some(self._scattered)}: not stored row-major, so the index of an "
                "element does not hold",
            )
            if self._scattered
            else (),
        )

    def _key(self, number: int) -> str:
        piece, tensor = self._pieces[number], self._owners[number]
        if isinstance(piece, Slice):
            return piece.key
        if tensor:
            return tensor.name
        return ""

    def _label(self, number: int) -> str:
        piece = self._pieces[number]
        if isinstance(piece, Chunk) and piece.offset:
            at = f" at {list(piece.offset)}"
        else:
            at = ""
        return f"{self._key(number)}{at}"

    def _size_of_zips(
        self, path: str, held: Sequence[tuple[int, int, int]], size_bytes: int
    ) -> None:
        expected = max(end for _, end, _ in held)
        lost = [one for one in held if one[1] > size_bytes]
        if lost:
            self.lose(path, f"is cut short, {size_bytes} bytes of {expected}", lost)
        elif size_bytes > expected:
            self._problems.append(
                f"{self._folder / path}: {size_bytes - expected} bytes follow its last slice"
            )

    def _overlaps_of_zips(self, path: str, held: Sequence[tuple[int, int, int]]) -> None:
        overlapping = [(a, b) for a, b in pairwise(held) if a[1] > b[0] and b[1] > b[0]]
        if overlapping:
            pair = " and ".join(self._label(one[2]) for one in overlapping[0])
            if len(overlapping) > 1:
                more = f" ({len(overlapping)} such pairs)"
            else:
                more = ""
            self._problems.append(f"{self._folder / path}: {pair} are said to overlap{more}")

    def _sample(self, path: str, chunks: Sequence[tuple[int, int, int]]) -> None:
        """Whether some slices hold the tensors that they should: what swapped rank files do not."""
        stride = max(1, -(-len(chunks) // max(1, min(MAX_SAMPLES_A_FILE, self._samples_left))))
        taken = chunks[::stride] if self._samples_left > 0 else []
        self._samples_left -= len(taken)
        wrong = {}
        for _, _, number in taken:
            if self._key(number) not in self._metadata.transformed:
                seen = self._seen(path, number)
                if seen:
                    wrong[number] = seen
        if not wrong:
            return
        number, seen = next(iter(wrong.items()))
        what = f"{len(wrong)} of {len(taken)} slices looked at do not hold what .metadata says"
        twin = self._twin(path)
        if twin:
            rival = f"{twin}, by their sizes"
        else:
            rival = "another rank's file"
        why = seen.removeprefix(f"{self._folder / path} ")
        told = f"{what} ({self._label(number)}: {why}): damaged, or swapped with {rival}"
        if len(wrong) == len(taken) and (twin or len(taken) > 1):
            self.lose(path, told)  # nothing that it holds can be believed to be what it is called
        else:
            self._problems.append(f"{self._folder / path}: {told}")

    def _twin(self, path: str) -> str:
        """The only file that has the size which this one should have, and the other way round.

        Empty if none is.
        """

        def expected(name: str) -> int:
            return max(end for _, end, _ in self.held[name])

        found = [
            name
            for name in self.held
            if expected(path) == self._sizes.get(name) != self._sizes[path] == expected(name)
        ]
        if len(found) == 1:
            return found[0]
        return ""

    def _seen(self, path: str, number: int) -> str:
        piece, tensor = self._pieces[number], self._owners[number]
        assert isinstance(piece, Chunk)
        assert tensor is not None
        try:
            file = read_torch_file(self._folder / path, start=piece.start, end=piece.end)
        except EvidenceError as error:
            return error.message
        found = file.value
        if not isinstance(found, TensorRef):
            return "no tensor"
        if (found.dtype, found.shape) != (tensor.dtype, piece.shape):
            return (
                f"expected {tensor.dtype} {list(piece.shape)}, found {found.dtype} "
                f"{list(found.shape)}"
            )
        if not found.contiguous:
            self._scattered.append(self._label(number))
        return "; ".join(file.problems)

    def _safetensors(
        self, path: str, held: Sequence[tuple[int, int, int]], at: int, size_bytes: int
    ) -> None:
        """A file of the SAFETENSORS serialization.

        Objects, then one safetensors file with all of its tensors.
        """
        where = self._folder / path
        header = safetensors_file.read_header_alone(where, at)
        if header.end > size_bytes:
            self._problems.append(f"{where}: is cut short, {size_bytes} bytes of {header.end}")
        elif header.end < size_bytes:
            self._problems.append(
                f"{where}: {size_bytes - header.end} bytes follow its last tensor"
            )
        entries = {entry.name: entry for entry in header.tensors}
        offsets = _saved_offsets(header.metadata)
        lost = []
        for one in held:
            piece, tensor, entry = (
                self._pieces[one[2]],
                self._owners[one[2]],
                entries.get(self._key(one[2])),
            )
            if tensor is None or not isinstance(piece, Chunk):
                if piece.end > at:
                    lost.append(one)
                continue
            if (
                entry is None
                or (entry.dtype, entry.shape) != (tensor.dtype, piece.shape)
                or offsets.get(tensor.name, piece.offset) != piece.offset
                or entry.end > size_bytes
            ):
                lost.append(one)
            else:
                self._now[one[2]] = replace(
                    piece, start=entry.start, end=entry.end, container="raw"
                )
        if lost:
            self.lose(path, "does not hold what .metadata says", lost)


def _saved_offsets(metadata: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Where each tensor of the file lies in the whole one, as far as the file says so itself."""
    try:
        value = json.loads(metadata.get(_SHARDING, "{}"))
        return {name: tuple(one["saved_offsets"]) for name, one in value.items()}
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return {}
