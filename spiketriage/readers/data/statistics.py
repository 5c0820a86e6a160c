"""How the documents of a data store look: entropy, repetition, distance from the other documents.

This module never judges a document: it measures, and whoever asks compares with neighbours of the
same store.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spiketriage.errors import EvidenceError
from spiketriage.nouns.data import MeasuredDocument, TokenStatistics
from spiketriage.nouns.series import Integers
from spiketriage.readers.data.repeats import repeats
from spiketriage.readers.data.stores import DataStore

PSEUDO_COUNT = 0.5  # as `diagnosis.checks.content_profile` smooths bytes
ZLIB_LEVEL = 1
MAX_DOCUMENTS = 600  # drawn for a reference, as `content_profile` draws
MAX_TOKENS = 1 << 22  # of a reference
MAX_IDS = 1 << 20  # of a reference without a stated vocabulary


def statistics(
    tokens: Integers,
    *,
    vocab_size: int | None,
    eos: int | None,
    pad: int | None,
    reference: Integers | None,
) -> TokenStatistics:
    """How `tokens` look, measured as `diagnosis.checks.content_profile` measures bytes.

    - `unigram_kl`: bits of Kullback-Leibler divergence of the ids from `reference` (counts by id).
      Every id of it has half a count more than it has, and so has one bin for all other ids.
    - `entropy`: bits an id, of the document's own ids.
    - `compression_ratio`: bytes after zlib (level 1) over bytes before, of the ids as little-endian
      integers of one byte if `vocab_size` is at most 256, two if at most 65,536, else four; higher
      bits of an id are dropped.
    - `longest_repeat`: length of the longest block of ids that occurs twice; the two may overlap,
      so that one id n times has n - 1 (`repeats`).
    - `ngram_repetition`: share of the 4-grams that occurred earlier in the document.
    - `share_outside_vocabulary`: ids below 0, or from `vocab_size` on where that is given, other
      than `pad`.

    A short document diverges, compresses and repeats by its length alone: compare it with others of
    about that length. An empty document has zeros, and NaN where a quotient has no value
    (`unigram_kl`, `compression_ratio`).
    """
    num_tokens = len(tokens)
    if not num_tokens:
        return _empty()
    ids, counts = np.unique(tokens, return_counts=True)
    shares = counts / num_tokens
    outside = ids < 0
    if vocab_size is not None:
        outside |= ids >= vocab_size
    if pad is not None:
        outside &= ids != pad
    repeated = repeats(tokens)
    return TokenStatistics(
        num_tokens=num_tokens,
        unigram_kl=_kl_bits(ids, shares, reference) if reference is not None else math.nan,
        entropy=max(0.0, float(-(shares * np.log2(shares)).sum())),
        compression_ratio=_compression_ratio(tokens, vocab_size),
        longest_repeat=repeated.longest,
        ngram_repetition=repeated.ngram_share,
        num_eos=_count_of(ids, counts, eos),
        share_outside_vocabulary=float(counts[outside].sum() / num_tokens),
        share_padding=_count_of(ids, counts, pad) / num_tokens,
    )


def documents(
    store: DataStore,
    path: Path,
    numbers: Iterable[int],
    *,
    vocab_size: int | None = None,
    eos: int | None = None,
    pad: int | None = None,
    reference: Integers | None = None,
) -> tuple[MeasuredDocument, ...]:
    """Digest and statistics of the documents `numbers`, in that order.

    Raises:
        EvidenceError: one of them does not exist or cannot be read.
    """
    measured: list[MeasuredDocument] = []
    for number in numbers:
        stored = store.stored(path, number, eos=eos)
        measured.append(
            MeasuredDocument(
                number=number,
                path=stored.path,
                start=stored.start,
                end=stored.end,
                digest=stored.digest,
                statistics=statistics(
                    stored.tokens, vocab_size=vocab_size, eos=eos, pad=pad, reference=reference
                ),
            )
        )
    return tuple(measured)


def unigram_counts(
    store: DataStore,
    path: Path,
    *,
    without: Collection[int] = (),
    vocab_size: int | None = None,
    eos: int | None = None,
    max_documents: int = MAX_DOCUMENTS,
) -> Integers:
    """How often each id occurs in other documents of the store, for `statistics(reference=…)`.

    Documents are drawn with a fixed seed, so that an incident always gives the same reference;
    `without` are left out, and so is one that cannot be read. Drawing ends after 4,194,304 tokens.
    Without `vocab_size` there is a place for each id up to the largest seen, at most 1,048,576; ids
    without a place are not counted.

    Raises:
        EvidenceError: the store has no other document, or none can be read.
    """
    num_documents = store.count(path, eos=eos)
    draw = random.Random(num_documents)
    numbers = draw.sample(range(num_documents), min(num_documents, max_documents + len(without)))
    texts: list[Integers] = []
    error: EvidenceError | None = None
    chosen = [number for number in numbers if number not in without]
    for number in chosen[:max_documents]:
        try:
            texts.append(store.stored(path, number, eos=eos).tokens[:MAX_TOKENS])
        except EvidenceError as seen:
            error = seen
        if sum(map(len, texts)) >= MAX_TOKENS:
            break
    if not texts:
        raise error or EvidenceError(f"{path}: has no other document to compare with")
    return counts_of(np.concatenate(texts), vocab_size)


def counts_of(tokens: Integers, vocab_size: int | None) -> Integers:
    """How often each id occurs, by id; ids without a place do not count (see `unigram_counts`)."""
    largest = int(tokens.max()) + 1 if len(tokens) else 0
    size = vocab_size if vocab_size is not None else min(max(largest, 1), MAX_IDS)
    known = tokens[(tokens >= 0) & (tokens < size)]
    return np.bincount(known, minlength=size).astype(np.int64)


def _kl_bits(ids: Integers, shares: NDArray[np.float64], reference: Integers) -> float:
    size = len(reference)
    known = (ids >= 0) & (ids < size)
    total = float(reference.sum()) + PSEUDO_COUNT * (size + 1)
    expected = (reference[ids[known]] + PSEUDO_COUNT) / total
    bits = float((shares[known] * np.log2(shares[known] / expected)).sum())
    rest = float(shares[~known].sum())
    return bits + (rest * math.log2(rest * total / PSEUDO_COUNT) if rest else 0.0)


def _compression_ratio(tokens: Integers, vocab_size: int | None) -> float:
    dtype = "<u4"
    if vocab_size is not None and vocab_size <= 256:
        dtype = "u1"
    elif vocab_size is not None and vocab_size <= 65536:
        dtype = "<u2"
    data = tokens.astype(dtype).tobytes()
    return len(zlib.compress(data, ZLIB_LEVEL)) / len(data)


def _count_of(ids: Integers, counts: Integers, wanted: int | None) -> int:
    if wanted is not None:
        return int(counts[ids == wanted].sum())
    return 0


def _empty() -> TokenStatistics:
    return TokenStatistics(
        num_tokens=0,
        unigram_kl=math.nan,
        entropy=0.0,
        compression_ratio=math.nan,
        longest_repeat=0,
        ngram_repetition=0.0,
        num_eos=0,
        share_outside_vocabulary=0.0,
        share_padding=0.0,
    )
