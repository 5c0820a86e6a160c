"""Data stores of other people.

What they hold, document by document, and which documents a step consumed.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from itertools import chain

import numpy as np
import pytest
import xxhash
from data_fixtures import DATA, make
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spiketriage.errors import CorruptFileError, EvidenceError, RefusedError
from spiketriage.nouns.file import StoredFile
from spiketriage.readers.data import (
    flat_tokens,
    jsonl_text,
    megatron_indexed,
    mosaic_streaming,
    parquet_text,
)
from spiketriage.readers.data.borders import Stream, borders
from spiketriage.readers.data.statistics import documents
from spiketriage.readers.data.stores import STORES
from spiketriage.readers.look import best, look

DOCUMENTS = make.zipf_documents(1, 40)
STREAM = np.concatenate(DOCUMENTS)
PREFIX = DATA / "megatron" / "corpus_text_document"
EXPECTED = {
    "megatron": ("megatron-indexed", 40, 1610),
    "megatron/corpus_text_document.idx": ("megatron-indexed", 40, 1610),
    "megatron/corpus_text_document.bin": ("megatron-indexed", 40, 1610),
    "megatron/corpus_text_document": ("megatron-indexed", 40, 1610),
    "megatron-sentences": ("megatron-indexed", 4, 379),
    "nanogpt": ("flat-tokens", None, 1610),
    "nanogpt/train.bin": ("flat-tokens", None, 1610),
    "llmc": ("flat-tokens", None, 1910),
    "llmc/fineweb_val_000000.bin": ("flat-tokens", None, 300),
    "llmc-llama3": ("flat-tokens", None, 1610),
    "olmo": ("flat-tokens", None, 1610),
    "mds": ("mosaic-streaming", 40, None),
    "mds/index.json": ("mosaic-streaming", 40, None),
    "mds-text": ("mosaic-streaming", 30, None),
    "jsonl/corpus.jsonl": ("jsonl-text", 30, None),
    "jsonl": ("jsonl-text", 31, None),
    "jsonl/chat.jsonl": ("jsonl-text", 1, None),
    "parquet": ("parquet-text", 30, None),
    "parquet-ids/train.parquet": ("parquet-text", 40, None),
}
quiet = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def utf8(number):
    return list(make.sentence(number).encode())


# Every store


@pytest.mark.parametrize("name", EXPECTED)
def test_each_store_is_recognized_and_read(name):
    path = DATA / name
    store, confidence = best(STORES, look(path))
    facts = store.read(path)
    assert (facts.format, facts.num_documents, facts.num_tokens) == EXPECTED[name]
    assert facts.problems == ()
    assert confidence > 0.5
    root = path if path.is_dir() and path != PREFIX else path.parent
    assert facts.files
    for file in facts.files:
        assert file == StoredFile(path=file.path, size_bytes=(root / file.path).stat().st_size)


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.NAME)
def test_each_store_says_what_it_tells_and_what_it_cannot(store):
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", store.NAME)
    assert store.TELLS.endswith(".")
    assert store.CANNOT.endswith(".")
    assert store.TELLS.count(". ") == store.CANNOT.count(". ") == 0


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.NAME)
def test_no_store_claims_what_it_cannot_read(store, tmp_path):
    (tmp_path / "run.log").write_text("iteration 1 | loss 2.0\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5, "text": "x"}\n')
    (tmp_path / "config.json").write_text('{"model": "text"}')
    (tmp_path / "optimizer.bin").write_bytes(b"PK\x03\x04" + bytes(64))
    (tmp_path / "empty.bin").write_bytes(b"")
    (tmp_path / "sub").mkdir()
    for path in (tmp_path, *tmp_path.iterdir()):
        assert store.claims(look(path)) == 0


@pytest.mark.parametrize("name", EXPECTED)
def test_there_is_no_document_before_the_first_or_after_the_last(name):
    store, _ = best(STORES, look(DATA / name))
    last = store.count(DATA / name) - 1
    assert len(store.document(DATA / name, last)) > 0
    for number in (-1, last + 1, 2**70):
        with pytest.raises(EvidenceError, match=f"no document {number}"):
            store.document(DATA / name, number)


@pytest.mark.parametrize(
    "name", ["megatron", "nanogpt", "llmc", "olmo", "mds", "jsonl/corpus.jsonl"]
)
def test_a_document_s_digest_is_that_of_its_bytes_on_disk(name):
    store, _ = best(STORES, look(DATA / name))
    root = DATA / name if (DATA / name).is_dir() else (DATA / name).parent
    for facts in documents(store, DATA / name, range(store.count(DATA / name))):
        data = (root / facts.path).read_bytes()[facts.start : facts.end]
        assert len(data) == facts.end - facts.start > 0
        assert facts.digest == xxhash.xxh3_128_hexdigest(data)


def test_a_parquet_row_lies_in_its_row_group_and_is_digested_by_value():
    path = DATA / "parquet-ids" / "train.parquet"
    facts = documents(parquet_text, path, range(40))
    assert [one.digest for one in facts] == [
        xxhash.xxh3_128_hexdigest(ids.tobytes()) for ids in DOCUMENTS
    ]
    assert len({(one.start, one.end) for one in facts}) == 4  # row groups of ten
    assert all(0 < one.start < one.end < path.stat().st_size for one in facts)


# Megatron


def test_megatron_documents_are_the_written_ids():
    for path in (PREFIX, PREFIX.with_suffix(".bin"), PREFIX.with_suffix(".idx"), PREFIX.parent):
        seen = [megatron_indexed.document(path, number) for number in range(40)]
        assert all(np.array_equal(a, b) for a, b in zip(seen, DOCUMENTS, strict=True))
    assert megatron_indexed.read(PREFIX.parent).dtype == "uint16"


def test_a_megatron_document_may_have_many_sequences_or_none():
    path = DATA / "megatron-sentences" / "bert.idx"
    groups = (DOCUMENTS[:3], DOCUMENTS[3:4], [np.zeros(0, dtype=np.int64)], DOCUMENTS[4:9])
    for number, group in enumerate(groups):
        assert megatron_indexed.document(path, number).tolist() == np.concatenate(group).tolist()


@quiet
@given(
    documents=st.lists(
        st.lists(st.lists(st.integers(0, 65535), max_size=9), max_size=4), max_size=6
    ),
    dtype=st.sampled_from(["uint16", "int32", "int64"]),
)
def test_megatron_round_trip(tmp_path, documents, dtype):
    arrays = [
        [np.array(sequence, dtype=np.int64) for sequence in document] for document in documents
    ]
    make.write_megatron(tmp_path / "set", arrays, dtype)
    facts = megatron_indexed.read(tmp_path / "set")
    assert (facts.num_documents, facts.problems) == (len(documents), ())
    assert facts.num_tokens == sum(len(sequence) for document in documents for sequence in document)
    for number, document in enumerate(documents):
        assert megatron_indexed.document(tmp_path / "set", number).tolist() == list(
            chain(*document)
        )


def brute_documents_of_step(order_of_documents, lengths, shuffle, step, batch, length):
    """Document of every token of the shuffled stream, then the tokens that the step's samples read."""
    owner = [number for number in order_of_documents for _ in range(lengths[number])]
    found = []
    for sample in shuffle[(step - 1) * batch : step * batch]:
        found += owner[sample * length : sample * length + length + 1]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("step", [1, 2, 7, 25])
