"""torch.save files without torch.

Every tensor where zipfile and its writer say, every kind of damage a sentence.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.readers.checkpoints.files.torch_values import TensorRef
from spiketriage.readers.checkpoints.files.torch_zip import data_record, extents, read_torch_file
from spiketriage.readers.inert import walk

FIXTURES = Path(__file__).parents[2] / "fixtures" / "torch_save"
ODD = FIXTURES / "odd.pt"
ANY_INPUT = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def elements(path: Path, tensor: TensorRef, dtype: str) -> list:
    return np.frombuffer(path.read_bytes()[tensor.start : tensor.end], dtype).tolist()


def test_records_are_those_that_zipfile_finds():
    file = read_torch_file(ODD)
    data = ODD.read_bytes()
    with zipfile.ZipFile(ODD) as archive:
        expected = {info.filename: (archive.read(info), info.CRC) for info in archive.infolist()}
    seen = {record.name: (data[record.start : record.end], record.crc32) for record in file.records}
    assert seen == expected
    assert (file.problems, file.whole) == ((), True)


def test_tensors_have_dtype_shape_and_place():
    value = read_torch_file(ODD).value
    seen = {name: (tensor.dtype, tensor.shape, tensor.contiguous) for name, tensor in value.items()}
    assert seen == {
        "transposed": ("F32", (4, 3), False),
        "view": ("I64", (4,), True),
        "bf16": ("BF16", (3, 2), True),
        "f8": ("F8_E4M3", (2,), True),
        "empty": ("F32", (0, 3), True),
        "scalar": ("F32", (), True),
        "complex": ("C64", (1,), True),
        "tied": ("BF16", (3, 2), True),
    }
    assert elements(ODD, value["view"], "<i8") == [3, 4, 5, 6]
    assert elements(ODD, value["scalar"], "<f4") == [2.5]
    assert elements(ODD, value["f8"], "u1") == [0x38, 0x7E]  # 1.0 and 448, the largest
    assert elements(ODD, value["bf16"], "<u2") == [0x3F80] * 6
    assert elements(ODD, value["transposed"], "<f4") == list(range(12))
    assert value["tied"].storage_key == value["bf16"].storage_key


def test_the_legacy_format_has_the_same_values_as_the_archive():
    new, old = FIXTURES / "mono.pt", FIXTURES / "legacy.pt"
    ours = {leaf.path: leaf.value for leaf in walk(read_torch_file(new).value)}
    theirs = {leaf.path: leaf.value for leaf in walk(read_torch_file(old).value)}
    assert ours.keys() == theirs.keys()
    for path, value in ours.items():
        if isinstance(value, TensorRef):
            assert (
                new.read_bytes()[value.start : value.end]
                == old.read_bytes()[theirs[path].start : theirs[path].end]
            )
        elif path[-1] != "args":
            assert value == theirs[path]


def test_a_plain_pickle_is_read_too():
    file = read_torch_file(FIXTURES / "plain.pkl")
    assert (file.value["step"], file.value["name"], file.records) == (5, "x", ())


def test_a_slice_of_a_larger_file(tmp_path):
    path = tmp_path / "many"
    path.write_bytes(b"x" * 100 + ODD.read_bytes() + b"y" * 50)
    file = read_torch_file(path, start=100, end=100 + ODD.stat().st_size)
    assert elements(path, file.value["view"], "<i8") == [3, 4, 5, 6]
    assert file.problems == ()


def test_extents_are_what_zlib_computes():
    file = read_torch_file(ODD)
    data = ODD.read_bytes()
    found = extents(file, "odd.pt", lambda record: record.name)
    assert len(found) == sum(record.end > record.start for record in file.records)
    assert all(zlib.crc32(data[extent.start : extent.end]) == extent.crc32 for extent in found)


def one_tensor(tmp_path: Path, *, pad: int = 0) -> tuple[Path, int, int]:
    path = tmp_path / "chunk"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"N.")
        archive.writestr("archive/data/0", b"0123" * 4)
        archive.writestr("archive/version", b"3\n" + b" " * pad)
    data = path.read_bytes()
    path.write_bytes(b"before" + data + b"after")
    return path, 6, 6 + len(data)


@pytest.mark.parametrize("pad", [0, 100_000])
def test_the_one_tensor_of_a_slice(tmp_path, pad):
    path, start, end = one_tensor(tmp_path, pad=pad)
    with path.open("rb", buffering=0) as stream:
        record = data_record(stream, start, end)
        assert os.pread(stream.fileno(), record.end - record.start, record.start) == b"0123" * 4
        assert record.crc32 == zlib.crc32(b"0123" * 4)
        for bad_start, bad_end in (
            (start, end - 1),
            (start + 1, end + 1),
            (start, start),
            (end, end + 1000),
        ):
            with pytest.raises(EvidenceError):
                data_record(stream, bad_start, bad_end)


def test_a_zip64_directory(tmp_path):
    data = ODD.read_bytes()
    end = data.rindex(b"PK\x05\x06")
    count, size, offset = struct.unpack_from("<HII", data, end + 10)
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, offset)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, offset + size, 1)
    wide = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path = tmp_path / "wide.pt"
    path.write_bytes(data[: offset + size] + end64 + locator + wide)
    assert read_torch_file(path).records == read_torch_file(ODD).records


def changed(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "bad.pt"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("kept", range(8))
def test_a_truncated_archive_gives_the_names_and_the_storages_before_the_cut(tmp_path, kept):
    data = ODD.read_bytes()
    whole = read_torch_file(ODD)
    storages = [record for record in whole.records if "/data/" in record.name]
    cut = storages[kept].start if kept < len(storages) else storages[-1].end + 40
    file = read_torch_file(changed(tmp_path, data[:cut]))
    assert not file.whole
    assert "expected the end record of a zip archive, found none: truncated" in file.problems[0]
    survived = {record.name: (record.start, record.end) for record in storages if record.end <= cut}
    assert len(survived) in (
        kept,
        kept + 1,
        len(storages),
    )  # one storage has no bytes, so no cut can lose it
    assert {record.name: (record.start, record.end) for record in file.records} == survived
    for name, tensor in file.value.items():
        expected = whole.value[name]
        alive = f"odd/data/{tensor.storage_key}" in survived
        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
        assert (tensor.start, tensor.end) == (
            (expected.start, expected.end) if alive else (None, None)
        )
    for record in file.records:
        assert record.crc32 in (None, zlib.crc32(data[record.start : record.end]))
    assert sum(record.crc32 is not None for record in file.records) >= len(survived) - 2


def test_trailing_bytes_are_told(tmp_path):
    file = read_torch_file(changed(tmp_path, ODD.read_bytes() + bytes(512)))
    assert [problem.partition(": ")[2] for problem in file.problems] == [
        "512 bytes follow the end of the archive"
    ]


def test_a_missing_storage_is_told(tmp_path):
    path = tmp_path / "bad.pt"
    with zipfile.ZipFile(ODD) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            if info.filename != "odd/data/1":
                new.writestr(info.filename, old.read(info))
    file = read_torch_file(path)
    assert not file.whole
    assert file.problems == (f"{path}: storage 1: its bytes are not in the file",)
    assert file.value["view"].start is None


def test_a_short_storage_is_told(tmp_path):
    path = tmp_path / "bad.pt"
    with zipfile.ZipFile(ODD) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            new.writestr(
                info.filename, old.read(info)[: 40 if info.filename == "odd/data/1" else None]
            )
    problem = f"{path}: storage 1: a tensor spans bytes 24 to 56 of it, 40 bytes are in the file"
    assert read_torch_file(path).problems == (problem,)


def test_compressed_records_are_declined(tmp_path):
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(50_000_000))
    with pytest.raises(CorruptFileError, match=r"expected one record data\.pkl, found 0"):
        read_torch_file(path)


def test_records_of_one_name_are_told(tmp_path):
    path = tmp_path / "twice.pt"
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("a/data.pkl", pickle.dumps({"x": 1}, 2))
        archive.writestr("a/data.pkl", pickle.dumps({"x": 2}, 2))
    file = read_torch_file(path)
    assert "expected one record of that name, found two" in file.problems[0]


def test_records_that_torch_takes_for_one_are_told(tmp_path):
    """Torch looks a record up without regard to case."""
    path = tmp_path / "case.pt"
    with zipfile.ZipFile(ODD) as source, zipfile.ZipFile(path, "w") as changed:
        for info in source.infolist():
            changed.writestr(info.filename, source.read(info))
        first = next(name for name in source.namelist() if name.endswith("/data/0"))
        changed.writestr(first.replace("/data/", "/DATA/"), source.read(first))
    (problem,) = read_torch_file(path).problems
    assert "/DATA/0: expected one record of that name, found two" in problem


def test_overlapping_records_are_told(tmp_path):
    data = bytearray(ODD.read_bytes())
    names = [data.rindex(b"odd/data/0"), data.rindex(b"odd/data/1")]
    data[names[1] - 4 : names[1]] = data[
        names[0] - 4 : names[0]
    ]  # its header is said to be where the other's is
    assert any(
        "records that do not overlap" in problem
        for problem in read_torch_file(changed(tmp_path, data)).problems
    )


def test_a_checksum_that_was_not_computed_vouches_for_nothing(tmp_path):
    data = bytearray(ODD.read_bytes())
    name = data.rindex(b"odd/data/1")
    data[name - 30 : name - 26] = bytes(4)
    file = read_torch_file(changed(tmp_path, data))
    assert [record.name for record in file.records if record.crc32 is None] == ["odd/data/1"]


def test_a_flipped_bit_in_the_pickle_is_told_by_its_checksum(tmp_path):
    data = bytearray(ODD.read_bytes())
    at = data.index(b"transposed")
    data[at] ^= 1
    file = read_torch_file(changed(tmp_path, data))
    assert "record data.pkl: expected CRC" in file.problems[0]
    assert "uransposed" in file.value


def test_big_endian_elements_are_declined(tmp_path):
    path = tmp_path / "bad.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"N.")
        archive.writestr("a/byteorder", b"big")
    with pytest.raises(CorruptFileError, match="expected little-endian elements"):
        read_torch_file(path)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "expected a torch.save file, found 0 bytes"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
            "is a Git-LFS pointer",
        ),
        (b"PK\x03\x04", "zip archive"),
        (b"PK\x05\x06" + bytes(18), "expected an intact pickle"),
        (b"not a checkpoint", "expected an intact pickle"),
    ],
)
def test_what_is_no_torch_file_is_one_sentence(tmp_path, data, sentence):
    with pytest.raises(EvidenceError, match=sentence):
        read_torch_file(changed(tmp_path, data))


def test_what_cannot_be_opened_is_one_sentence(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(EvidenceError, match="cannot be read"):
            read_torch_file(path)


def test_a_legacy_file_that_was_cut(tmp_path):
    file = read_torch_file(changed(tmp_path, (FIXTURES / "legacy.pt").read_bytes()[:-1]))
    assert not file.whole
    assert "found the end of the file" in file.problems[0]


@ANY_INPUT
@given(st.data())
def test_any_damage_is_facts_or_the_one_error(tmp_path, data):
    source = data.draw(st.sampled_from([ODD, FIXTURES / "legacy.pt", FIXTURES / "plain.pkl"]))
    good = source.read_bytes()
    tail = data.draw(st.booleans())  # the directory is where most of the ways to be wrong are
    at = data.draw(st.integers(max(0, len(good) - 900) if tail else 0, len(good) - 1))
    byte = bytes([data.draw(st.integers(0, 255))])
    bad = data.draw(
        st.sampled_from(
            [good[:at], good[:at] + byte + good[at + 1 :], good[:at] + byte + good[at:]]
        )
    )
    with contextlib.suppress(EvidenceError):
        file = read_torch_file(changed(tmp_path, bad))
        for leaf in walk(file.value):
            if isinstance(leaf.value, TensorRef) and leaf.value.start is not None:
                assert 0 <= leaf.value.start <= leaf.value.end <= len(bad)
        assert all(0 <= record.start <= record.end <= len(bad) for record in file.records)


@ANY_INPUT
@given(st.data())
def test_any_damage_of_a_slice_is_a_record_or_the_one_error(tmp_path, data):
    path = tmp_path / "chunk"
    if not path.exists():
        one_tensor(tmp_path)
        path.rename(tmp_path / "good")
    good = (tmp_path / "good").read_bytes()
    start, end = 6, len(good) - 5
    at = data.draw(st.integers(start, end - 1))
    path.write_bytes(good[:at] + bytes([data.draw(st.integers(0, 255))]) + good[at + 1 :])
    with contextlib.suppress(EvidenceError), path.open("rb", buffering=0) as stream:
        record = data_record(stream, start, end)
        assert start <= record.start <= record.end <= end
