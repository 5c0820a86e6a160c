"""`spiketriage documents`.

A planted broken document is named with a reason, and clean documents ring no bell.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from command_line import call
from data_fixtures import DATA, make

from spiketriage.errors import EvidenceError, RefusedError, UsageError
from spiketriage.nouns.data import TokenStatistics
from spiketriage.readers.data import megatron_indexed
from spiketriage.tools import documents
from spiketriage.tools.document_oddity import Commonest, oddities
from spiketriage.tools.document_peers import Reading

BAD = 17
READING = Reading(vocab=make.VOCABULARY, eos=make.EOS)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("SPIKETRIAGE_QUIET", "1")


def store_in(folder, seed, *, num=320, plant=None, plants=()):
    texts = make.zipf_documents(seed, num, 100, 140)
    for number, one in {**dict(plants), **({BAD: plant} if plant else {})}.items():
        texts[number] = one(texts[number], np.random.default_rng(seed))
    make.write_megatron(folder / f"{seed}", [[one] for one in texts])
    return folder / f"{seed}.idx"


def odd_numbers(result):
    return [one["number"] for one in result.data["documents"] if one["stands_out"]]


def noise(ids, draw):
    return draw.integers(0, make.EOS, len(ids))


def one_id(ids, draw):
    return np.full(len(ids), 3)


def zeroed_tail(ids, draw):
    return np.where(np.arange(len(ids)) < len(ids) // 3, ids, 0)


def block_twice(ids, draw):
    return np.concatenate([ids[:50], ids, ids[:50]])


def loop(ids, draw):
    return np.tile(ids[:10], 20)


def beyond_the_vocabulary(ids, draw):
    return np.where(
        draw.random(len(ids)) < 0.6, draw.integers(make.VOCABULARY, 60_000, len(ids)), ids
    )


def other_vocabulary(ids, draw):
    return (ids + 250) % make.EOS


def shifted_by_a_byte(ids, draw):
    return np.frombuffer(ids.astype("<u2").tobytes()[1:] + b"\0", "<u2").astype(np.int64)


PLANTED = {
    noise: "surprise an id",
    one_id: "100 % of its ids are 3",
    zeroed_tail: "tokens repeated",
    block_twice: "one block of",
    loop: "one block of at most 10 tokens repeated throughout",
    beyond_the_vocabulary: "of its ids outside the vocabulary",
    other_vocabulary: "unigram KL",
    shifted_by_a_byte: "outside the vocabulary",
}


@pytest.mark.parametrize("seed", [101, 202, 303, 404])
def test_planted_documents_stand_out_and_their_neighbours_do_not(tmp_path, seed):
    plants = {10 + 2 * at: plant for at, plant in enumerate(PLANTED)}
    store = store_in(tmp_path, seed, plants=plants)
    result = documents.run(store, numbers=range(9, 28), reading=READING)
    assert (result.exit_code, sorted(odd_numbers(result))) == (1, sorted(plants))
    rows = {
        int(line.split()[2].rstrip(":")): line for line in result.lines if line.startswith("ODD")
    }
    for number, plant in plants.items():
        stored = megatron_indexed.stored(store, number)
        place = (
            f"{seed}.bin bytes {stored.start}–{stored.end}, {stored.digest[:16]}, "
            f"{len(stored.tokens)} tokens"
        )
        assert rows[number].startswith(f"ODD document {number}: {place}")
        assert PLANTED[plant] in rows[number]


@pytest.mark.parametrize("seed", range(10))
def test_two_hundred_clean_documents_ring_no_bell(tmp_path, seed):
    result = documents.run(store_in(tmp_path, seed), numbers=range(200), reading=READING)
    assert (result.exit_code, odd_numbers(result)) == (0, [])


def test_a_profile_names_a_broken_document_of_the_sample(tmp_path):
    clean = documents.run(store_in(tmp_path, 1, num=100), reading=READING)
    assert (clean.exit_code, clean.verdict) == (0, "clean")
    assert any(line.startswith("  tokens: median ") for line in clean.lines)
    broken = documents.run(store_in(tmp_path, 2, num=100, plant=noise), reading=READING)
    assert (broken.exit_code, odd_numbers(broken)) == (1, [BAD])


def test_the_same_store_gives_the_same_result(tmp_path):
    store = store_in(tmp_path, 5, plant=noise)
    assert documents.run(store, numbers=[BAD], reading=READING) == documents.run(
        store, numbers=[BAD], reading=READING
    )


def test_a_short_document_is_compared_with_beginnings_of_long_ones(tmp_path):
    texts = [*make.zipf_documents(7, 300, 900, 1100), *make.zipf_documents(8, 1, 40, 50)]
    make.write_megatron(tmp_path / "c", [[one] for one in texts])
    result = documents.run(tmp_path / "c.idx", numbers=[300], reading=READING)
    assert (
        result.exit_code == 0
    )  # its 45 tokens diverge by 2 bits for their number alone, whole others by 0.3
    assert result.data["documents"][0]["num_peers"] == 160


def test_the_documents_of_a_step_are_those_that_the_store_names():
    store = DATA / "megatron"
    step = documents.step_of(2, 4, 16)
    result = documents.run(store, step=step, reading=READING)
    named = megatron_indexed.documents_of_step(store, 2, 4, 16)
    assert result.exit_code == 0
    assert sorted(one["number"] for one in result.data["documents"]) == sorted(named)


def test_windows_and_documents_of_a_flat_store_are_counted_alike(tmp_path):
    texts = make.zipf_documents(3, 300, 60, 61)
    np.concatenate(texts).astype("<u2").tofile(tmp_path / "part-0.npy")
    order = np.arange(100, dtype="<u4")
    order.tofile(tmp_path / "global_indices_epoch1_seed1_size100.npy")
    result = documents.run(tmp_path, step=documents.step_of(3, 2, 61), reading=READING)
    assert sorted(one["number"] for one in result.data["documents"]) == [
        4,
        5,
    ]  # instances 4 and 5, one document each
    assert [one["statistics"]["num_tokens"] for one in result.data["documents"]] == [61, 61]


def test_what_a_store_does_not_say_is_refused_with_what_is_missing():
    with pytest.raises(RefusedError, match="shuffle_seed"):
        documents.run(DATA / "mds", step=documents.step_of(1, 2, 3))


def test_wrong_numbers_and_half_a_step_are_usage():
    with pytest.raises(UsageError, match="no document 40: its 40"):
        documents.run(DATA / "megatron", numbers=[40])
    with pytest.raises(UsageError, match="--length"):
        documents.step_of(1, 2, None)
    with pytest.raises(UsageError, match="exclude"):
        documents.run(DATA / "megatron", numbers=[1], step=documents.step_of(1, 1, 16))
    with pytest.raises(EvidenceError, match="no data store"):
        documents.run(DATA)


def test_a_document_that_cannot_be_read_is_damage_and_the_rest_is_judged(tmp_path):
    rows = [
        json.dumps({"text": f"row {n} of a corpus with enough words in it to be compared"})
        for n in range(100)
    ]
    rows[4] = rows[4][:-9]
    (tmp_path / "c.jsonl").write_text("\n".join(rows) + "\n")
    result = documents.run(tmp_path / "c.jsonl", numbers=[3, 4])
    assert (result.exit_code, result.verdict) == (4, "damaged")
    assert result.data["documents"][0]["number"] == 4
    assert "line 5" in result.data["documents"][0]["problem"]


def test_too_few_others_is_no_clean_bill(tmp_path):
    result = documents.run(store_in(tmp_path, 1, num=19), numbers=[3], reading=READING)
    assert (result.exit_code, result.verdict) == (5, "inconclusive")
    assert any(line.endswith("not compared") for line in result.lines)


def test_only_a_bounded_number_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MAX_JUDGED", 5)
    result = documents.run(store_in(tmp_path, 1), numbers=range(100), reading=READING)
    assert len(result.data["documents"]) == 5
    assert any("5 of 100 documents were drawn" in line for line in result.lines)


def test_padding_that_is_told_of_is_no_filler():
    told = TokenStatistics(
        num_tokens=100,
        unigram_kl=1.0,
        entropy=0.3,
        compression_ratio=0.5,
        longest_repeat=94,
        ngram_repetition=0.0,
        num_eos=0,
        share_outside_vocabulary=0.0,
        share_padding=0.95,
    )
    assert {one.measure for one in oddities(told, (), Commonest(id=0, share=0.95))} == {
        "same_id_share",
        "loop_share",
    }
    assert (
        oddities(told, (told,) * 30, Commonest(id=0, share=0.95)) == ()
    )  # all others are like that


@pytest.mark.slow
def test_the_command_prints_a_row_a_document_and_an_envelope(tmp_path):
    store = store_in(tmp_path, 9, plant=beyond_the_vocabulary)
    words = [
        "documents",
        store.name,
        "--number",
        "16",
        "--number",
        str(BAD),
        "--vocab",
        "500",
        "--eos",
        "499",
    ]
    text = call(*words, cwd=tmp_path)
    assert text.returncode == 1
    rows = [line for line in text.stdout.splitlines() if " document " in line and "bytes" in line]
    assert [row.split(":")[0].strip() for row in rows] == [f"ODD document {BAD}", "ok  document 16"]
    envelope = json.loads(call(*words, "--json", cwd=tmp_path).stdout)
    assert (envelope["schema"], envelope["exit"]) == ("spiketriage.documents/1", 1)
