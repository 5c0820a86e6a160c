"""Reads MosaicML streaming data sets (MDS): `index.json` and the shards that it names.

This module never decompresses a shard, never unpickles a column, and never opens a path outside the
set's folder.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from spiketriage.digests import read_pass
from spiketriage.errors import CorruptFileError, EvidenceError, RefusedError
from spiketriage.nouns.data import DataFacts
from spiketriage.nouns.file import StoredFile
from spiketriage.nouns.series import Integers
from spiketriage.readers.data import disk
from spiketriage.readers.data.mosaic_columns import Column, column_bytes, tokens_of
from spiketriage.readers.json_file import is_count, is_inside, parse_object, read_bytes
from spiketriage.readers.look import Look, look_at_file

NAME = "mosaic-streaming"
TELLS = (
    "Every sample's place and tokens, shards that disagree with the index, and the hashes that "
    "the index lists."
)
CANNOT = (
    "What is inside compressed shards, or the order of samples, which a run shuffles from its "
    "own arguments."
)

INDEX = "index.json"
WANTED = ("tokens", "input_ids", "text")
_COLUMN_LISTS = ("names", "encodings", "sizes")
MAX_SHARD_BYTES = 1 << 32  # its offsets are 32 bits wide
XXH = {
    "xxh32": xxhash.xxh32,
    "xxh64": xxhash.xxh64,
    "xxh3_64": xxhash.xxh3_64,
    "xxh3_128": xxhash.xxh3_128,
}
KNOWN_HASHES = frozenset({*XXH, *(hashlib.algorithms_guaranteed - {"shake_128", "shake_256"})})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shard:
    """One shard as `index.json` describes it; `compression` is empty where only the raw file is."""

    name: str
    num_samples: int
    size_bytes: int
    columns: tuple[Column, ...]
    compression: str
    packed_name: str
    packed_bytes: int
    hashes: dict[str, str]
    packed_hashes: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredShard:
    """The file of a shard that is on disk, with what the index says of it."""

    name: str
    size_bytes: int
    hashes: dict[str, str]
    is_packed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Set:
    """A set's folder and its shards in the order of the index."""

    root: Path
    shards: tuple[_Shard, ...]


def claims(seen: Look) -> float:
    """A folder whose index.json lists MDS shards, or that index."""
    if seen.is_folder:
        if INDEX not in seen.names:
            return 0.0
        if any(".mds" in name for name in seen.names):
            return 0.95
        if _is_index(disk.head_of(seen.path / INDEX)):
            return 0.6
        return 0.0
    if seen.path.name == INDEX and _is_index(seen.head):
        return 0.95
    return 0.0


def read(path: Path) -> DataFacts:
    """The set at `path`: shards that are missing, of another length, or disagree with the index.

    Raises:
        EvidenceError: the index is missing or not one of MDS.
    """
    index = _index(path)
    root, shards = index.root, index.shards
    problems: list[str] = []
    files = [StoredFile(path=INDEX, size_bytes=look_at_file(root / INDEX).size_bytes)]
    packed = sorted({shard.compression for shard in shards if _is_packed(root, shard)})
    for shard in shards:
        stored = _as_stored(root, shard)
        try:
            size_bytes = look_at_file(root / stored.name).size_bytes
        except EvidenceError as error:
            problems.append(error.message)
            continue
        files.append(StoredFile(path=stored.name, size_bytes=size_bytes))
        if size_bytes != stored.size_bytes:
            problems.append(
                f"{stored.name}: expected {stored.size_bytes} bytes, found {size_bytes}"
            )
        if not stored.is_packed:
            problems += _table_problems(root, shard, size_bytes)
    notes = [
        f"shards are compressed with {name}: what is inside them is not read" for name in packed
    ]
    encodings = {_token_column(shard).encoding for shard in shards if shard.columns}
    return DataFacts(
        format=NAME,
        path=path,
        files=tuple(files),
        num_documents=sum(shard.num_samples for shard in shards),
        num_tokens=None,
        dtype=" and ".join(sorted(encodings)),
        problems=tuple(problems),
        notes=(*notes, *_guesses(shards)),
    )


def hash_problems(path: Path) -> tuple[str, ...]:
    """One sentence for each hash in the index that the shards on disk do not have.

    Raises:
        EvidenceError: the index is missing or not one of MDS.
    """
    index = _index(path)
    root, shards = index.root, index.shards
    problems: list[str] = []
    for shard in shards:
        stored = _as_stored(root, shard)
        name = stored.name
        for algorithm, digest in stored.hashes.items():
            try:
                seen = _hash_of(root / name, algorithm)
            except EvidenceError as error:
                problems.append(error.message)
                continue
            if seen != digest.lower():
                problems.append(f"{name}: expected {algorithm} {digest}, found {seen}")
    return tuple(dict.fromkeys(problems))  # a missing shard has one sentence, however many hashes


