"""Reads our own index of a data store, and digests the documents that it points at.

This module never opens a path that leads outside the index's folder and never returns a short
document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import xxhash

from spiketriage.digests import of_bytes, read_pass
from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.nouns.data import DataIndex, Document
from spiketriage.nouns.file import StoredFile
from spiketriage.readers.json_file import is_count, is_inside, parse_object, read_bytes
from spiketriage.readers.ranges import ByteRange, RangeSplitter
from spiketriage.wire import data_index as wire

NAME = "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """What one read pass over a shard measured; `documents` maps id → digest of whole documents."""

    digest: str
    size_bytes: int
    documents: Mapping[str, str]


def read_index(path: Path) -> DataIndex:
    """The index at `path`, checked against itself.

    Raises:
        CorruptFileError: not an index of this schema, or it lies: outside, overlapping, negative,
        twice.
        EvidenceError: the file cannot be read.
    """
    data = read_bytes(path)
    value = parse_object(path, data)
    try:
        shards, documents = wire.from_json(value)
        num_rows = len(value["documents"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(
            path, "content", expected=f"an index {wire.SCHEMA}", seen=error
        ) from error
    if len(documents) != num_rows:
        raise CorruptFileError(
            path, "documents", expected=f"{num_rows} different ids", seen=len(documents)
        )
    sizes = _shard_sizes(path, shards)
    for document in documents.values():
        _check_document(path, document, sizes)
    _check_overlap(path, documents)
    return DataIndex(path=path, digest=of_bytes(data), shards=shards, documents=documents)


def read_document(index: DataIndex, document: Document) -> bytes:
    """The bytes of `document` as they lie on disk now.

    Raises:
        EvidenceError: the shard is missing, unreadable, or ends before the document does.
    """
    path = index.path.parent / document.shard
    try:
        with path.open("rb") as stream:
            stream.seek(document.offset_bytes)
            data = stream.read(document.length_bytes)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) != document.length_bytes:
        expected = f"{document.length_bytes} bytes at {document.offset_bytes}"
        raise CorruptFileError(
            path, f"document {document.id}", expected=expected, seen=f"{len(data)} bytes"
        )
    return data


def measure_shard(index: DataIndex, shard: str) -> ShardFacts:
    """Digest of a shard and of each of its documents in one read pass.

    Raises:
        EvidenceError: the shard is missing or cannot be read.
    """
    own = [document for document in index.documents.values() if document.shard == shard]
    own.sort(key=lambda document: document.offset_bytes)
    states = [xxhash.xxh3_128() for _ in own]
    ranges = [ByteRange(start=d.offset_bytes, end=d.offset_bytes + d.length_bytes) for d in own]
    whole = xxhash.xxh3_128()
    splitter = RangeSplitter(ranges, lambda number, piece: states[number].update(piece))
    count = read_pass(index.path.parent / shard, (whole.update, splitter))
    documents = {}
    for document, state, span in zip(own, states, ranges, strict=True):
        if span.end <= count:
            documents[document.id] = state.hexdigest()
    return ShardFacts(digest=whole.hexdigest(), size_bytes=count, documents=documents)


def document_digests(index: DataIndex, shard: str) -> Mapping[str, str]:
    """Measured digest of every whole document of `shard`, by id.

    Raises:
        EvidenceError: the shard is missing or cannot be read.
    """
    return measure_shard(index, shard).documents


def _shard_sizes(path: Path, shards: tuple[StoredFile, ...]) -> dict[str, int]:
    for shard in shards:
        is_described = is_count(shard.size_bytes) and isinstance(shard.digest, str)
        if not is_described or not is_inside(shard.path):
            raise CorruptFileError(
                path, "shards", expected="a path inside, a size and a digest", seen=shard
            )
    sizes = {shard.path: shard.size_bytes for shard in shards}
    if len(sizes) != len(shards):
        raise CorruptFileError(
            path, "shards", expected=f"{len(shards)} different paths", seen=len(sizes)
        )
    return sizes


def _check_document(path: Path, document: Document, sizes: Mapping[str, int]) -> None:
    where = f"document {document.id}"
    if not isinstance(document.shard, str) or document.shard not in sizes:
        raise CorruptFileError(
            path, where, expected="a shard of this index", seen=repr(document.shard)
        )
    if not is_count(document.offset_bytes) or not is_count(document.length_bytes):
        seen = f"{document.offset_bytes!r} and {document.length_bytes!r}"
        raise CorruptFileError(path, where, expected="offset and length of at least 0", seen=seen)
    if document.offset_bytes + document.length_bytes > sizes[document.shard]:
        expected = f"an end within the {sizes[document.shard]} bytes of {document.shard}"
        seen = f"an end at byte {document.offset_bytes + document.length_bytes}"
        raise CorruptFileError(path, where, expected=expected, seen=seen)
    if not isinstance(document.id, str) or not isinstance(document.digest, str):
        raise CorruptFileError(path, where, expected="an id and a digest in text", seen=document)


def _check_overlap(path: Path, documents: Mapping[str, Document]) -> None:
    ordered = sorted(
        documents.values(), key=lambda d: (d.shard, d.offset_bytes, d.offset_bytes + d.length_bytes)
    )
    for before, after in pairwise(ordered):
        end = before.offset_bytes + before.length_bytes
        if before.shard == after.shard and after.offset_bytes < end:
            expected = f"a start at byte {end} or later, behind document {before.id}"
            raise CorruptFileError(
                path, f"document {after.id}", expected=expected, seen=after.offset_bytes
            )
