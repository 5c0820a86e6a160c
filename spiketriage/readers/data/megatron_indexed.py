"""Reads Megatron's indexed data sets: `.bin` of tokens, `.idx` of places, caches of the order.

This module never believes a count or an offset that the files cannot hold, and never rebuilds a
shuffle by guess.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.nouns.data import DataFacts
from spiketriage.nouns.series import Integers
from spiketriage.readers.data import disk
from spiketriage.readers.data.megatron_order import samples_of_step, sequences_of_samples
from spiketriage.readers.look import Look, look, look_at_file

NAME = "megatron-indexed"
TELLS = (
    "Every document's place and tokens, an .idx that disagrees with its .bin, and a step's "
    "documents by Megatron's cached index."
)
CANNOT = "The order of samples without that cache, of a blend of sets, or of a cyclic loader."

MAGIC = b"MMIDIDX\x00\x00"
HEADER_BYTES = 34
DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
NUM_AT_ONCE = 1 << 16
MOST_PROBLEMS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """The header of an `.idx`, and where its three arrays lie if its counts are true."""

    path: Path
    size_bytes: int
    dtype: np.dtype[np.generic]
    num_sequences: int
    num_borders: int

    @property
    def bin_path(self) -> Path:
        return self.path.with_suffix(".bin")

    @property
    def pointers_at(self) -> int:
        return HEADER_BYTES + 4 * self.num_sequences

    @property
    def borders_at(self) -> int:
        return self.pointers_at + 8 * self.num_sequences

    @property
    def end(self) -> int:
        return self.borders_at + 8 * self.num_borders

    @property
    def is_whole(self) -> bool:
        return self.end <= self.size_bytes

    def lengths(self, first: int, last: int) -> Integers:
        """How many tokens each sequence has."""
        return self._read(HEADER_BYTES, "<i4", first, last, "sequence lengths")

    def pointers(self, first: int, last: int) -> Integers:
        """The byte of the `.bin` at which each sequence starts."""
        return self._read(self.pointers_at, "<i8", first, last, "sequence pointers")

    def borders(self, first: int, last: int) -> Integers:
        """The sequence with which each document starts; one more than there are documents."""
        return self._read(self.borders_at, "<i8", first, last, "document indices")

    def _read(self, start: int, dtype: str, first: int, last: int, what: str) -> Integers:
        width = np.dtype(dtype).itemsize
        data = disk.read_range(self.path, start + first * width, start + last * width, what)
        return disk.integers(data, np.dtype(dtype))


@dataclass(slots=True, kw_only=True)
class _Audit:
    """What one walk over the index adds up."""

    num_tokens: int = 0
    next_byte: int = 0
    problems: list[str]

    def add(self, sentence: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(sentence)
        elif len(self.problems) == MOST_PROBLEMS:
            self.problems.append("more problems of this kind are not listed")


def claims(seen: Look) -> float:
    """An `.idx` with the magic, its `.bin`, or a folder with one such pair or of that name."""
    if not seen.is_folder:
        if seen.head.startswith(MAGIC):
            return 0.99
        if seen.path.suffix == ".bin" and _is_index(seen.path.with_suffix(".idx")):
            return 0.95
        return 0.0
    indexes = [name for name in seen.names if name.endswith(".idx")]
    if not indexes and _is_index(_beside(seen.path)):
        return 0.9
    if len(indexes) != 1:
        return 0.0
    if _is_index(seen.path / indexes[0]):
        return 0.9
    if f"{indexes[0].removesuffix('.idx')}.bin" in seen.names:
        return 0.6  # by the names alone: it is damaged
    return 0.0


def read(path: Path) -> DataFacts:
    """The set at `path`: every length and place of the index checked against the `.bin`.

    Raises:
        EvidenceError: there is no index, or its header cannot be believed.
    """
    index = _index(path)
    audit = _Audit(problems=[])
    bin_bytes = _bin_bytes(index, audit)
    if index.is_whole:
        _audit_sequences(index, bin_bytes, audit)
        _audit_documents(index, audit)
    else:
        seen = f"the file has {index.size_bytes}"
        promised = (
            f"{index.num_sequences} sequences and {index.num_borders} document borders need "
            f"{index.end} bytes"
        )
        audit.add(f"{index.path.name}: {promised}, {seen}: it is cut short or its counts are wrong")
    extra = index.size_bytes - index.end
    # One byte a sequence is the mode of a multimodal set.
    if index.is_whole and extra not in (0, index.num_sequences):
        audit.add(f"{index.path.name}: {extra} bytes follow the index, expected none")
    return DataFacts(
        format=NAME,
        path=path,
        files=disk.stored_files(index.path.parent, (index.path, index.bin_path)),
        num_documents=max(index.num_borders - 1, 0) if index.is_whole else None,
        num_tokens=audit.num_tokens if index.is_whole else None,
        dtype=index.dtype.name,
        problems=tuple(audit.problems),
        notes=(
            "the index holds no digest: a flipped bit in a token shows only in the "
            "statistics of its document",
        ),
    )


def count(path: Path, /, *, eos: int | None = None) -> int:
    """How many documents the set has; `eos` plays no part.

    Raises:
        EvidenceError: the index cannot be read, or does not hold what it counts.
    """
    index = _index(path)
    _whole(index)
    return max(index.num_borders - 1, 0)


def document(path: Path, number: int, /) -> Integers:
    """The token ids of one document, all its sequences one after another.

    Raises:
        EvidenceError: there is no such document, or the files do not hold it.
    """
    return stored(path, number).tokens


def stored(path: Path, number: int, /, *, eos: int | None = None) -> disk.StoredDocument:
    """One document with its place in the `.bin`; `eos` plays no part.

    Raises:
        EvidenceError: there is no such document, its sequences do not follow one another, or they
        lie outside.
    """
    index = _index(path)
    _whole(index)
    num_documents = max(index.num_borders - 1, 0)
    if not 0 <= number < num_documents:
        raise EvidenceError(f"{index.path}: has no document {number}; it holds {num_documents}")
    if index.dtype.kind not in "iu":
        raise EvidenceError(f"{index.path}: holds {index.dtype.name}, which are no token ids")
    first, last = (int(value) for value in index.borders(number, number + 2))
    where = f"document {number}"
    if not 0 <= first <= last <= index.num_sequences:
        expected = f"sequences within {index.num_sequences}"
        raise CorruptFileError(index.path, where, expected=expected, seen=f"{first} to {last}")
    if first == last:
        return disk.document_of(index.bin_path.name, 0, b"", np.zeros(0, dtype=np.int64))
    lengths, pointers = index.lengths(first, last), index.pointers(first, last)
    sizes = lengths * index.dtype.itemsize
    are_counts = (lengths >= 0).all() and (pointers >= 0).all()
    if not are_counts or (pointers[1:] != pointers[:-1] + sizes[:-1]).any():
        raise CorruptFileError(
            index.path, where, expected="sequences that follow one another", seen="others"
        )
    start = int(pointers[0])
    data = disk.read_range(index.bin_path, start, start + int(sizes.sum()), where)
    return disk.document_of(index.bin_path.name, start, data, disk.integers(data, index.dtype))


def documents_of_step(
    path: Path,
    step: int,
    global_batch: int,
    sequence_length: int,
    /,
    *,
    eos: int | None = None,
    caches: Path | None = None,
) -> tuple[int, ...]:
    """The documents of training step `step` in order of first use; Megatron's first is step 1.

    Samples (step - 1) x `global_batch` up to step x `global_batch` go through the cached shuffle
    index to the sample index and through the document index to sequences. `caches` is the folder
    given to `--data-cache-path`; `eos` plays no part.

    Raises:
        RefusedError: the caches are absent, ambiguous, of another sequence length, or end before
        this step.
        EvidenceError: a cache or the index is damaged.
    """
    index = _index(path)
    _whole(index)
    samples = samples_of_step(step, global_batch)
    sequences = sequences_of_samples(index.path, samples, sequence_length, caches)
    if len(sequences) and not (sequences.min() >= 0 and sequences.max() < index.num_sequences):
        expected = f"sequences within {index.num_sequences}"
        raise CorruptFileError(
            index.path, f"cached order of step {step}", expected=expected, seen=sequences.max()
        )
    numbers = dict.fromkeys(_document_of(index, int(sequence)) for sequence in sequences)
    return tuple(numbers)


def _document_of(index: _Index, sequence: int) -> int:
    """The document that a sequence belongs to: by bisection, since a set may have 10^9 of them."""
    low, high = 0, max(index.num_borders - 1, 0)
    if index.num_sequences == high and int(index.borders(sequence, sequence + 1)[0]) == sequence:
        return sequence  # one sequence a document, as the usual preprocessing writes it
    while high - low > 1:
        middle = (low + high) // 2
        if int(index.borders(middle, middle + 1)[0]) <= sequence:
            low = middle
        else:
            high = middle
    return low


def _is_index(path: Path) -> bool:
    return disk.head_of(path).startswith(MAGIC)


def _beside(prefix: Path) -> Path:
    """The index of a prefix as `--data-path` takes it; the folder of that name holds its caches."""
    return prefix.parent / f"{prefix.name}.idx"


def _index_path(path: Path) -> Path:
    if path.suffix in (".bin", ".idx"):
        return path.with_suffix(".idx")
    beside = _beside(path)
    if disk.is_file(beside) or not disk.is_folder(path):
        return beside
    names = [name for name in look(path).names if name.endswith(".idx")]
    if len(names) != 1:
        listed = ", ".join(names[:3]) or "none"
        raise EvidenceError(
            f"{path}: expected one .idx, found {len(names)} ({listed})", hint="name one .idx file"
        )
    return path / names[0]


def _index(path: Path) -> _Index:
    where = _index_path(path)
    seen = look_at_file(where)
    if not seen.head.startswith(MAGIC):
        raise CorruptFileError(where, "start", expected="MMIDIDX", seen=seen.head[: len(MAGIC)])
    if len(seen.head) < HEADER_BYTES:
        raise CorruptFileError(
            where, "header", expected=f"{HEADER_BYTES} bytes", seen=len(seen.head)
        )
    version, code, num_sequences, num_borders = struct.unpack_from("<QBQQ", seen.head, len(MAGIC))
    if version != 1:
        raise CorruptFileError(where, "version", expected=1, seen=version)
    if code not in DTYPES:
        raise CorruptFileError(where, "dtype code", expected=f"one of {sorted(DTYPES)}", seen=code)
    return _Index(
        path=where,
        size_bytes=seen.size_bytes,
        dtype=np.dtype(DTYPES[code]),
        num_sequences=num_sequences,
        num_borders=num_borders,
    )


def _whole(index: _Index) -> None:
    if not index.is_whole:
        expected = (
            f"{index.end} bytes for {index.num_sequences} sequences and {index.num_borders} "
            "document borders"
        )
        raise CorruptFileError(index.path, "size", expected=expected, seen=index.size_bytes)


def _bin_bytes(index: _Index, audit: _Audit) -> int | None:
    """The size of the `.bin`, or None and a problem where it is absent."""
    try:
        return look_at_file(index.bin_path).size_bytes
    except EvidenceError as error:
        audit.add(error.message)
        return None


def _ranges(total: int) -> Iterator[range]:
    return (range(first, min(first + NUM_AT_ONCE, total)) for first in range(0, total, NUM_AT_ONCE))


def _audit_sequences(index: _Index, bin_bytes: int | None, audit: _Audit) -> None:
    width, name = index.dtype.itemsize, index.path.name
    for span in _ranges(index.num_sequences):
        lengths = index.lengths(span.start, span.stop)
        pointers = index.pointers(span.start, span.stop)
        ends = pointers + lengths * width
        expected = np.concatenate(([audit.next_byte], ends[:-1]))
        audit.num_tokens += int(lengths[lengths > 0].sum())
        for at in np.flatnonzero(lengths < 0)[:MOST_PROBLEMS]:
            audit.add(
                f"{name}: sequence {span.start + at}: expected a length of at least 0, "
                f"found {lengths[at]}"
            )
        for at in np.flatnonzero(pointers != expected)[:MOST_PROBLEMS]:
            seen = f"expected a start at byte {expected[at]}, found {pointers[at]}"
            audit.add(f"{name}: sequence {span.start + at}: {seen}")
        outside = (pointers < 0) | (ends < pointers)
        if bin_bytes is not None:
            outside |= ends > bin_bytes
        for at in np.flatnonzero(outside & (lengths >= 0))[:MOST_PROBLEMS]:
            seen = (
                f"expected an end within the {bin_bytes} bytes of the .bin, found "
                f"{pointers[at]} to {ends[at]}"
            )
            audit.add(f"{name}: sequence {span.start + at}: {seen}")
        audit.next_byte = int(ends[-1])
    if bin_bytes is not None and bin_bytes > max(audit.next_byte, 0) and not audit.problems:
        left = bin_bytes - audit.next_byte
        audit.add(
            f"{index.bin_path.name}: {left} bytes follow the last sequence, which the "
            "index does not know of"
        )


def _audit_documents(index: _Index, audit: _Audit) -> None:
    name, before = index.path.name, 0
    if not index.num_borders:
        audit.add(f"{name}: holds no document border, expected at least the one at sequence 0")
        return
    for span in _ranges(index.num_borders):
        borders = index.borders(span.start, span.stop)
        wrong = np.diff(np.concatenate(([before], borders))) < 0
        for at in np.flatnonzero(wrong | (borders > index.num_sequences))[:MOST_PROBLEMS]:
            expected = f"a sequence within {index.num_sequences}, not before the last border"
            audit.add(
                f"{name}: document border {span.start + at}: expected {expected}, found "
                f"{borders[at]}"
            )
        before = int(borders[-1])
        if not span.start and borders[0] != 0:
            audit.add(f"{name}: document border 0: expected sequence 0, found {borders[0]}")
    if before != index.num_sequences:
        audit.add(
            f"{name}: the last document ends at sequence {before}, expected {index.num_sequences}"
        )
