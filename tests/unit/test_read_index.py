"""The data index.

Believed only as far as it agrees with itself, and documents only when they are whole.
"""

from __future__ import annotations

import json

import pytest
from run_folder import flip_byte, write_run

from spiketriage import digests
from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.readers.data.native_index import (
    document_digests,
    measure_shard,
    read_document,
    read_index,
)


@pytest.fixture
def data(tmp_path):
    return write_run(tmp_path / "run") / "data"


def lie(data, change):
    value = json.loads((data / "index.json").read_text())
    change(value)
    (data / "index.json").write_text(json.dumps(value))
    return data / "index.json"


def test_a_healthy_index_agrees_with_its_shards(data):
    index = read_index(data / "index.json")
    assert index.digest == digests.of_file(data / "index.json")
    assert len(index.documents) == 8
    for shard in index.shards:
        facts = measure_shard(index, shard.path)
        assert (facts.digest, facts.size_bytes) == (shard.digest, shard.size_bytes)
    assert document_digests(index, "shard-00001.bin") == {
        f"doc-{n}": index.documents[f"doc-{n}"].digest for n in range(4, 8)
    }
    assert read_document(index, index.documents["doc-2"]) == b"document 2 says " * 5


def test_a_rotten_document_is_the_only_one_that_differs(data):
    index = read_index(data / "index.json")
    flip_byte(data / "shard-00001.bin", index.documents["doc-6"].offset_bytes)
    seen = document_digests(index, "shard-00001.bin")
    assert [name for name, digest in seen.items() if digest != index.documents[name].digest] == [
        "doc-6"
    ]


def test_a_truncated_shard_loses_only_its_last_documents(data):
    index = read_index(data / "index.json")
    path = data / "shard-00001.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert sorted(document_digests(index, "shard-00001.bin")) == ["doc-4", "doc-5", "doc-6"]
    with pytest.raises(CorruptFileError, match="doc-7"):
        read_document(index, index.documents["doc-7"])


def test_a_missing_shard_is_named(data):
    index = read_index(data / "index.json")
    (data / "shard-00000.bin").unlink()
    with pytest.raises(EvidenceError, match=r"shard-00000\.bin"):
        document_digests(index, "shard-00000.bin")
    with pytest.raises(EvidenceError, match=r"shard-00000\.bin"):
        read_document(index, index.documents["doc-0"])


def row(number, column, value):
    def change(index):
        index["documents"][number][index["columns"].index(column)] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (row(3, "offset_bytes", 10**9), "doc-3.*within"),
        (row(3, "length_bytes", 10**9), "doc-3.*within"),
        (row(3, "offset_bytes", -1), "doc-3.*at least 0"),
        (row(3, "length_bytes", -5), "doc-3.*at least 0"),
        (row(3, "length_bytes", 1.5), "doc-3.*at least 0"),
        (row(1, "offset_bytes", 0), "behind document doc-0"),
        (row(1, "shard", "../secret"), "doc-1.*a shard of this index"),
        (row(1, "shard", []), "doc-1.*a shard of this index"),
        (row(1, "id", "doc-0"), "different ids"),
        (row(1, "digest", 5), "doc-1.*digest in text"),
        (lambda index: index["shards"][0].update(path="../x.bin"), "a path inside"),
        (lambda index: index["shards"][0].update(path="/x.bin"), "a path inside"),
        (lambda index: index["shards"].append(index["shards"][0]), "different paths"),
        (lambda index: index["shards"][0].update(size_bytes=-1), "a path inside"),
        (lambda index: index["shards"][0].pop("digest"), "an index"),
        (lambda index: index.update(schema="other/1"), "an index"),
        (lambda index: index.pop("columns"), "an index"),
        (lambda index: index["documents"].append([1]), "an index"),
        (lambda index: index.update(documents=7), "an index"),
    ],
)
def test_an_index_that_lies_is_refused_with_the_reason(data, change, words):
    with pytest.raises(CorruptFileError, match=rf"(?s)index\.json.*{words}"):
        read_index(lie(data, change))


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_an_index_that_is_not_json_is_refused(data, text):
    (data / "index.json").write_bytes(text)
    with pytest.raises(CorruptFileError, match=r"index\.json"):
        read_index(data / "index.json")


def test_a_missing_index_is_named(tmp_path):
    with pytest.raises(EvidenceError, match=r"index\.json: is missing"):
        read_index(tmp_path / "index.json")
