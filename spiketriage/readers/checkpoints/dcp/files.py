"""Holds the files of a torch DCP checkpoint against its metadata: lost, cut, swapped, overlapping.

This module never reads a tensor's bytes: of some slices it reads the little archive around them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

from spiketriage.digests import open_regular
from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import Chunk, TensorFacts
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.dcp.metadata import Metadata, Slice
from spiketriage.readers.checkpoints.files import safetensors_file
from spiketriage.readers.checkpoints.files.torch_zip import TensorRef, read_torch_file
from spiketriage.readers.checkpoints.files.zip_records import LOCAL
from spiketriage.readers.look import LFS_HEAD

MAX_MISSING = 20  # with more of them, one sentence is for all
# How many slices are opened to see whether they hold what they should: swapped files differ in most
# of theirs, so a few of each are enough.
MAX_SAMPLES = 1024
MAX_SAMPLES_A_FILE = 16
_HEAD_BYTES = 10
_RANK = re.compile(r"__(\d{1,9})_\d+\.distcp\Z")
_SHARDING = "DCP_SHARDING_INFO"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What lies on disk: the tensors with those chunks that are there, and the other objects."""

    tensors: tuple[TensorFacts, ...]
    objects: tuple[Slice, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


class _Place(NamedTuple):  # a large run has some hundred thousand, which are sorted
    """Where the metadata puts a piece in its file; `number` is that of the piece."""

    start: int
    end: int
    number: int


def check(folder: Path, metadata: Metadata, sizes: Mapping[str, int]) -> Checked:
    """Hold the files in `folder`, of the given sizes by relative path, against the metadata."""
    job = _Job(folder, metadata, sizes)
    missing = sorted(path for path in job.places if path not in sizes)
    if len(missing) > MAX_MISSING:
        lost = list(chain.from_iterable(job.places[path] for path in missing))
        job.lose(missing[0], f"is missing, and {len(missing) - 1} files more", lost)
    else:
        for path in missing:
            job.lose(path, "is missing")
    for path in sorted(job.places.keys() & sizes.keys()):
        try:
            job.check_file(path)
        except EvidenceError as error:
            job.lose(path, f"cannot be read ({error.message})")
        except (OSError, ValueError) as error:  # ValueError: a path that no system call takes
            job.lose(path, f"cannot be read ({error})")
    return job.result()


def world_size(paths: Iterable[str]) -> int | None:
    """The least number of ranks that can have written these files, by the highest in a name."""
    highest = -1
    for path in paths:
        rank = _RANK.search(path)
        if rank:
            highest = max(highest, int(rank[1]))
    if highest < 0:
        return None
    return highest + 1


class _Job:
    """Pieces are numbered: the objects first, then the chunks of one tensor after the other."""

    def __init__(self, folder: Path, metadata: Metadata, sizes: Mapping[str, int]) -> None:
        self._folder, self._metadata, self._sizes = folder, metadata, sizes
        self._pieces: list[Slice | Chunk] = [*metadata.objects]
        self._owners: list[TensorFacts | None] = [None] * len(self._pieces)
        for tensor in metadata.tensors:
            self._pieces += tensor.chunks
            self._owners += [tensor] * len(tensor.chunks)
        self.places: dict[str, list[_Place]] = {}  # of the pieces in each file
        for number, piece in enumerate(self._pieces):
            place = _Place(start=piece.start, end=piece.end, number=number)
            self.places.setdefault(piece.path, []).append(place)
        # What a chunk has turned out to be: None where it is lost.
        self._corrected: dict[int, Chunk | None] = {}
        self._samples_left = MAX_SAMPLES
        self._problems: list[str] = []
        self._scattered: list[str] = []

    def check_file(self, path: str) -> None:
        """Check one file that is there."""
        places, size_bytes = sorted(self.places[path]), self._sizes[path]
        chunks = []
        for place in places:
            if self._owners[place.number] is not None and place.end > place.start:
                chunks.append(place)
        head = b""
        with open_regular(self._folder / path) as stream:
            if os.pread(stream.fileno(), len(LFS_HEAD), 0) == LFS_HEAD:
                self.lose(path, "is a Git-LFS pointer: the file was never fetched (git lfs pull)")
                return
            if chunks:
                head = os.pread(stream.fileno(), _HEAD_BYTES, chunks[0].start)
        # A safetensors header begins with its length in eight bytes, and goes on as JSON.
        if head[8:9] == b"{" and not head.startswith(LOCAL):
            self._check_safetensors(path, places, chunks[0].start)
            return
        self._sample(path, [place for place in chunks if place.end <= size_bytes])
        if not all(place.number in self._corrected for place in places):
            self._check_size(path, places)
        self._check_overlaps(path, places)

    def lose(self, path: str, why: str, lost: Sequence[_Place] | None = None) -> None:
        """Say why a file, or what is `lost` of it, cannot be used, and which keys that costs."""
        if lost is None:
            lost = self.places[path]
        numbers = [place.number for place in lost]
        self._corrected.update(dict.fromkeys(numbers))
        keys = {self._key(number) for number in numbers}
        labels = some(self._label(number) for number in numbers)
        self._problems.append(
            f"{self._folder / path}: {why}; {len(numbers)} slices of {len(keys)} keys: {labels}"
        )

    def result(self) -> Checked:
        """What is there after all files were checked, and everything that is wrong."""
        tensors = []
        first = len(self._metadata.objects)
        for tensor in self._metadata.tensors:
            tensors.append(self._as_stored(tensor, first))
            first += len(tensor.chunks)
        objects = []
        for number, place in enumerate(self._metadata.objects):
            if number not in self._corrected:
                objects.append(place)
        notes = []
        if self._scattered:
            notes.append(
                f"{some(self._scattered)}: not stored row-major, so the index of an "
                "element does not hold"
            )
        return Checked(
            tensors=tuple(tensors),
            objects=tuple(objects),
            problems=tuple(self._problems),
            notes=tuple(notes),
        )

    def _as_stored(self, tensor: TensorFacts, first: int) -> TensorFacts:
        """The tensor, whose first chunk has the number `first`, without chunks lost or empty."""
        chunks = []
        for number, chunk in enumerate(tensor.chunks, first):
            stored = self._corrected.get(number, chunk)
            if stored is not None and 0 not in stored.shape:
                chunks.append(stored)
        if len(chunks) == len(tensor.chunks) and not self._corrected:
            return tensor
        return replace(tensor, chunks=tuple(chunks))

    def _key(self, number: int) -> str:
        piece, tensor = self._pieces[number], self._owners[number]
        if isinstance(piece, Slice):
            return piece.key
        if tensor is not None:
            return tensor.name
        return ""

    def _label(self, number: int) -> str:
        piece = self._pieces[number]
        if isinstance(piece, Chunk) and piece.offset:
            return f"{self._key(number)} at {list(piece.offset)}"
        return self._key(number)

    def _check_size(self, path: str, places: Sequence[_Place]) -> None:
        size_bytes, expected = self._sizes[path], _end(places)
        lost = [place for place in places if place.end > size_bytes]
        if lost:
            self.lose(path, f"is cut short, {size_bytes} bytes of {expected}", lost)
        elif size_bytes > expected:
            self._problems.append(
                f"{self._folder / path}: {size_bytes - expected} bytes follow its last slice"
            )

    def _check_overlaps(self, path: str, places: Sequence[_Place]) -> None:
        pairs = []
        for before, after in pairwise(places):
            if before.end > after.start and after.end > after.start:
                pairs.append((before, after))
        if not pairs:
            return
        labels = " and ".join(self._label(place.number) for place in pairs[0])
        more = f" ({len(pairs)} such pairs)" if len(pairs) > 1 else ""
        self._problems.append(f"{self._folder / path}: {labels} are said to overlap{more}")

    def _sample(self, path: str, chunks: Sequence[_Place]) -> None:
        """Whether some slices hold the tensors that they should: what swapped rank files do not."""
        if self._samples_left <= 0:
            return
        stride = max(1, -(-len(chunks) // min(MAX_SAMPLES_A_FILE, self._samples_left)))
        samples = chunks[::stride]
        self._samples_left -= len(samples)
        wrong = {}
        for place in samples:
            if self._key(place.number) not in self._metadata.transformed:
                why = self._contradiction(path, place.number)
                if why:
                    wrong[place.number] = why
        if not wrong:
            return
        number, why = next(iter(wrong.items()))
        twin = self._twin(path)
        rival = f"{twin}, by their sizes" if twin else "another rank's file"
        sentence = (
            f"{len(wrong)} of {len(samples)} slices looked at do not hold what .metadata says "
            f"({self._label(number)}: {why.removeprefix(f'{self._folder / path} ')}): damaged, or "
            f"swapped with {rival}"
        )
        if len(wrong) == len(samples) and (twin or len(samples) > 1):
            self.lose(path, sentence)  # nothing in it can be believed to be what it is called
        else:
            self._problems.append(f"{self._folder / path}: {sentence}")

    def _twin(self, path: str) -> str:
        """The only file that has the size which this one should have, and the other way round.

        Empty if none is.
        """
        size_bytes, expected = self._sizes[path], _end(self.places[path])
        if size_bytes == expected:
            return ""
        twins = []
        for other, places in self.places.items():
            if self._sizes.get(other) == expected and _end(places) == size_bytes:
                twins.append(other)
        if len(twins) == 1:
            return twins[0]
        return ""

    def _contradiction(self, path: str, number: int) -> str:
        """What a slice holds instead of its chunk; empty where it is as the metadata says."""
        piece, tensor = self._pieces[number], self._owners[number]
        assert isinstance(piece, Chunk)
        assert tensor is not None
        try:
            file = read_torch_file(self._folder / path, start=piece.start, end=piece.end)
        except EvidenceError as error:
            return error.message
        stored = file.value
        if not isinstance(stored, TensorRef):
            return "no tensor"
        if (stored.dtype, stored.shape) != (tensor.dtype, piece.shape):
            return (
                f"expected {tensor.dtype} {list(piece.shape)}, found {stored.dtype} "
                f"{list(stored.shape)}"
            )
        if not stored.contiguous:
            self._scattered.append(self._label(number))
        return "; ".join(file.problems)

    def _check_safetensors(self, path: str, places: Sequence[_Place], at: int) -> None:
        """Check a file of the SAFETENSORS serialization.

        Objects come first, then from byte `at` on one safetensors file with all of its tensors.
        """
        where, size_bytes = self._folder / path, self._sizes[path]
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
        for place in places:
            piece, tensor = self._pieces[place.number], self._owners[place.number]
            if tensor is None or not isinstance(piece, Chunk):
                if piece.end > at:
                    lost.append(place)
                continue
            entry = entries.get(tensor.name)
            is_elsewhere = offsets.get(tensor.name, piece.offset) != piece.offset
            if entry is None or entry.end > size_bytes or is_elsewhere:
                lost.append(place)
                continue
            if (entry.dtype, entry.shape) != (tensor.dtype, piece.shape):
                lost.append(place)
                continue
            self._corrected[place.number] = replace(
                piece, start=entry.start, end=entry.end, container="raw"
            )
        if lost:
            self.lose(path, "does not hold what .metadata says", lost)


def _end(places: Iterable[_Place]) -> int:
    """Where the last of the slices ends, which is where its file should."""
    return max(place.end for place in places)


def _saved_offsets(metadata: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Where each tensor of the file lies in the whole one, as far as the file says so itself."""
    try:
        value = json.loads(metadata.get(_SHARDING, "{}"))
        return {name: tuple(sharding["saved_offsets"]) for name, sharding in value.items()}
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return {}
