"""The data stores that can be read.

This module never opens a file: each store has a file of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spiketriage.nouns.data import DataFacts
from spiketriage.readers.data import (
    flat_tokens,
    jsonl_text,
    megatron_indexed,
    mosaic_streaming,
    parquet_text,
)
from spiketriage.readers.data.disk import StoredDocument
from spiketriage.readers.look import Format

Tokens = NDArray[np.int64]


class DataStore(Format, Protocol):
    """A format of a data store."""

    def read(self, path: Path, /) -> DataFacts:
        """What the store holds, from its index and sizes.

        Raises:
            EvidenceError: it cannot be read at all, or is not of this format.
        """
        ...

    def document(self, path: Path, number: int, /) -> Tokens:
        """The token ids of one document, by number from 0; of text, its UTF-8 bytes.

        Raises:
            EvidenceError: there is no such document, or it cannot be read.
        """
        ...

    def count(self, path: Path, /, *, eos: int | None = None) -> int:
        """How many documents there are; `eos` is the id that cuts a stream without an index.

        Raises:
            EvidenceError: it cannot be read.
        """
        ...

    def stored(self, path: Path, number: int, /, *, eos: int | None = None) -> StoredDocument:
        """One document with its place and digest.

        Raises:
            EvidenceError: there is no such document, or it cannot be read.
        """
        ...

    def documents_of_step(
        self,
        path: Path,
        step: int,
        global_batch: int,
        sequence_length: int,
        /,
        *,
        eos: int | None = None,
    ) -> Sequence[int]:
        """Numbers, as `stored` counts them, of what a training step consumed; the first is step 1.

        Raises:
            RefusedError: the format does not say; the message says what is missing.
        """
        ...


STORES: tuple[DataStore, ...] = (
    megatron_indexed,
    mosaic_streaming,
    parquet_text,
    jsonl_text,
    flat_tokens,
)
