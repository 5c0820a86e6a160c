"""Data stores that lie, are cut short, or are something else.

A sentence each, and never another exception.
"""

from __future__ import annotations

import json
import os
import shutil
import struct

import numpy as np
import pyarrow as arrow
import pytest
from data_fixtures import DATA, make
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from spiketriage.errors import CorruptFileError, EvidenceError, RefusedError
from spiketriage.readers.data import (
    flat_tokens,
    jsonl_text,
    megatron_indexed,
    mosaic_streaming,
    parquet_text,
)
from spiketriage.readers.data.npy_file import read_npy
from spiketriage.readers.data.statistics import documents, unigram_counts
from spiketriage.readers.data.stores import STORES
from spiketriage.readers.look import look

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345678901\n"
FAMILIES = {
    "megatron": megatron_indexed,
    "megatron-sentences": megatron_indexed,
    "nanogpt": flat_tokens,
    "llmc": flat_tokens,
    "olmo": flat_tokens,
    "mds": mosaic_streaming,
    "mds-text": mosaic_streaming,
    "jsonl": jsonl_text,
    "parquet": parquet_text,
    "parquet-ids": parquet_text,
}
FILES = [
    (name, file)
    for name in FAMILIES
    for file in sorted(p for p in (DATA / name).rglob("*") if p.is_file())
]


def use(store, path):
    """The sentences of all refusals, when a store is asked everything that a caller may ask."""
    asked = (
        lambda: store.read(path),
        lambda: store.document(path, 0),
        lambda: store.count(path, eos=make.EOS),
        lambda: store.documents_of_step(path, 2, 4, 16),
        lambda: mosaic_streaming.hash_problems(path) if store is mosaic_streaming else None,
        lambda: documents(
            store,
            path,
            [0, 3],
            eos=make.EOS,
            reference=unigram_counts(store, path, max_documents=3),
        ),
    )
    for one in STORES:
        assert 0 <= one.claims(look(path)) <= 1
    return [sentence for ask in asked if (sentence := refused(ask)) is not None]


def refused(ask):
    """The sentence of a promised error, None without one; any other error is not caught."""
    try:
        ask()
    except (EvidenceError, RefusedError) as error:
        return error.message
    return None


@st.composite
def damages(draw):
    """A change to the bytes of a file: cut, filled, appended, or bytes overwritten."""
    kind = draw(st.sampled_from(["cut", "zero", "ones", "append", "bytes", "bytes", "bytes"]))
    return kind, draw(st.floats(0, 1, exclude_max=True)), draw(st.binary(min_size=1, max_size=12))


def damaged(data, kind, place, extra):
    at = int(place * len(data))
    if kind == "cut":
        return data[:at]
    if kind == "append":
        return data + extra
    fill = {"zero": bytes(48), "ones": b"\xff" * 48, "bytes": extra}[kind]
    return (data[:at] + fill + data[at + len(fill) :])[: max(len(data), at + 1)]


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(target=st.sampled_from(FILES), damage=damages())
def test_any_damage_gives_facts_or_a_promised_error(tmp_path_factory, target, damage):
    name, file = target
    folder = tmp_path_factory.mktemp("store") / name
    shutil.copytree(DATA / name, folder)
    victim = folder / file.relative_to(DATA / name)
    victim.write_bytes(damaged(victim.read_bytes(), *damage))
    assert all(use(FAMILIES[name], folder))  # each refusal says something
    assert all(use(FAMILIES[name], victim))


@pytest.mark.parametrize(
    ("name", "file"), FILES, ids=lambda value: getattr(value, "name", value)[-40:]
)
def test_a_pointer_or_an_empty_file_in_place_of_each_file(name, file, tmp_path):
    for data in (POINTER, b""):
        folder = tmp_path / f"{len(data)}"
        shutil.copytree(DATA / name, folder)
        victim = folder / file.relative_to(DATA / name)
        victim.write_bytes(data)
        assert all(use(FAMILIES[name], folder))
        assert use(
            FAMILIES[name], victim
        )  # the file itself, empty or a pointer, can never answer everything


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("nanogpt", "train.bin"),
        ("mds", "index.json"),
        ("jsonl", "corpus.jsonl"),
        ("parquet", "corpus.parquet"),
        ("megatron", "corpus_text_document.idx"),
    ],
)
def test_a_pointer_is_called_a_pointer(name, file, tmp_path):
    (tmp_path / file).write_bytes(POINTER)
    with pytest.raises(
        EvidenceError, match="is a Git-LFS pointer: the file was never fetched"
    ) as raised:
        FAMILIES[name].read(tmp_path / file)
    assert raised.value.hint == "git lfs pull"


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.NAME)
def test_folders_pipes_loops_and_strange_names(store, tmp_path):
    (tmp_path / "folder.idx").mkdir()
    os.mkfifo(tmp_path / "pipe.bin")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    strange = os.fsdecode(bytes(tmp_path) + b"/\xff\xfe.npy")
    np.save(strange, np.arange(9))
    for path in (tmp_path, tmp_path / "folder.idx", tmp_path / os.path.basename(strange)):
        use(store, path)
    for name in ("pipe.bin", "loop.jsonl", "absent.parquet", "x" * 300 + ".bin"):
        for ask in (store.read, store.count, lambda path: store.document(path, 0)):
            with pytest.raises(EvidenceError):
                ask(tmp_path / name)