def test_megatron_step_to_documents(step):
    folder = PREFIX / "cache" / "GPTDataset_indices"
    order, shuffle = (
        np.load(next(folder.glob(f"*-{kind}_index.npy"))) for kind in ("document", "shuffle")
    )
    lengths = [len(one) for one in DOCUMENTS]
    seen = megatron_indexed.documents_of_step(PREFIX, step, 4, 16)
    assert list(seen) == brute_documents_of_step(
        order.tolist(), lengths, shuffle.tolist(), step, 4, 16
    )


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=4, max_size=12),
    length=st.integers(2, 7),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_megatron_step_to_documents_of_any_shape(tmp_path_factory, lengths, length, epochs, seed):
    prefix = tmp_path_factory.mktemp("set") / "set"
    make.write_megatron(prefix, [[np.arange(size)] for size in lengths])
    make.write_order(prefix, lengths, sequence_length=length, seed=seed, epochs=epochs)
    folder = prefix / "cache" / "GPTDataset_indices"
    order, shuffle = (
        np.load(next(folder.glob(f"*-{kind}_index.npy"))) for kind in ("document", "shuffle")
    )
    for step in range(1, len(shuffle) // 2 + 1):
        seen = megatron_indexed.documents_of_step(prefix, step, 2, length)
        assert list(seen) == brute_documents_of_step(
            order.tolist(), lengths, shuffle.tolist(), step, 2, length
        )


def test_sequences_of_a_cached_order_become_their_documents(tmp_path):
    prefix = tmp_path / "set"
    sequences = [np.arange(size) for size in (5, 3, 6, 4, 7)]
    make.write_megatron(prefix, [sequences[:2], sequences[2:3], [], sequences[3:]])
    make.write_order(prefix, [5, 3, 6, 4, 7], sequence_length=24, seed=3)
    assert sorted(megatron_indexed.documents_of_step(prefix, 1, 1, 24)) == [0, 1, 3]


def test_without_caches_megatron_says_what_is_missing(tmp_path):
    make.write_megatron(tmp_path / "set", [[one] for one in DOCUMENTS])
    with pytest.raises(RefusedError, match="document_index") as raised:
        megatron_indexed.documents_of_step(tmp_path / "set", 1, 4, 16)
    assert "--data-cache-path" in raised.value.hint
    assert "GPTDataset_indices" in raised.value.message


def test_megatron_caches_of_another_run_are_not_used(tmp_path):
    with pytest.raises(RefusedError, match="sequence length 32"):
        megatron_indexed.documents_of_step(PREFIX, 1, 4, 32)
    with pytest.raises(RefusedError, match="the cache holds 100"):
        megatron_indexed.documents_of_step(PREFIX, 26, 4, 16)
    with pytest.raises(RefusedError, match="start at 1"):
        megatron_indexed.documents_of_step(PREFIX, 0, 4, 16)
    shutil.copytree(PREFIX.parent, tmp_path / "copy")
    copy = tmp_path / "copy" / PREFIX.name
    folder = copy / "cache" / "GPTDataset_indices"
    make.write_order(copy, [len(one) for one in DOCUMENTS], sequence_length=16, seed=77)
    with pytest.raises(RefusedError, match="2 caches fit"):
        megatron_indexed.documents_of_step(copy, 1, 4, 16)
    (folder / "abc-BlendedDataset-train-dataset_sample_index.npy").write_bytes(b"")
    with pytest.raises(RefusedError, match="blend"):
        megatron_indexed.documents_of_step(copy, 1, 4, 16)


def test_megatron_caches_may_lie_elsewhere(tmp_path):
    make.write_megatron(tmp_path / "set" / PREFIX.name, [[one] for one in DOCUMENTS])
    given_folder = PREFIX / "cache" / "GPTDataset_indices"
    seen = megatron_indexed.documents_of_step(
        tmp_path / "set" / PREFIX.name, 2, 4, 16, caches=given_folder
    )
    assert seen == megatron_indexed.documents_of_step(PREFIX, 2, 4, 16)


def test_a_folder_of_several_megatron_sets_asks_for_one(tmp_path):
    for name in ("a", "b"):
        make.write_megatron(tmp_path / name, [[DOCUMENTS[0]]])
    with pytest.raises(EvidenceError, match=r"found 2 \(a.idx, b.idx\)"):
        megatron_indexed.read(tmp_path)


# Flat tokens


@pytest.mark.parametrize("name", ["nanogpt", "nanogpt/train.bin"])
def test_nanogpt_documents_end_with_the_given_id(name):
    assert flat_tokens.count(DATA / name, eos=make.EOS) == 40
    seen = [flat_tokens.stored(DATA / name, number, eos=make.EOS).tokens for number in range(40)]
    assert all(np.array_equal(a, b) for a, b in zip(seen, DOCUMENTS, strict=True))


def test_llmc_documents_begin_with_the_given_id():
    path = DATA / "llmc" / "fineweb_train_000001.bin"
    assert flat_tokens.count(path, eos=make.EOS) == 40
    for number, ids in enumerate(DOCUMENTS):
        assert (
            flat_tokens.stored(path, number, eos=make.EOS).tokens.tolist()
            == np.roll(ids, 1).tolist()
        )


def test_documents_of_a_folder_of_shards_follow_one_another():
    assert flat_tokens.count(DATA / "llmc", eos=make.EOS) == 40 + 8
    first_of_second = flat_tokens.stored(DATA / "llmc", 40, eos=make.EOS)
    assert first_of_second.path == "fineweb_val_000000.bin"
    assert first_of_second.tokens.tolist() == np.roll(DOCUMENTS[0], 1).tolist()


def test_without_the_id_that_ends_documents_windows_are_shown():
    assert flat_tokens.count(DATA / "nanogpt") == 2
    seen = [flat_tokens.document(DATA / "nanogpt", number) for number in range(2)]
    assert [len(one) for one in seen] == [1024, 586]
    assert np.array_equal(np.concatenate(seen), STREAM)
    assert "windows" in flat_tokens.read(DATA / "nanogpt").notes[0]


@pytest.mark.parametrize(
    ("name", "dtype", "shift"),
    [("llmc-llama3", "uint32", 100_000), ("olmo", "uint32", 90_000), ("nanogpt", "uint16", 0)],
)
def test_the_width_of_ids_is_stated_or_inferred(name, dtype, shift):
    assert flat_tokens.read(DATA / name).dtype == dtype
    assert flat_tokens.document(DATA / name, 0).tolist() == (STREAM[:1024] + shift).tolist()


def test_a_saved_numpy_array_is_a_stream_too(tmp_path):
    np.save(tmp_path / "tokens.npy", STREAM.astype(np.int32))
    facts = flat_tokens.read(tmp_path / "tokens.npy")
    assert (facts.dtype, facts.num_tokens, facts.problems) == ("int32", 1610, ())
    assert (
        flat_tokens.stored(tmp_path / "tokens.npy", 39, eos=make.EOS).tokens.tolist()
        == DOCUMENTS[39].tolist()
    )


@quiet
@given(
    ids=st.lists(st.integers(0, 5), max_size=60),
    eos=st.integers(0, 6),
    header=st.booleans(),
)
def test_flat_documents_cut_and_join_to_the_stream(tmp_path_factory, ids, eos, header):
    path = tmp_path_factory.mktemp("flat") / "train.bin"
    tokens = np.array(ids, dtype=np.int64)
    if header:
        make.write_shard(path, tokens)
    else:
        path.write_bytes(tokens.astype("<u2").tobytes())
    seen = [
        flat_tokens.stored(path, number, eos=eos).tokens.tolist()
        for number in range(flat_tokens.count(path, eos=eos))
    ]
    assert list(chain(*seen)) == ids
    assert all(seen)
    opens = bool(ids) and ids[0] == eos
    for one in seen if opens else seen[:-1]:
        assert one.count(eos) == 1
        assert one[0 if opens else -1] == eos


def test_borders_far_into_a_long_stream(tmp_path):
    tokens = np.ones(3_000_000, dtype="<u2")
    ends = [5, 600_000, 1_048_575, 1_048_576, 2_999_999]
    tokens[ends] = 0
    (tmp_path / "train.bin").write_bytes(tokens.tobytes())
    assert flat_tokens.count(tmp_path / "train.bin", eos=0) == 5
    seen = [flat_tokens.stored(tmp_path / "train.bin", number, eos=0) for number in range(5)]
    assert [one.end // 2 - 1 for one in seen] == ends


@quiet
@given(ids=st.lists(st.integers(0, 2), min_size=1, max_size=60))
def test_each_token_lies_in_the_item_that_holds_it(tmp_path_factory, ids):
    path = tmp_path_factory.mktemp("flat") / "train.bin"
    path.write_bytes(np.array(ids, dtype="<u2").tobytes())
    found = borders(Stream(path=path, start=0, end=2 * len(ids), dtype="<u2", separator=0))
    for number in range(found.num_items):
        for element in range(found.start_of(number), found.start_of(number + 1)):
            assert found.item_at(element) == number


def test_olmo_step_to_instances_and_documents():
    order = np.fromfile(DATA / "olmo" / "global_indices_epoch1_seed34521_size100.npy", dtype="<u4")
    path = DATA / "olmo" / "part-0-00000.npy"
    owner = np.repeat(np.arange(40), [len(one) for one in DOCUMENTS])
    for step in (1, 2, 25):
        instances = flat_tokens.instances_of_step(DATA / "olmo", step, 4)
        assert list(instances) == order[4 * (step - 1) : 4 * step].tolist()
        for number in instances:
            expected = STREAM[16 * number : 16 * (number + 1)] + 90_000
            assert flat_tokens.instance(path, number, 16).tokens.tolist() == expected.tolist()
        tokens = np.concatenate([np.arange(16 * number, 16 * (number + 1)) for number in instances])
        seen = flat_tokens.documents_of_step(path, step, 4, 16, eos=90_000 + make.EOS)
        assert list(seen) == list(dict.fromkeys(owner[tokens].tolist()))
        assert set(flat_tokens.documents_of_step(path, step, 4, 16)) == {
            int(at) // 1024 for at in tokens
        }
    with pytest.raises(RefusedError, match="orders 100 instances"):
        flat_tokens.instances_of_step(DATA / "olmo", 26, 4)


def test_nanogpt_cannot_tell_which_tokens_a_step_drew():
    with pytest.raises(RefusedError, match="at random") as raised:
        flat_tokens.documents_of_step(DATA / "nanogpt", 3, 8, 64)
    assert "global_indices" in raised.value.hint


def test_the_order_of_several_olmo_files_is_not_guessed(tmp_path):
    shutil.copytree(DATA / "olmo", tmp_path / "olmo")
    shutil.copy(tmp_path / "olmo" / "part-0-00000.npy", tmp_path / "olmo" / "part-1-00000.npy")
    assert len(flat_tokens.instances_of_step(tmp_path / "olmo", 1, 4)) == 4
    with pytest.raises(RefusedError, match="order of these 2 files"):
        flat_tokens.documents_of_step(tmp_path / "olmo", 1, 4, 16)
    order = tmp_path / "olmo" / "global_indices_epoch1_seed34521_size100.npy"
    shutil.copy(order, order.with_name("global_indices_epoch2_seed34521_size100.npy"))
    with pytest.raises(RefusedError, match="2 orders fit"):
        flat_tokens.instances_of_step(tmp_path / "olmo", 1, 4)
    assert len(flat_tokens.instances_of_step(tmp_path / "olmo", 1, 4, epoch=2)) == 4


def test_a_shard_shorter_or_longer_than_its_header_says(tmp_path):
    path = tmp_path / "train_1.bin"
    make.write_shard(path, STREAM)
    whole = path.read_bytes()
    path.write_bytes(whole[:-11])
    facts = flat_tokens.read(path)
    assert facts.num_tokens == 1604
    assert "promises 1610 tokens of 2 bytes, found 3209 bytes" in facts.problems[0]
    path.write_bytes(whole + b"xy")
    assert "found 3222 bytes" in flat_tokens.read(path).problems[0]
    assert flat_tokens.read(path).num_tokens == 1610


def test_an_evaluation_file_of_llmc_is_named(tmp_path):
    make.write_shard(tmp_path / "hellaswag_val.bin", STREAM[:10], magic=20240522)
    store, _ = best(STORES, look(tmp_path / "hellaswag_val.bin"))
    with pytest.raises(EvidenceError, match="evaluation file"):
        store.read(tmp_path / "hellaswag_val.bin")


# MosaicML streaming


def test_mds_documents_are_the_written_ids_across_shards():
    seen = [mosaic_streaming.document(DATA / "mds", number) for number in range(40)]
    assert all(np.array_equal(a, b) for a, b in zip(seen, DOCUMENTS, strict=True))
    assert mosaic_streaming.stored(DATA / "mds", 25).path == "shard.00001.mds"


def test_mds_text_beside_a_column_of_fixed_size():
    assert [mosaic_streaming.document(DATA / "mds-text", n).tolist() for n in range(30)] == [
        utf8(n) for n in range(30)
    ]


@quiet
@given(
    ids=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=300),
    encoding=st.sampled_from(
        ["bytes", "ndarray", "ndarray:int32", "ndarray:int64", "ndarray:int32:n"]
    ),
)
def test_mds_encodings_round_trip(tmp_path_factory, ids, encoding):
    folder = tmp_path_factory.mktemp("mds")
    tokens = np.array(ids, dtype=np.int64)
    name, _, shape = encoding.removeprefix("ndarray").lstrip(":").partition(":")
    if encoding == "bytes":
        value = tokens.tobytes()
    elif shape:
        value, encoding = tokens.astype(name).tobytes(), f"ndarray:{name}:{len(ids)}"
    elif name:
        value = make.mds_array(tokens, name)
    else:
        value = bytes([65]) + make.mds_array(tokens, "int64")
    make.write_mds(folder, {"tokens": encoding}, [[make.mds_sample([value], [None])]], [None])
    assert mosaic_streaming.document(folder, 0).tolist() == ids
    assert bool(mosaic_streaming.read(folder).notes) == (encoding == "bytes")


def test_mds_hashes_are_checked_only_when_asked(tmp_path):
    shutil.copytree(DATA / "mds", tmp_path / "mds")
    assert mosaic_streaming.hash_problems(tmp_path / "mds") == ()
    path = tmp_path / "mds" / "shard.00001.mds"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    assert mosaic_streaming.read(tmp_path / "mds").problems == ()
    problems = mosaic_streaming.hash_problems(tmp_path / "mds")
    assert [re.match(r"(\S+): expected (\S+)", problem).groups() for problem in problems] == [
        ("shard.00001.mds", "sha256"),
        ("shard.00001.mds", "xxh3_128"),
    ]


def test_compressed_mds_shards_are_named_and_declined(tmp_path):
    shutil.copytree(DATA / "mds", tmp_path / "mds")
    index = json.loads((tmp_path / "mds" / "index.json").read_text())
    for shard in index["shards"]:
        name = shard["raw_data"]["basename"]
        (tmp_path / "mds" / name).rename(tmp_path / "mds" / f"{name}.zstd")
        shard["compression"] = "zstd:7"
        shard["zip_data"] = {
            "basename": f"{name}.zstd",
            "bytes": shard["raw_data"]["bytes"],
            "hashes": {},
        }
    (tmp_path / "mds" / "index.json").write_text(json.dumps(index))
    facts = mosaic_streaming.read(tmp_path / "mds")
    assert facts.problems == ()
    assert "compressed with zstd:7" in facts.notes[0]
    with pytest.raises(EvidenceError, match="compressed with zstd:7"):
        mosaic_streaming.document(tmp_path / "mds", 0)
    (tmp_path / "mds" / "shard.00000.mds.zstd").rename(
        tmp_path / "mds" / "shard.00000.mds"
    )  # unpacked beside it
    assert mosaic_streaming.document(tmp_path / "mds", 0).tolist() == DOCUMENTS[0].tolist()


def test_mds_shards_that_disagree_with_the_index(tmp_path):
    shutil.copytree(DATA / "mds", tmp_path / "mds")
    first, second = (tmp_path / "mds" / f"shard.0000{number}.mds" for number in range(2))
    first.write_bytes(first.read_bytes()[:-5])
    second.unlink()
    problems = mosaic_streaming.read(tmp_path / "mds").problems
    assert "shard.00000.mds: expected 4812 bytes, found 4807" in problems
    assert "shard.00000.mds: the last sample ends at byte 4812, the file at 4807" in problems
    assert any("shard.00001.mds: there is no such file" in problem for problem in problems)


def test_swapped_mds_shards_are_seen_by_their_sizes(tmp_path):
    shutil.copytree(DATA / "mds", tmp_path / "mds")
    first, second = (tmp_path / "mds" / f"shard.0000{number}.mds" for number in range(2))
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    problems = mosaic_streaming.read(tmp_path / "mds").problems
    assert "shard.00001.mds: expected 15 samples as the index says, found 25" in problems


# Text


def test_jsonl_text_and_messages():
    path = DATA / "jsonl" / "corpus.jsonl"
    assert [jsonl_text.document(path, number).tolist() for number in range(30)] == [
        utf8(number) for number in range(30)
    ]
    assert bytes(jsonl_text.document(DATA / "jsonl" / "chat.jsonl", 0).tolist()) == b"hi\n" + bytes(
        utf8(3)
    )


@quiet
@given(texts=st.lists(st.text(max_size=40), min_size=1, max_size=12), torn=st.booleans())
def test_jsonl_round_trip(tmp_path_factory, texts, torn):
    path = tmp_path_factory.mktemp("jsonl") / "corpus.jsonl"
    lines = "\n".join(json.dumps({"text": text}) for text in texts)
    path.write_text(lines if torn else f"{lines}\n", encoding="utf-8")
    assert jsonl_text.read(path).num_documents == len(texts)
    assert jsonl_text.read(path).problems == ()
    seen = [bytes(jsonl_text.document(path, number).tolist()) for number in range(len(texts))]
    assert [one.decode("utf-8") for one in seen] == texts


def test_a_torn_last_line_and_a_lost_page_of_jsonl(tmp_path):
    path = tmp_path / "corpus.jsonl"
    data = (DATA / "jsonl" / "corpus.jsonl").read_bytes()
    path.write_bytes(data[:-20])
    (problem,) = jsonl_text.read(path).problems
    assert "line 30" in problem
    assert "torn" in problem
    path.write_bytes(data[:500] + bytes(100) + data[600:])
    assert "corpus.jsonl: byte 500 is zero" in jsonl_text.read(path).problems[0]


def test_compressed_jsonl_is_declined_with_a_sentence(tmp_path):
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress((DATA / "jsonl" / "corpus.jsonl").read_bytes()))
    store, _ = best(STORES, look(path))
    assert store is jsonl_text
    assert "compressed with gzip" in store.read(path).notes[0]
    with pytest.raises(EvidenceError, match="gzip"):
        store.document(path, 0)


