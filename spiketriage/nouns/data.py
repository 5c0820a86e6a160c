"""Data stores and their documents: what an index promises, and what was read.

This module holds no behaviour beyond small derived properties and never reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spiketriage.nouns.file import StoredFile
from spiketriage.nouns.listing import readable


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document as our own index lists it: where it should lie, what it should hash to."""

    id: str
    shard: str
    offset_bytes: int
    length_bytes: int
    source: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataIndex:
    """Our own index of a data store, as read; `digest` is that of the index file itself."""

    path: Path
    digest: str
    shards: tuple[StoredFile, ...]
    documents: Mapping[str, Document]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """One data store: what it holds, from its index and sizes alone."""

    format: str
    path: Path
    files: tuple[StoredFile, ...]
    num_documents: int | None
    num_tokens: int | None
    dtype: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Whatever words the sentences quote, they can be read and stored."""
        object.__setattr__(self, "problems", readable(self.problems))
        object.__setattr__(self, "notes", readable(self.notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatistics:
    """How a sequence of token ids (or bytes) looks; entropies in bits, shares between 0 and 1.

    `unigram_kl` is against reference counts, NaN without them.
    """

    num_tokens: int
    unigram_kl: float
    entropy: float
    compression_ratio: float
    longest_repeat: int
    ngram_repetition: float
    num_eos: int
    share_outside_vocabulary: float
    share_padding: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentBytes:
    """The bytes `start` to `end` of the file `path` (relative to the store), and their digest."""

    path: str
    start: int
    end: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDocument(DocumentBytes):
    """One document of a store of any format, by its number there, and how it looks."""

    number: int
    statistics: TokenStatistics