# Megatron


def index(num_sequences, num_borders, body=b"", *, version=1, code=8):
    return (
        b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", version, code, num_sequences, num_borders) + body
    )


@pytest.mark.parametrize(
    ("num_sequences", "num_borders"), [(2**60, 2), (1, 2**60), (2**64 - 1, 2**64 - 1)]
)
def test_megatron_counts_that_no_file_can_hold(num_sequences, num_borders, tmp_path):
    (tmp_path / "set.bin").write_bytes(bytes(8))
    (tmp_path / "set.idx").write_bytes(index(num_sequences, num_borders, bytes(40)))
    facts = megatron_indexed.read(tmp_path / "set.idx")
    assert (facts.num_documents, facts.num_tokens) == (None, None)
    assert f"{num_sequences} sequences and {num_borders} document borders need" in facts.problems[0]
    with pytest.raises(CorruptFileError, match="size: expected"):
        megatron_indexed.document(tmp_path / "set.idx", 0)
    with pytest.raises(CorruptFileError, match="size: expected"):
        megatron_indexed.documents_of_step(tmp_path / "set.idx", 1, 4, 16)


def lied(tmp_path, lengths, pointers, borders, bin_bytes):
    body = (
        np.array(lengths, "<i4").tobytes()
        + np.array(pointers, "<i8").tobytes()
        + np.array(borders, "<i8").tobytes()
    )
    (tmp_path / "set.bin").write_bytes(bytes(bin_bytes))
    (tmp_path / "set.idx").write_bytes(index(len(lengths), len(borders), body))
    return tmp_path / "set.idx"


@pytest.mark.parametrize(
    ("lengths", "pointers", "borders", "sentence", "bad"),
    [
        ([4, 4], [0, 8], [0, 1, 2], None, None),
        (
            [4, 9],
            [0, 8],
            [0, 1, 2],
            "sequence 1: expected an end within the 16 bytes of the .bin, found 8 to 26",
            1,
        ),
        ([4, -4], [0, 8], [0, 1, 2], "sequence 1: expected a length of at least 0, found -4", 1),
        (
            [4, 4],
            [0, 2**62],
            [0, 1, 2],
            "sequence 1: expected a start at byte 8, found 4611686018427387904",
            1,
        ),
        ([4, 4], [0, -8], [0, 1, 2], "sequence 1: expected a start at byte 8, found -8", 1),
        ([4, 4], [0, 4], [0, 1, 2], "sequence 1: expected a start at byte 8, found 4", None),
        (
            [4, 4],
            [0, 8],
            [0, 2, 1],
            "document border 2: expected a sequence within 2, not before the last",
            1,
        ),
        ([4, 4], [0, 8], [0, 1, 2**60], "document border 2: expected a sequence within 2", 1),
        ([4, 4], [0, 8], [-1, 1, 2], "document border 0: expected sequence 0, found -1", 0),
        ([4, 4], [0, 8], [0, 1], "the last document ends at sequence 1, expected 2", None),
        ([4, 2], [0, 8], [0, 1, 2], "4 bytes follow the last sequence", None),
        ([4, 4], [0, 8], [], "holds no document border", None),
    ],
)
def test_megatron_places_that_lie_are_named(lengths, pointers, borders, sentence, bad, tmp_path):
    path = lied(tmp_path, lengths, pointers, borders, 16)
    problems = megatron_indexed.read(path).problems
    assert problems == () if sentence is None else any(sentence in problem for problem in problems)
    if bad is not None:
        with pytest.raises(CorruptFileError):
            megatron_indexed.document(path, bad)


