"""Reads files that are nothing but token ids, as nanoGPT, llm.c, modded-nanogpt and OLMo write.

This module never claims to know where a document ends without the id that ends it, and never
replays a random draw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from spiketriage.errors import CorruptFileError, EvidenceError, RefusedError
from spiketriage.nouns.data import DataFacts
from spiketriage.nouns.series import Integers
from spiketriage.readers.data import disk
from spiketriage.readers.data.borders import Stream, borders
from spiketriage.readers.data.npy_file import MAGIC as NPY_MAGIC
from spiketriage.readers.data.npy_file import read_npy
from spiketriage.readers.data.olmo_order import instances_of_step
from spiketriage.readers.look import Look, look_at_file

NAME = "flat-tokens"
TELLS = (
    "Every token in its place, a shard shorter or longer than its header says, and OLMo's "
    "instances of each step."
)
CANNOT = (
    "Where documents end unless the id that ends them is given, and which tokens a step of "
    "nanoGPT drew."
)

SUFFIXES = (".bin", ".npy")
WINDOW_TOKENS = 1024  # what is shown as a document while nobody says where documents end
SHARD_HEADER_BYTES = 1024
# by magic and version, of llm.c and modded-nanogpt
SHARDS = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
EVALUATION_MAGIC = 20240522
OTHER_BINARY = (b"PK", b"\x80", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"GGUF", b"MMIDIDX")
SAMPLE_BYTES = 4096
MIN_DIFFERENT = 16  # values, below which a sample shows nothing
HIGH_WORD = 3  # of an id below 262,144, the size of the largest usual vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One file: its tokens lie from byte `start` to byte `end`."""

    path: Path
    start: int
    end: int
    dtype: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def num_tokens(self) -> int:
        return (self.end - self.start) // np.dtype(self.dtype).itemsize

    @property
    def num_windows(self) -> int:
        return -(-self.num_tokens // WINDOW_TOKENS)


def claims(seen: Look) -> float:
    """A shard header, a usual name, or a name that such a file could have."""
    if seen.is_folder:
        tried = []
        for name in seen.names[:64]:
            if name.endswith(SUFFIXES):
                tried.append(_file_claim(name, disk.head_of(seen.path / name)))
        return 0.9 * max(tried, default=0.0)
    return _file_claim(seen.path.name, seen.head)


def read(path: Path) -> DataFacts:
    """The token files at `path`: one, or all of a folder in the order of their names.

    Raises:
        EvidenceError: no file of tokens is there, or it cannot be read.
    """
    parts = _parts(path)
    root = path if disk.is_folder(path) else path.parent
    unknown = (
        "where documents end is not stored: without the id that ends them, windows of 1,024 "
        "tokens are shown"
    )
    return DataFacts(
        format=NAME,
        path=path,
        files=disk.stored_files(root, (part.path for part in parts)),
        num_documents=None,
        num_tokens=sum(part.num_tokens for part in parts),
        dtype=" and ".join(sorted({np.dtype(part.dtype).name for part in parts})),
        problems=tuple(chain.from_iterable(part.problems for part in parts)),
        notes=(unknown, *dict.fromkeys(chain.from_iterable(part.notes for part in parts))),
    )


def count(path: Path, /, *, eos: int | None = None) -> int:
    """How many documents `eos` cuts the tokens into, or how many windows of 1,024 without it.

    Raises:
        EvidenceError: a file cannot be read.
    """
    return sum(_counts(_parts(path), eos))


def document(path: Path, number: int, /) -> Integers:
    """The tokens of one window of 1,024: the file does not say where documents end (see `stored`).

    Raises:
        EvidenceError: there is no such window, or it cannot be read.
    """
    return stored(path, number).tokens


def stored(path: Path, number: int, /, *, eos: int | None = None) -> disk.StoredDocument:
    """One document as the id `eos` cuts them, or one window without it.

    Files of a folder follow one another. A document keeps its `eos`, at its end or,
    where the file begins with one, at its start. None spans two files.

    Raises:
        EvidenceError: there is no such document, or it cannot be read.
    """
    parts = _parts(path)
    where = disk.place(path, _counts(parts, eos), number)
    part = parts[where.part]
    if eos is None:
        first = where.number * WINDOW_TOKENS
        return _tokens(part, first, min(first + WINDOW_TOKENS, part.num_tokens), f"window {number}")
    cuts = borders(_stream(part, eos))
    first, last = cuts.start_of(where.number), cuts.start_of(where.number + 1)
    return _tokens(part, first, last, f"document {number}")


def instance(path: Path, number: int, sequence_length: int, /) -> disk.StoredDocument:
    """OLMo's instance `number`: files are cut into sequences of that length, a short rest is none.

    Files of a folder are taken in the order of their names, which is the run's only if its
    configuration says so.

    Raises:
        EvidenceError: there is no such instance, or it cannot be read.
        RefusedError: a sequence length below 1.
    """
    if sequence_length < 1:
        raise RefusedError(f"a sequence length of {sequence_length}: it starts at 1")
    parts = _parts(path)
    where = disk.place(path, [part.num_tokens // sequence_length for part in parts], number)
    first = where.number * sequence_length
    return _tokens(parts[where.part], first, first + sequence_length, f"instance {number}")


def documents_of_step(
    path: Path, step: int, global_batch: int, sequence_length: int, /, *, eos: int | None = None
) -> tuple[int, ...]:
    """The documents (windows without `eos`) that OLMo's instances of a step touch, by number.

    Raises:
        RefusedError: no order was written (nanoGPT and llm.c write none), or several files make the
        numbers ambiguous.
        EvidenceError: the order or the tokens are damaged.
    """
    numbers = instances_of_step(path, step, global_batch)
    parts = _parts(path)
    if len(parts) > 1:
        several = (
            f"the order of these {len(parts)} files is in the run's configuration, not in the "
            "folder"
        )
        raise RefusedError(
            f"{path}: {several}", hint="instances_of_step gives the numbers of the instances"
        )
    if sequence_length < 1:
        raise RefusedError(f"a sequence length of {sequence_length}: it starts at 1")
    find = _finder(parts[0], eos)
    touched: dict[int, None] = {}
    for number in numbers:
        first, last = number * sequence_length, (number + 1) * sequence_length - 1
        if last >= parts[0].num_tokens:
            held = f"instances within {parts[0].num_tokens} tokens"
            raise CorruptFileError(
                parts[0].path, f"instance {number}", expected=held, seen=f"an end at {last}"
            )
        touched |= dict.fromkeys(range(find(first), find(last) + 1))
    return tuple(touched)


def _file_claim(name: str, head: bytes) -> float:
    if _magic(head) in {magic for magic, _ in SHARDS}:
        return 0.97
    if _magic(head) == EVALUATION_MAGIC:
        return 0.9
    if name.startswith("global_") or not name.endswith(SUFFIXES) or head.startswith(OTHER_BINARY):
        return 0.0
    if name in ("train.bin", "val.bin"):
        return 0.7
    if head.startswith(NPY_MAGIC):
        return 0.3 if "index" in name or "idx" in name else 0.6
    if name.endswith(".npy"):
        return 0.6 if len(head) > 1 else 0.2
    if len(head) > 1 and not 20240000 < _magic(head) < 20260000:  # another header of llm.c
        return 0.2
    return 0.0


def _magic(head: bytes) -> int:
    if len(head) >= 4:
        return int.from_bytes(head[:4], "little")
    return 0


def _parts(path: Path) -> tuple[_Part, ...]:
    paths = disk.parts_of(path, SUFFIXES)
    if disk.is_folder(path):
        paths = tuple(file for file in paths if _file_claim(file.name, disk.head_of(file)) >= 0.2)
    if not paths:
        raise EvidenceError(f"{path}: holds no file of tokens (.bin or .npy)")
    return tuple(map(_part, paths))


@disk.once_a_file
def _part(path: Path) -> _Part:
    seen = look_at_file(path)
    magic, version = _magic(seen.head), _magic(seen.head[4:8])
    if magic == EVALUATION_MAGIC:
        raise EvidenceError(
            f"{path}: is an evaluation file of llm.c (multiple choice), not a stream of tokens"
        )
    if magic in {known for known, _ in SHARDS}:
        return _shard(seen, magic, version)
    if seen.head.startswith(NPY_MAGIC):
        array = read_npy(path)
        end = array.start + array.shape[0] * array.row_bytes
        extra = seen.size_bytes - end
        problems = (f"{path.name}: {extra} bytes follow the array, expected none",) if extra else ()
        return _Part(
            path=path, start=array.start, end=end, dtype=array.dtype.str, problems=problems
        )
    return _raw(seen)


def _shard(seen: Look, magic: int, version: int) -> _Part:
    path, name = seen.path, seen.path.name
    if (magic, version) not in SHARDS:
        raise CorruptFileError(path, "version", expected=f"the one of magic {magic}", seen=version)
    if len(seen.head) < SHARD_HEADER_BYTES:
        raise CorruptFileError(
            path, "header", expected=f"{SHARD_HEADER_BYTES} bytes", seen=len(seen.head)
        )
    dtype = SHARDS[magic, version]
    width = np.dtype(dtype).itemsize
    promised = int.from_bytes(seen.head[8:12], "little", signed=True)
    held = (seen.size_bytes - SHARD_HEADER_BYTES) // width
    problems = []
    if promised * width != seen.size_bytes - SHARD_HEADER_BYTES:
        seen_bytes = f"found {seen.size_bytes - SHARD_HEADER_BYTES} bytes"
        problems.append(
            f"{name}: the header promises {promised} tokens of {width} bytes, {seen_bytes} after it"
        )
    end = SHARD_HEADER_BYTES + min(max(promised, 0), held) * width
    return _Part(
        path=path, start=SHARD_HEADER_BYTES, end=end, dtype=dtype, problems=tuple(problems)
    )


def _raw(seen: Look) -> _Part:
    path, size_bytes = seen.path, seen.size_bytes
    dtype = _guessed_dtype(path, size_bytes)
    width = np.dtype(dtype).itemsize
    problems = []
    if not size_bytes:
        problems.append(f"{path.name}: is empty, expected tokens")
    elif size_bytes % width:
        problems.append(
            f"{path.name}: its {size_bytes} bytes are no whole number of {width}-byte tokens"
        )
    note = (
        f"{path.name}: the file does not state its type; {np.dtype(dtype).name} is inferred "
        "from its values"
    )
    end = size_bytes - size_bytes % width
    return _Part(path=path, start=0, end=end, dtype=dtype, problems=tuple(problems), notes=(note,))


def _guessed_dtype(path: Path, size_bytes: int) -> str:
    """The usual 16 bits, unless every other word is as small as high halves of 32-bit ids are."""
    if size_bytes % 4:
        return "<u2"
    words: list[Integers] = []
    for at in (0, size_bytes // 8 * 4, max(size_bytes - SAMPLE_BYTES, 0) // 4 * 4):
        data = disk.read_range(path, at, min(at + SAMPLE_BYTES, size_bytes), "sample")
        words.append(disk.integers(data, np.dtype("<u2"))[: len(data) // 4 * 2])
    sample = np.concatenate(words)
    low, high = sample[::2], sample[1::2]
    is_varied = len(np.unique(low)) >= MIN_DIFFERENT and (low <= HIGH_WORD).mean() <= 0.5
    if is_varied and (high <= HIGH_WORD).mean() >= 0.9:
        return "<u4"
    return "<u2"


def _stream(part: _Part, eos: int) -> Stream:
    return Stream(path=part.path, start=part.start, end=part.end, dtype=part.dtype, separator=eos)


def _counts(parts: tuple[_Part, ...], eos: int | None) -> list[int]:
    if eos is None:
        return [part.num_windows for part in parts]
    counts = []
    for part in parts:
        counts.append(borders(_stream(part, eos)).num_items if part.num_tokens else 0)
    return counts


def _tokens(part: _Part, first: int, last: int, what: str) -> disk.StoredDocument:
    dtype = np.dtype(part.dtype)
    start = part.start + first * dtype.itemsize
    data = disk.read_range(part.path, start, part.start + last * dtype.itemsize, what)
    return disk.document_of(part.path.name, start, data, disk.integers(data, dtype))


def _finder(part: _Part, eos: int | None) -> Callable[[int], int]:
    """A function from a token's place to its document (or window)."""
    if eos is None:
        return lambda at: at // WINDOW_TOKENS
    return borders(_stream(part, eos)).item_at
