"""Documents in shards with their index, so that what was consumed can be checked later.

It never tokenizes: a document is its bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from spiketriage import durable
from spiketriage.digests import of_bytes
from spiketriage.nouns.data import Document
from spiketriage.nouns.file import StoredFile
from spiketriage.wire import data_index

SHARD_BYTES = 64 << 20


def write_documents(folder: Path, documents: Iterable[tuple[str, str, bytes]]) -> Path:
    """Write documents (name, source, bytes) into shards of 64 MB; returns `index.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[StoredFile] = []
    rows: list[Document] = []
    parts: list[bytes] = []
    size = 0

    def close() -> None:
        nonlocal size
        data = b"".join(parts)
        name = f"shard-{len(shards):05d}.bin"
        durable.write(folder / name, data)
        shards.append(StoredFile(path=name, size_bytes=len(data), digest=of_bytes(data)))
        parts.clear()
        size = 0

    for name, source, data in documents:
        shard = f"shard-{len(shards):05d}.bin"
        rows.append(
            Document(
                id=name,
                shard=shard,
                offset_bytes=size,
                length_bytes=len(data),
                source=source,
                digest=of_bytes(data),
            )
        )
        parts.append(data)
        size += len(data)
        if size >= SHARD_BYTES:
            close()
    if parts:
        close()
    index = folder / "index.json"
    durable.write(index, json.dumps(data_index.to_json(shards, rows)).encode())
    return index
