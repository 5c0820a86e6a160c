"""A bounded, seeded sample of a store's documents, to compare a document of any length with.

Entropy, repetition and divergence all change with length alone; this module never compares across
lengths if it can, and never expects of a document what only it holds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from spiketriage.errors import EvidenceError
from spiketriage.nouns.data import TokenStatistics
from spiketriage.nouns.series import Integers
from spiketriage.readers.data.statistics import counts_of, statistics
from spiketriage.readers.data.stores import DataStore
from spiketriage.tools.document_oddity import MIN_PEERS

MAX_SAMPLED = 400  # documents that are read to be compared with
MAX_SAMPLED_TOKENS = 1 << 22
MAX_PEERS = 160
STEP = 1.3  # between the lengths that others are cut to, so that one cut serves many documents
SHORTER = 0.5  # of the wanted length: what a peer may have where too few are as long


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the ids of a store are to be taken."""

    vocab: int | None = None
    eos: int | None = None
    pad: int | None = None


@dataclass(slots=True, kw_only=True)
class Sample:
    """Other documents of a store by number, and how often each id occurs in them."""

    reading: Reading
    seed: int
    tokens: Mapping[int, Integers]
    counts: Integers
    num_unreadable: int
    _cut: dict[tuple[int, int], TokenStatistics] = field(default_factory=dict)

    def statistics_of(self, number: int, tokens: Integers) -> TokenStatistics:
        """Statistics of a document or a part of it, against the ids of all others of the sample."""
        others = self.counts
        own = self.tokens.get(number)
        if own is not None:
            others = others - _counts_within(own, len(self.counts))
        reading = self.reading
        return statistics(
            tokens,
            vocab_size=reading.vocab,
            eos=reading.eos,
            pad=reading.pad,
            reference=others if others.any() else None,
        )

    def peers(self, number: int, num_tokens: int) -> tuple[TokenStatistics, ...]:
        """Statistics of others, cut to about `num_tokens`.

        Where too few are as long, also of some that are shorter.
        """
        length = _grid(num_tokens)
        enough = self._others_of_at_least(length, number)
        if len(enough) < MIN_PEERS:
            enough = self._others_of_at_least(SHORTER * length, number)
        return tuple(self._cut_to(other, length) for other in enough[:MAX_PEERS])

    def _others_of_at_least(self, length: float, number: int) -> list[int]:
        numbers = []
        for other, tokens in self.tokens.items():
            if other != number and len(tokens) >= length:
                numbers.append(other)
        return numbers

    def _cut_to(self, number: int, length: int) -> TokenStatistics:
        length = min(length, len(self.tokens[number]))
        known = self._cut.get((number, length))
        if known is None:
            known = self.statistics_of(number, self.tokens[number][:length])
            self._cut[number, length] = known
        return known


def draw(
    store: DataStore, path: Path, reading: Reading, *, asked: Collection[int], seed: int, total: int
) -> Sample:
    """A sample of the documents that were not asked for.

    Where these are nearly the whole store, they are among the others of one another.

    Raises:
        EvidenceError: the store holds no document that can be read.
    """
    without: set[int] = set()
    if total - len(asked) >= 4 * MIN_PEERS:
        without = set(asked)
    drawn = random.Random(seed).sample(range(total), min(total, MAX_SAMPLED + len(without)))
    tokens: dict[int, Integers] = {}
    num_unreadable = num_tokens = 0
    problem: EvidenceError | None = None
    others = [number for number in drawn if number not in without]
    for number in others[:MAX_SAMPLED]:
        try:
            document = store.stored(path, number, eos=reading.eos)
        except EvidenceError as error:
            num_unreadable, problem = num_unreadable + 1, error
            continue
        tokens[number] = document.tokens[:MAX_SAMPLED_TOKENS]
        num_tokens += len(tokens[number])
        if num_tokens >= MAX_SAMPLED_TOKENS:
            break
    if not tokens and problem is not None:
        raise problem
    return Sample(
        reading=reading,
        seed=seed,
        tokens=tokens,
        counts=_counted(list(tokens.values()), reading.vocab),
        num_unreadable=num_unreadable,
    )


def _counted(texts: Sequence[Integers], vocab: int | None) -> Integers:
    return counts_of(np.concatenate(texts) if texts else np.zeros(0, dtype=np.int64), vocab)


def _counts_within(tokens: Integers, size: int) -> Integers:
    """How often each id below `size` occurs."""
    return np.bincount(tokens[(tokens >= 0) & (tokens < size)], minlength=size)


def _grid(num_tokens: int) -> int:
    """The next length of the grid that is not above `num_tokens`."""
    return int(STEP ** math.floor(math.log(max(num_tokens, 1), STEP) + 1e-9)) or 1
