"""Statistics of documents.

Equal to what a person would count, and far out for a document that is damaged.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter

import numpy as np
import pytest
from data_fixtures import DATA, make
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spiketriage.errors import EvidenceError
from spiketriage.readers.data import jsonl_text, megatron_indexed
from spiketriage.readers.data.repeats import repeats
from spiketriage.readers.data.statistics import documents, statistics, unigram_counts

VOCABULARY = make.VOCABULARY
MEASURES = ("unigram_kl", "entropy", "compression_ratio", "longest_repeat", "ngram_repetition")


def measured(ids, *, vocab_size=None, eos=None, pad=None, reference=None):
    counts = None if reference is None else np.array(reference, dtype=np.int64)
    return statistics(
        np.array(ids, dtype=np.int64), vocab_size=vocab_size, eos=eos, pad=pad, reference=counts
    )


def brute_longest_repeat(ids):
    """Longest block with two occurrences, by comparing all blocks of each length."""
    for length in range(len(ids) - 1, 0, -1):
        blocks = [tuple(ids[at : at + length]) for at in range(len(ids) - length + 1)]
        if len(set(blocks)) < len(blocks):
            return length
    return 0


def brute_ngram_repetition(ids):
    grams = [tuple(ids[at : at + 4]) for at in range(len(ids) - 3)]
    before = sum(gram in grams[:at] for at, gram in enumerate(grams))
    return before / len(grams) if grams else 0.0


few_ids = st.lists(st.integers(0, 3), max_size=60)


@settings(max_examples=150, deadline=None)
@given(ids=few_ids)
@example(ids=[])
@example(ids=[7] * 33)
@example(ids=[1, 2, 3, 4] * 8)
@example(ids=[1, 2, 3, 4, 9, 1, 2, 3, 4])
def test_repeats_equal_brute_force(ids):
    seen = repeats(np.array(ids, dtype=np.int64))
    assert seen.longest == brute_longest_repeat(ids)
    assert seen.ngram_share == pytest.approx(brute_ngram_repetition(ids))


@settings(max_examples=40, deadline=None)
@given(block=st.lists(st.integers(-5, 2**40), min_size=1, max_size=30), gap=st.integers(0, 20))
def test_a_planted_repeat_is_found(block, gap):
    fresh = [2**50 + number for number in range(gap + 1)]
    assert repeats(np.array(block + fresh + block)).longest >= len(block)


def test_a_long_document_is_looked_at_in_time_and_only_at_its_beginning():
    ids = np.random.default_rng(0).integers(0, 50_000, size=60_000)
    ids[50_000:50_500] = ids[20_000:20_500]
    assert 500 <= repeats(ids).longest < 506
    assert repeats(np.arange((1 << 20) + 1000) % (1 << 20)).longest == 0  # what repeats lies beyond


@settings(max_examples=60, deadline=None)
@given(
    ids=st.lists(st.integers(-2, 30), min_size=1, max_size=80),
    reference=st.lists(st.integers(0, 40), max_size=25),
)
def test_entropy_divergence_and_counts_equal_a_counter(ids, reference):
    seen = measured(ids, vocab_size=20, eos=3, pad=-1, reference=reference)
    counts, n = Counter(ids), len(ids)
    assert seen.num_tokens == n
    assert seen.entropy == pytest.approx(
        -sum(c / n * math.log2(c / n) for c in counts.values()), abs=1e-9
    )
    total = sum(reference) + 0.5 * (len(reference) + 1)
    bins = Counter()
    for token, count in counts.items():
        bins[token if 0 <= token < len(reference) else "elsewhere"] += count
    expected = sum(
        c
        / n
        * math.log2(c / n / (((reference[token] if token != "elsewhere" else 0) + 0.5) / total))
        for token, c in bins.items()
    )
    assert seen.unigram_kl == pytest.approx(expected, abs=1e-9)
    assert seen.num_eos == ids.count(3)
    assert seen.share_padding == pytest.approx(ids.count(-1) / n)
    assert seen.share_outside_vocabulary == pytest.approx(sum(i == -2 or i >= 20 for i in ids) / n)


def test_a_document_like_its_reference_diverges_by_nothing():
    ids = [0] * 500 + [1] * 300 + [2] * 200
    assert measured(ids, reference=[5_000_000, 3_000_000, 2_000_000]).unigram_kl == pytest.approx(
        0, abs=1e-5
    )
    assert math.isnan(measured(ids).unigram_kl)


@pytest.mark.parametrize(
    ("vocab_size", "width"),
    [(256, "<u1"), (257, "<u2"), (65536, "<u2"), (65537, "<u4"), (None, "<u4")],
)
def test_the_compression_ratio_is_of_ids_as_wide_as_the_vocabulary_needs(vocab_size, width):
    ids = np.random.default_rng(1).integers(0, 200, size=3000)
    data = ids.astype(width).tobytes()
    assert measured(ids, vocab_size=vocab_size).compression_ratio == len(
        zlib.compress(data, 1)
    ) / len(data)


def test_an_empty_document_has_no_shares():
    seen = measured([], vocab_size=5, eos=1, pad=0, reference=[1, 1])
    assert (
        seen.num_tokens,
        seen.entropy,
        seen.longest_repeat,
        seen.num_eos,
        seen.share_padding,
    ) == (0, 0, 0, 0, 0)
    assert math.isnan(seen.unigram_kl)
    assert math.isnan(seen.compression_ratio)


def test_without_a_vocabulary_only_negative_ids_are_outside_it():
    assert measured([-100, 7, 10**9]).share_outside_vocabulary == pytest.approx(1 / 3)
    assert measured([-100, 7, 10**9], pad=-100).share_outside_vocabulary == 0


def test_reference_counts_are_of_the_other_documents():
    ids = make.zipf_documents(1, 40)
    path = DATA / "megatron"
    others = np.concatenate([one for number, one in enumerate(ids) if number not in (3, 8)])
    seen = unigram_counts(megatron_indexed, path, without={3, 8}, vocab_size=VOCABULARY)
    assert seen.tolist() == np.bincount(others, minlength=VOCABULARY).tolist()
    drawn = unigram_counts(megatron_indexed, path, vocab_size=VOCABULARY, max_documents=7)
    assert np.array_equal(
        drawn, unigram_counts(megatron_indexed, path, vocab_size=VOCABULARY, max_documents=7)
    )
    assert drawn[make.EOS] == 7  # one a document
    with pytest.raises(EvidenceError, match="no other document"):
        unigram_counts(megatron_indexed, path, without=set(range(40)))


def test_an_unreadable_document_is_left_out_of_the_reference(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "abc"}\nnot json\n{"text": "abd"}\n')
    seen = unigram_counts(jsonl_text, path)
    assert seen.sum() == 6
    assert seen[ord("a")] == 2


def planted(kind, seed):
    """Ids of a damaged document, and the measure in which it must stand out."""
    draw = np.random.default_rng(seed + 1000)
    if kind == "random bytes":
        return draw.integers(0, 2**16, size=300), "share_outside_vocabulary"
    if kind == "random ids":
        return draw.integers(0, VOCABULARY, size=300), "unigram_kl"
    if kind == "repeated token":
        return np.full(300, int(draw.integers(0, VOCABULARY))), "longest_repeat"
    if kind == "repeated block":
        return np.tile(draw.integers(0, VOCABULARY, size=25), 12), "ngram_repetition"
    return draw.integers(VOCABULARY, VOCABULARY + 9, size=300), "share_outside_vocabulary"


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "kind", ["random bytes", "random ids", "repeated token", "repeated block", "ids beyond"]
)
def test_a_damaged_document_stands_out_from_two_hundred_clean_ones(kind, seed, tmp_path):
    ids = make.zipf_documents(seed, 201, low=150, high=400)
    bad = int(np.random.default_rng(seed).integers(0, 201))
    ids[bad], measure = planted(kind, seed)
    make.write_megatron(tmp_path / "set", [[one] for one in ids])
    reference = unigram_counts(
        megatron_indexed, tmp_path / "set", without={bad}, vocab_size=VOCABULARY
    )
    facts = documents(
        megatron_indexed,
        tmp_path / "set",
        range(201),
        vocab_size=VOCABULARY,
        eos=make.EOS,
        reference=reference,
    )
    clean = [one.statistics for one in facts if one.number != bad]
    seen = facts[bad].statistics
    # Clean documents diverge by 0.6 to 1.4 bits for being short; ids drawn evenly from all 500 by
    # 2.6, others by more.
    assert getattr(seen, measure) > 1.5 * max(getattr(one, measure) for one in clean)
    assert seen.unigram_kl > 1.2 * max(
        one.unigram_kl for one in clean
    )  # every damage also shows here
    assert {one.num_eos for one in clean} == {1}
    assert all(math.isfinite(getattr(one, name)) for one in clean for name in MEASURES)