def test_parquet_text_and_ids():
    path = DATA / "parquet" / "corpus.parquet"
    assert [parquet_text.document(path, n).tolist() for n in (0, 9, 10, 29)] == [
        utf8(n) for n in (0, 9, 10, 29)
    ]
    ids = parquet_text.document(DATA / "parquet-ids", 39)
    assert ids.tolist() == DOCUMENTS[39].tolist()


def test_parquet_rows_of_a_folder_follow_one_another(tmp_path):
    for number, texts in enumerate((["a", "bc"], ["def"])):
        make.write_parquet(
            tmp_path / f"part-{number}.parquet", {"id": list(range(len(texts))), "text": texts}
        )
    seen = [parquet_text.document(tmp_path, number) for number in range(3)]
    assert [bytes(one.tolist()) for one in seen] == [b"a", b"bc", b"def"]
    assert parquet_text.stored(tmp_path, 2).path == "part-1.parquet"


def test_a_flipped_bit_in_a_parquet_page_is_caught_by_its_checksum(tmp_path):
    path = tmp_path / "corpus.parquet"
    data = bytearray((DATA / "parquet" / "corpus.parquet").read_bytes())
    at = parquet_text.stored(DATA / "parquet", 0).end - 8
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(EvidenceError, match=r"CRC|checksum"):
        [parquet_text.document(path, number) for number in range(10)]


def test_parquet_without_a_column_of_text(tmp_path):
    make.write_parquet(tmp_path / "metrics.parquet", {"loss": [1.0], "step": [1]})
    with pytest.raises(CorruptFileError, match="loss, step"):
        parquet_text.read(tmp_path / "metrics.parquet")


@pytest.mark.parametrize("name", ["mds", "jsonl/corpus.jsonl", "parquet"])
def test_stores_without_an_order_refuse_to_name_a_step_s_documents(name):
    store, _ = best(STORES, look(DATA / name))
    with pytest.raises(RefusedError) as raised:
        store.documents_of_step(DATA / name, 1, 8, 64)
    assert raised.value.hint