def test_many_megatron_problems_are_not_all_listed(tmp_path):
    path = lied(tmp_path, [-1] * 5000, range(5000), range(5001), 0)
    assert 8 < len(megatron_indexed.read(path).problems) < 12


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (index(1, 2, version=2), "version: expected 1, found 2"),
        (index(1, 2, code=99), "dtype code: expected one of"),
        (index(1, 2)[:30], "header: expected 34 bytes, found 30"),
        (b"MMIDIDY" + bytes(40), "expected MMIDIDX"),
        (b"", "expected MMIDIDX"),
    ],
)
def test_a_megatron_header_that_cannot_be_believed(change, match, tmp_path):
    (tmp_path / "set.idx").write_bytes(change)
    with pytest.raises(CorruptFileError, match=match):
        megatron_indexed.read(tmp_path / "set.idx")


def test_a_megatron_index_without_tokens_and_tokens_without_an_index(tmp_path):
    make.write_megatron(tmp_path / "set", [[np.arange(5)], [np.arange(3)]])
    (tmp_path / "set.bin").rename(tmp_path / "away")
    facts = megatron_indexed.read(tmp_path / "set.idx")
    assert (facts.num_documents, facts.num_tokens) == (2, 8)
    assert "set.bin: there is no such file" in facts.problems[0]
    with pytest.raises(EvidenceError, match=r"set\.bin: there is no such file"):
        megatron_indexed.document(tmp_path / "set.idx", 0)
    (tmp_path / "away").rename(tmp_path / "set.bin")
    (tmp_path / "set.idx").unlink()
    with pytest.raises(EvidenceError, match=r"set\.idx: there is no such file"):
        megatron_indexed.read(tmp_path / "set.bin")


def test_a_truncated_megatron_bin_loses_only_its_last_documents(tmp_path):
    make.write_megatron(tmp_path / "set", [[np.arange(5)], [np.arange(3)]])
    (tmp_path / "set.bin").write_bytes((tmp_path / "set.bin").read_bytes()[:-1])
    (problem,) = megatron_indexed.read(tmp_path / "set").problems
    assert "sequence 1: expected an end within the 15 bytes" in problem
    assert megatron_indexed.document(tmp_path / "set", 0).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(CorruptFileError, match="document 1"):
        megatron_indexed.document(tmp_path / "set", 1)


def test_floats_are_no_token_ids(tmp_path):
    (tmp_path / "set.bin").write_bytes(np.array([np.nan], "<f8").tobytes())
    body = np.array([1], "<i4").tobytes() + np.array([0, 0, 1], "<i8").tobytes()
    (tmp_path / "set.idx").write_bytes(index(1, 2, body, code=6))
    assert megatron_indexed.read(tmp_path / "set.idx").dtype == "float64"
    with pytest.raises(EvidenceError, match="no token ids"):
        megatron_indexed.document(tmp_path / "set.idx", 0)


@pytest.mark.parametrize("kind", ["document", "sample", "shuffle"])
def test_a_cached_order_that_points_outside(kind, tmp_path):
    shutil.copytree(DATA / "megatron", tmp_path / "megatron")
    folder = tmp_path / "megatron" / "corpus_text_document" / "cache" / "GPTDataset_indices"
    path = next(folder.glob(f"*-{kind}_index.npy"))
    array = np.load(path)
    array[:] = array.max() * 1000
    np.save(path, array)
    with pytest.raises(CorruptFileError, match="expected"):
        megatron_indexed.documents_of_step(tmp_path / "megatron", 1, 4, 16)


# numpy


@pytest.mark.parametrize(
    "array",
    [
        np.array([{"a": 1}], dtype=object),
        np.ones(3),
        np.zeros((2, 2, 2), int),
        np.asfortranarray(np.eye(3, dtype=int)),
    ],
)
def test_only_plain_arrays_of_integers_are_read(array, tmp_path):
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(CorruptFileError, match="header"):
        read_npy(tmp_path / "x.npy")


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_a_numpy_header(version, tmp_path):
    array = np.arange(12, dtype=">i4").reshape(6, 2)
    with (tmp_path / "x.npy").open("wb") as stream:
        np.lib.format.write_array(stream, array, version=version)
    assert read_npy(tmp_path / "x.npy").rows(1, 3).tolist() == [2, 3, 4, 5]