def count(path: Path, /, *, eos: int | None = None) -> int:
    """How many samples the set has; `eos` plays no part.

    Raises:
        EvidenceError: the index is missing or not one of MDS.
    """
    return sum(shard.num_samples for shard in _index(path).shards)


def document(path: Path, number: int, /) -> Integers:
    """The token ids (or UTF-8 bytes) of one sample.

    Raises:
        EvidenceError: there is no such sample, its shard is compressed, or it cannot be read.
    """
    return stored(path, number).tokens


def stored(path: Path, number: int, /, *, eos: int | None = None) -> disk.StoredDocument:
    """One sample with its place in its shard (all its columns); `eos` plays no part.

    Raises:
        EvidenceError: there is no such sample, its shard is compressed, or it cannot be read.
    """
    index = _index(path)
    root, shards = index.root, index.shards
    where = disk.place(path, [shard.num_samples for shard in shards], number)
    shard = shards[where.part]
    if _is_packed(root, shard):
        packed = f"is compressed with {shard.compression}, which is not read"
        raise EvidenceError(
            f"{root / shard.packed_name}: {packed}", hint="unpack a copy of the shard"
        )
    file, what = root / shard.name, f"sample {where.number}"
    low = 4 + 4 * where.number
    offsets = disk.integers(disk.read_range(file, low, low + 8, what), np.dtype("<u4"))
    start, end = offsets.tolist()
    if start < 4 * (shard.num_samples + 2) or end < start:
        raise CorruptFileError(
            file, what, expected="a place behind the offset table", seen=f"{start} to {end}"
        )
    data = disk.read_range(file, start, end, what)
    column = _token_column(shard)
    tokens = tokens_of(column, column_bytes(file, what, shard.columns, column, data), file, what)
    return disk.document_of(shard.name, start, data, tokens)


def documents_of_step(
    path: Path, step: int, global_batch: int, sequence_length: int, /, *, eos: int | None = None
) -> tuple[int, ...]:
    """Never known from the set alone.

    Raises:
        RefusedError: always; the message says what is missing.
    """
    missing = (
        "num_canonical_nodes, shuffle_algo, shuffle_seed and shuffle_block_size of the run "
        "decide it"
    )
    raise RefusedError(
        f"{path}: the order of samples is not stored with the set: {missing}",
        hint="give a recorder's batch ids",
    )


def _is_index(head: bytes) -> bool:
    return b'"shards"' in head and b'"mds"' in head


def _index(path: Path) -> _Set:
    is_index = path.name == INDEX and not disk.is_folder(path)
    root = path.parent if is_index else path
    return _Set(root=root, shards=_shards(root / INDEX))


@disk.once_a_file
def _shards(where: Path) -> tuple[_Shard, ...]:
    look_at_file(where)
    value = parse_object(where, read_bytes(where))
    if value.get("version") != 2 or not isinstance(value.get("shards"), list):
        expected = "an index of version 2 with a list of shards"
        raise CorruptFileError(
            where, "content", expected=expected, seen=f"version {value.get('version')!r}"
        )
    return tuple(_shard(where, number, shard) for number, shard in enumerate(value["shards"]))


def _shard(where: Path, number: int, value: Any) -> _Shard:
    raw = value.get("raw_data") if isinstance(value, dict) else None
    if not isinstance(raw, dict) or value.get("format") != "mds":
        seen = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise CorruptFileError(
            where, f"shard {number}", expected="an MDS shard with raw_data", seen=seen
        )
    packed = value.get("zip_data")
    if not isinstance(packed, dict):
        packed = {}
    are_counts = is_count(value.get("samples")) and is_count(raw.get("bytes"))
    if not are_counts or not _is_name(raw.get("basename")):
        expected = "a name inside the folder, a size and a number of samples"
        raise CorruptFileError(where, f"shard {number}", expected=expected, seen=str(raw)[:200])
    if raw["bytes"] >= MAX_SHARD_BYTES or value["samples"] > raw["bytes"] // 4:
        expected = "a size of 32 bits and an offset of 4 bytes for each sample"
        seen = f"{value['samples']} samples in {raw['bytes']} bytes"
        raise CorruptFileError(where, f"shard {number}", expected=expected, seen=seen)
    if packed and not (_is_name(packed.get("basename")) and is_count(packed.get("bytes"))):
        expected = "a name inside the folder and a size"
        raise CorruptFileError(where, f"shard {number}", expected=expected, seen=str(packed)[:200])
    return _Shard(
        name=raw["basename"],
        num_samples=value["samples"],
        size_bytes=raw["bytes"],
        columns=_columns(where, number, value),
        compression=str(value.get("compression") or "something unnamed") if packed else "",
        packed_name=packed.get("basename", ""),
        packed_bytes=packed.get("bytes", 0),
        hashes=_hashes(raw),
        packed_hashes=_hashes(packed),
    )


