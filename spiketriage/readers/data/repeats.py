"""The longest block of ids that occurs twice in a document, and the share of repeated 4-grams.

This module never compares blocks by a hash: equal ranks are equal blocks, so that no collision can
lie.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spiketriage.nouns.series import Integers

NGRAM = 4
MAX_TOKENS = 1 << 20  # of a longer document, its beginning is looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """What repeats in a document."""

    longest: int
    ngram_share: float


def repeats(tokens: Integers) -> Repeats:
    """What repeats in the first 1,048,576 of `tokens`; n · log² n steps.

    Blocks of 1, 2, 4, 8 … ids get ranks, equal for equal blocks, from pairs of ranks of half the
    length. A block of another length is a pair of overlapping ones. The lengths that occur twice
    are all up to the longest, which is therefore found by doubling and then halving.
    """
    ids = tokens[:MAX_TOKENS]
    rank = _ranked(ids)
    levels = [rank]
    while _repeats(levels[-1]) and len(levels[-1]) > 1 << (len(levels) - 1):
        levels.append(_paired(levels[-1], 1 << (len(levels) - 1)))
    return Repeats(longest=_longest(levels), ngram_share=_ngram_share(levels, len(ids)))


def _longest(levels: list[Integers]) -> int:
    """The longest length that repeats, between the last doubled length that does and the next."""
    known = [level for level, rank in enumerate(levels) if _repeats(rank)]
    if not known:
        return 0
    half = 1 << known[-1]
    low, high = half, 2 * half  # `low` repeats; `high` does not, or does not fit
    while high - low > 1:
        middle = (low + high) // 2
        if _repeats(_paired(levels[known[-1]], middle - half)):
            low = middle
        else:
            high = middle
    return low


def _ngram_share(levels: list[Integers], num_ids: int) -> float:
    grams = num_ids - NGRAM + 1
    if grams < 1 or len(levels) < 3:  # no pair repeats, or none of four fits
        return 0.0
    return 1.0 - (int(levels[2].max()) + 1) / grams


def _ranked(values: Integers) -> Integers:
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _paired(rank: Integers, apart: int) -> Integers:
    """Ranks of blocks made of two blocks that start `apart` from each other."""
    if apart >= len(rank):
        return rank[:0]
    return _ranked(rank[: len(rank) - apart] * (int(rank.max()) + 1) + rank[apart:])


def _repeats(rank: Integers) -> bool:
    return len(rank) > 0 and int(rank.max()) + 1 < len(rank)
