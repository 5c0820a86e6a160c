"""The data index: which documents lie where in which shard, and what their bytes hash to.

This module describes `index.json` and never opens a shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from spiketriage.digests import ALGORITHM
from spiketriage.nouns.data import Document
from spiketriage.nouns.file import StoredFile
from spiketriage.wire.listed_file import file_from_json

SCHEMA = "spiketriage.data-index/1"
COLUMNS = ("id", "shard", "offset_bytes", "length_bytes", "source", "digest")


def to_json(shards: Iterable[StoredFile], documents: Iterable[Document]) -> dict[str, Any]:
    """The index as the JSON object that is written to disk; documents are rows of `COLUMNS`."""
    return {
        "schema": SCHEMA,
        "algorithm": ALGORITHM,
        "shards": [asdict(shard) for shard in shards],
        "columns": list(COLUMNS),
        "documents": [[getattr(d, name) for name in COLUMNS] for d in documents],
    }


def from_json(value: Mapping[str, Any]) -> tuple[tuple[StoredFile, ...], dict[str, Document]]:
    """Shards and documents from the JSON object.

    Raises:
        ValueError, KeyError, TypeError: the object is not an index of this schema.
    """
    if value.get("schema") != SCHEMA:
        raise ValueError(f"schema {value.get('schema')!r}, expected {SCHEMA!r}")
    shards = tuple(file_from_json(entry) for entry in value["shards"])
    rows = (dict(zip(value["columns"], row, strict=True)) for row in value["documents"])
    documents = {str(row["id"]): Document(**row) for row in rows}
    return shards, documents