def _columns(where: Path, number: int, value: dict[str, Any]) -> tuple[Column, ...]:
    names, encodings, sizes = (value.get(f"column_{kind}") for kind in _COLUMN_LISTS)
    if not (isinstance(names, list) and isinstance(encodings, list) and isinstance(sizes, list)):
        raise CorruptFileError(
            where, f"shard {number}", expected="lists of columns", seen=type(names).__name__
        )
    columns = []
    for name, encoding, size in zip(names, encodings, sizes, strict=False):
        if isinstance(name, str) and isinstance(encoding, str) and (size is None or is_count(size)):
            columns.append(Column(name=name, encoding=encoding, size_bytes=size or None))
    if not columns or not len(columns) == len(names) == len(encodings) == len(sizes):
        seen = f"{len(names)}, {len(encodings)} and {len(sizes)} entries"
        raise CorruptFileError(
            where, f"shard {number}", expected="equally many names, encodings and sizes", seen=seen
        )
    return tuple(columns)


def _hashes(value: dict[str, Any]) -> dict[str, str]:
    listed = value.get("hashes")
    if isinstance(listed, dict):
        return {name: digest for name, digest in listed.items() if isinstance(digest, str)}
    return {}


def _is_name(value: object) -> bool:
    """Whether a name stays inside the folder, and can be that of a file (JSON holds any text)."""
    return isinstance(value, str) and is_inside(value) and value.isprintable()


def _is_packed(root: Path, shard: _Shard) -> bool:
    return bool(shard.compression) and not disk.is_file(root / shard.name)


def _as_stored(root: Path, shard: _Shard) -> _StoredShard:
    """The file of a shard that is on disk, the raw one where both are."""
    if _is_packed(root, shard):
        return _StoredShard(
            name=shard.packed_name,
            size_bytes=shard.packed_bytes,
            hashes=shard.packed_hashes,
            is_packed=True,
        )
    return _StoredShard(
        name=shard.name, size_bytes=shard.size_bytes, hashes=shard.hashes, is_packed=False
    )


def _token_column(shard: _Shard) -> Column:
    """The column that holds tokens or text: by its usual names, else the first that could."""
    for name in WANTED:
        for column in shard.columns:
            if column.name == name:
                return column
    for column in shard.columns:
        if column.encoding.partition(":")[0] in ("ndarray", "str", "bytes"):
            return column
    return shard.columns[0]


def _guesses(shards: tuple[_Shard, ...]) -> tuple[str, ...]:
    for shard in shards:
        column = _token_column(shard)
        if column.encoding == "bytes" and column.name != "text":
            return (
                "bytes in the column of tokens are taken as 64-bit ids, llm-foundry's default: the "
                "index does not say",
            )
    return ()


def _table_problems(root: Path, shard: _Shard, size_bytes: int) -> list[str]:
    """What is wrong with the table of offsets at the start of a raw shard."""
    name, table_bytes = shard.name, 4 * (shard.num_samples + 2)
    if size_bytes < table_bytes:
        return [
            f"{name}: a table of {shard.num_samples} samples needs {table_bytes} bytes, the file "
            f"has {size_bytes}"
        ]
    blocks = disk.blocks(root / name, 0, table_bytes)
    table = np.concatenate([disk.integers(block, np.dtype("<u4")) for block in blocks])
    offsets = table[1:]
    problems = []
    if table[0] != shard.num_samples:
        problems.append(
            f"{name}: expected {shard.num_samples} samples as the index says, found {table[0]}"
        )
    shrinks = np.diff(offsets) < 0
    if shrinks.any() or offsets[0] < table_bytes:
        at = int(np.argmax(shrinks)) if shrinks.any() else 0
        problems.append(
            f"{name}: sample {at}: expected offsets that grow from {table_bytes}, found "
            f"{offsets[at : at + 2]}"
        )
    if offsets[-1] != size_bytes:
        problems.append(
            f"{name}: the last sample ends at byte {offsets[-1]}, the file at {size_bytes}"
        )
    return problems


def _hash_of(path: Path, algorithm: str) -> str:
    if algorithm not in KNOWN_HASHES:
        raise EvidenceError(
            f"{path}: its {algorithm} cannot be checked: the algorithm is not known here"
        )
    if algorithm in XXH:
        state: Any = XXH[algorithm]()
    else:
        state = hashlib.new(algorithm, usedforsecurity=False)
    look_at_file(path)
    read_pass(path, (state.update,))
    return str(state.hexdigest())