def test_a_numpy_shape_that_no_file_can_hold(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(9))
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(
        data.replace(b"(9,), }" + b" " * 18, b"(9000000000000000000,), }")
    )
    with pytest.raises(CorruptFileError, match="9000000000000000000 rows"):
        read_npy(tmp_path / "x.npy")


# The others


@pytest.mark.parametrize("promised", [2**31 - 1, -5])
def test_a_shard_that_promises_tokens_it_cannot_have(promised, tmp_path):
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, promised
    (tmp_path / "train.bin").write_bytes(header.tobytes() + bytes(20))
    facts = flat_tokens.read(tmp_path / "train.bin")
    assert f"promises {promised} tokens" in facts.problems[0]
    assert facts.num_tokens == (10 if promised > 0 else 0)


def changed_index(tmp_path, change):
    shutil.copytree(DATA / "mds", tmp_path / "mds")
    value = json.loads((tmp_path / "mds" / "index.json").read_text())
    change(value)
    (tmp_path / "mds" / "index.json").write_text(json.dumps(value))
    return tmp_path / "mds"


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.update(version=1),
        lambda v: v.update(shards={}),
        lambda v: v["shards"].append(None),
        lambda v: v["shards"][0].update(format="json"),
        lambda v: v["shards"][0].update(samples=2**60),
        lambda v: v["shards"][0].update(samples=-1),
        lambda v: v["shards"][0].update(samples="25"),
        lambda v: v["shards"][0]["raw_data"].update(bytes=2**70),
        lambda v: v["shards"][0]["raw_data"].update(basename="../../etc/passwd"),
        lambda v: v["shards"][0]["raw_data"].update(basename="/etc/passwd"),
        lambda v: v["shards"][0]["raw_data"].update(basename="a\ud800"),
        lambda v: v["shards"][0].update(zip_data={"basename": "../x", "bytes": 1}),
        lambda v: v["shards"][0].update(column_names=None),
        lambda v: v["shards"][0].update(column_sizes=[None]),
        lambda v: v["shards"][0].update(column_encodings=[1, 2]),
    ],
)
def test_an_mds_index_that_lies_is_refused(change, tmp_path):
    with pytest.raises(CorruptFileError, match=r"index\.json"):
        mosaic_streaming.read(changed_index(tmp_path, change))


def test_a_column_of_pickles_is_never_unpickled(tmp_path):
    payload = b"cos\nsystem\n(S'touch " + bytes(tmp_path / "pwned") + b"'\ntR."
    make.write_mds(
        tmp_path / "mds", {"data": "pkl"}, [[make.mds_sample([payload], [None])]], [None]
    )
    with pytest.raises(
        CorruptFileError, match="expected text, bytes or an array of integers, found pkl"
    ):
        mosaic_streaming.document(tmp_path / "mds", 0)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "line",
    [b"", b"[1, 2]", b'{"text": 5}', b'{"input_ids": [1, null]}', b'{"input_ids": [1e400]}', (b'{"messages": [[], '
    b'3]}'),
     b"\xff\xfe", b"[" * 100_000, b'{"input_ids": [99999999999999999999999999]}', b'{"loss": NaN}'],
)  # fmt: skip
def test_a_line_that_holds_no_document(line, tmp_path):
    (tmp_path / "corpus.jsonl").write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    assert jsonl_text.document(tmp_path / "corpus.jsonl", 0).tolist() == list(b"fine")
    assert len(jsonl_text.read(tmp_path / "corpus.jsonl").problems) == 1
    with pytest.raises(EvidenceError, match=r"line 2"):
        jsonl_text.document(tmp_path / "corpus.jsonl", 1)


def test_a_lone_surrogate_in_json_is_text(tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"text": "a\\ud800"}\n')
    assert jsonl_text.document(tmp_path / "corpus.jsonl", 0).tolist() == [97, 0xED, 0xA0, 0x80]


def test_a_parquet_bomb_is_not_unpacked(tmp_path):
    value = arrow.scalar("a" * (1 << 20))
    table = arrow.table({"text": arrow.repeat(value, 80)})
    path = tmp_path / "bomb.parquet"
    parquet.write_table(
        table, path, compression="zstd", use_dictionary=False, write_statistics=False
    )
    assert path.stat().st_size < 1 << 18
    assert parquet_text.read(path).num_documents == 80
    with pytest.raises(EvidenceError, match="expands to 8388"):
        parquet_text.document(path, 0)
