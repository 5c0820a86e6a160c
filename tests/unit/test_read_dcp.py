"""torch DCP: what a healthy checkpoint tells, and how damage and hostile metadata are named."""

from __future__ import annotations

import json
import math
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, TensorFacts
from spiketriage.readers.checkpoints.dcp import layout
from spiketriage.readers.checkpoints.files.torch_dtypes import ITEM_BYTES
from spiketriage.readers.checkpoints.files.zip_records import data_record
from spiketriage.readers.look import look
from tests.dcp_metadata_pickle import (
    Made,
    Opcodes,
    Pairs,
    chunk,
    dumps,
    index,
    metadata,
    place,
    size,
    tensor,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "dcp"
EXPECTED: dict[str, dict[str, Any]] = json.loads((FIXTURES / "expected.json").read_text())
PLAIN = FIXTURES / "plain" / "step_3"
DTYPES = {
    "torch.float32": "F32",
    "torch.bfloat16": "BF16",
    "torch.uint8": "U8",
    "torch.int64": "I64",
}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A copy of the plain tree that may be damaged."""
    return Path(shutil.copytree(PLAIN, tmp_path / "step_3"))


def whole(folder: Path, one: TensorFacts) -> bytes:
    """The bytes of a tensor, put together from its chunks."""
    words = np.zeros((*one.shape, ITEM_BYTES[one.dtype]), dtype=np.uint8)
    for part in one.chunks:
        with (folder / part.path).open("rb") as stream:
            start, end = part.start, part.end
            if part.container == "zip":
                record = data_record(stream, start, end)
                start, end = record.start, record.end
            stream.seek(start)
            data = np.frombuffer(stream.read(end - start), dtype=np.uint8)
        where = tuple(
            slice(at, at + length) for at, length in zip(part.offset, part.shape, strict=True)
        )
        words[where] = data.reshape(*part.shape, ITEM_BYTES[one.dtype])
    return words.tobytes()


def problems(folder: Path) -> str:
    """Everything wrong with a DCP folder, which is then not complete."""
    facts = layout.read(folder)
    assert facts.complete is False
    return " | ".join((facts.interrupted, *facts.problems))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_tensors_are_what_torch_loads(name: str) -> None:
    facts = layout.read(FIXTURES / name)
    assert facts.complete
    assert facts.problems == ()
    assert facts.world_size == 2
    found = {
        one.name: [list(one.shape), one.dtype, zlib.crc32(whole(facts.path, one))]
        for one in facts.tensors
    }
    expected = {
        key: [shape, DTYPES[dtype], crc]
        for key, (shape, dtype, crc) in EXPECTED[name].items()
        if "/shard_"
        not in key  # a ShardedObject, whose tensors torch shows only after it is unpickled
    }
    assert found == expected


def test_a_plain_tree_tells_step_scheduler_optimizer_and_rng() -> None:
    facts = layout.read(PLAIN)
    assert [(one.source, one.step) for one in facts.stated_steps] == [
        ("the name step_3", 3),
        ("step", 3),
        ("lr_scheduler.last_epoch", 3),
        ("optimizer.state.gate.step and 3 more", 3),
    ]
    assert facts.steps_agree
    owners = {one.name: (one.role, one.parameter) for one in facts.tensors}
    assert owners["optimizer.state.embed.weight.exp_avg_sq"] == ("optimizer", "model.embed.weight")
    assert owners["model.embed.weight"] == ("parameter", "")
    fields = {one.name: one for one in facts.fields}
    assert fields["optimizer.param_groups.0.lr"].values == {"value": "0.01"}
    assert (fields["rng_rank1.torch"].kind, fields["rng_rank1.torch"].rank) == ("rng", 1)
    assert fields["step"].values == {"value": "3"}
    assert (
        fields["rng_rank0.torch"].digest == fields["rng_rank1.torch"].digest
    )  # both ranks had the same seed
    assert "lower bound" in " ".join(facts.notes)


def test_chunks_that_hold_nothing_are_left_out() -> None:
    gate = next(one for one in layout.read(PLAIN).tensors if one.name == "model.gate")
    assert [(part.offset, part.shape) for part in gate.chunks] == [((0, 0), (1, 3))]


def test_safetensors_serialization_is_read_as_raw_ranges() -> None:
    facts = layout.read(FIXTURES / "safetensors" / "step_1")
    assert {part.container for one in facts.tensors for part in one.chunks} == {"raw"}
    for one in facts.tensors:
        assert all(part.end - part.start == 4 * math.prod(part.shape) for part in one.chunks)


def test_a_missing_rank_file_takes_its_chunks_along(plain: Path) -> None:
    (plain / "__1_0.distcp").unlink()
    said = problems(plain)
    assert "__1_0.distcp: is missing" in said
    assert "and " in said
    assert "more" in said
    embed = next(one for one in layout.read(plain).tensors if one.name == "model.embed.weight")
    assert [part.path for part in embed.chunks] == ["__0_0.distcp"]


def test_a_truncated_rank_file_loses_what_lay_behind_the_cut(plain: Path) -> None:
    file = plain / "__0_0.distcp"
    length = file.stat().st_size
    os.truncate(file, length - 100)
    assert (
        f"__0_0.distcp: is cut short, {length - 100} bytes of {length}; 1 slices of 1 keys"
        in problems(plain)
    )


def test_trailing_bytes_are_counted(plain: Path) -> None:
    with (plain / "__0_0.distcp").open("ab") as stream:
        stream.write(b"\0" * 512)
    assert "__0_0.distcp: 512 bytes follow its last slice" in problems(plain)


def test_swapped_rank_files_are_noticed(plain: Path) -> None:
    first, second = plain / "__0_0.distcp", plain / "__1_0.distcp"
    first.rename(plain / "x")
    second.rename(first)
    (plain / "x").rename(second)
    said = problems(plain)
    assert "do not hold what .metadata says" in said
    assert "swapped with __1_0.distcp, by their sizes" in said
    assert "swapped with __0_0.distcp, by their sizes" in said
    assert said.count(" | ") == 2, "two files are swapped: that is two facts"


def test_swapped_files_of_the_same_size_are_noticed_by_their_shapes(tmp_path: Path) -> None:
    folder = Path(
        shutil.copytree(FIXTURES / "torchtitan" / "checkpoint" / "step-5", tmp_path / "step-5")
    )
    raw = (folder / ".metadata").read_bytes()
    swapped = raw.replace(b"__0_0.distcp", b"__x_0.distcp").replace(
        b"__1_0.distcp", b"__0_0.distcp"
    )
    (folder / ".metadata").write_bytes(swapped.replace(b"__x_0.distcp", b"__1_0.distcp"))
    assert "do not hold what .metadata says" in problems(folder)


def test_a_flipped_bit_is_left_to_the_scan_but_its_record_is_vouched_for(plain: Path) -> None:
    facts = layout.read(plain)
    part = next(one for one in facts.tensors if one.name == "model.embed.weight").chunks[1]
    with (plain / part.path).open("r+b") as stream:
        record = data_record(stream, part.start, part.end)
        stream.seek(record.start + 5)
        byte = stream.read(1)[0]
        stream.seek(record.start + 5)
        stream.write(bytes([byte ^ 4]))
        stream.flush()
        stream.seek(record.start)
        assert record.crc32 != zlib.crc32(stream.read(record.end - record.start))
    assert layout.read(plain).complete  # no tensor byte was read


def test_metadata_gone_is_an_interrupted_save(plain: Path) -> None:
    (plain / ".metadata").unlink()
    facts = layout.read(plain)
    assert facts.problems == ()
    assert not facts.complete
    assert "did not finish, or the file was removed" in facts.interrupted
    assert facts.world_size == 2
    assert facts.step == 3


def test_a_lone_temporary_metadata_file_is_an_interrupted_save(plain: Path) -> None:
    (plain / ".metadata").rename(plain / ".metadata.tmp")
    facts = layout.read(plain)
    assert not facts.complete
    assert "interrupted before .metadata.tmp was renamed" in facts.interrupted


def test_metadata_of_every_rank_alone_is_declined(plain: Path) -> None:
    (plain / ".metadata").rename(plain / "__0.metadata")
    assert "every rank wrote its own (__0.metadata)" in problems(plain)


def test_git_lfs_pointers_are_named(plain: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    (plain / "__0_0.distcp").write_bytes(pointer)
    assert "Git-LFS pointer: the file was never fetched (git lfs pull)" in problems(plain)
    (plain / ".metadata").write_bytes(pointer)
    assert "Git-LFS pointer" in problems(plain)


def test_a_file_of_another_save_is_a_note(plain: Path) -> None:
    shutil.copy(plain / "__0_0.distcp", plain / "__2_0.distcp")
    (plain / "__3_0.distcp").touch()
    facts = layout.read(plain)
    assert facts.complete
    assert "__2_0.distcp: not named by .metadata: left over from another save" in facts.notes
    assert facts.world_size == 4  # a rank with nothing to write leaves an empty file


def test_a_folder_where_a_file_should_be(plain: Path) -> None:
    (plain / "__0_0.distcp").unlink()
    (plain / "__0_0.distcp").mkdir()
    assert "__0_0.distcp: is missing" in problems(plain)


def test_nothing_of_dcp_is_refused(tmp_path: Path) -> None:
    assert layout.claims(look(tmp_path)) == 0
    with pytest.raises(EvidenceError, match=r"neither \.metadata nor a \.distcp file"):
        layout.read(tmp_path)
    with pytest.raises(EvidenceError):
        layout.read(tmp_path / "missing")


def one_tensor(**places: Any) -> bytes:
    """Metadata of one tensor `w` of 4 x 2 in two chunks; `places` are those of the second."""
    parts = [chunk(size(0, 0), size(2, 2)), chunk(size(2, 0), size(2, 2))]
    said = {"path": "__0_0.distcp", "offset": 0, "length": 10, **places}
    storage = Pairs(
        pairs=(
            (index("w", size(0, 0)), place("__0_0.distcp", 10, 10)),
            (
                index("w", size(2, 0)),
                place(said.pop("path"), said.pop("offset"), said.pop("length"), **said),
            ),
        )
    )
    return metadata({"w": tensor(size(4, 2), parts)}, storage)


def made(folder: Path, raw: bytes) -> str:
    """What is wrong with a folder with this metadata and one file of 20 bytes."""
    (folder / ".metadata").write_bytes(raw)
    (folder / "__0_0.distcp").write_bytes(b"PK\x03\x04" + bytes(16))
    return problems(folder)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"offset": 30}, "is cut short, 20 bytes of 40; 1 slices of 1 keys: w at [2, 0]"),
        ({"offset": -1}, "w at [2, 0] is said to lie at byte -1, 10 bytes long"),
        ({"length": -5}, "is said to lie at byte 0, -5 bytes long"),
        ({"offset": 1 << 70}, "is said to lie at byte 1180591620717411303424"),
        ({"offset": 10**3000}, "at byte a number of thousands of digits"),
        ({"offset": "0"}, "is said to lie at byte '0'"),
        ({"offset": 0.0}, "is said to lie at byte a float"),
        ({"offset": True}, "is said to lie at byte a bool"),
        (
            {"path": "../../etc/passwd"},
            "is said to lie in '../../etc/passwd', which is not inside the checkpoint",
        ),
        ({"path": "/etc/passwd"}, "is said to lie in '/etc/passwd', which is not inside"),
        ({"path": None}, "is said to lie in a NoneType"),
        ({"path": "a\0b"}, "which is not inside the checkpoint"),
        ({"path": "\ud800"}, "which is not inside the checkpoint"),
        ({"offset": 5}, "are said to overlap"),
    ],
)
def test_a_place_that_cannot_be_is_named(
    tmp_path: Path, places: dict[str, Any], words: str
) -> None:
    assert words in made(tmp_path, one_tensor(**places))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (tensor(size(4, 2), [chunk(size(0, 0), size(2, 2))]), "no chunk holds 2:4 of axis 0"),
        (
            tensor(size(4, 2), [chunk(size(0, 0), size(4, 3))]),
            "do not cover its shape [4, 2] exactly",
        ),
        (tensor(size(-4, 2), []), "has the shape or offset a tuple, expected counts"),
        (tensor(size(*[1] * 100), []), "expected counts"),
        (tensor(size(4.0), []), "expected counts"),
        (
            Made(name="torch.distributed.checkpoint.metadata.TensorStorageMetadata", state={}),
            "in no known way",
        ),
        (Made(name="os.system", state={"size": 1}), "in no known way"),
        (7, "in no known way"),
    ],
)
def test_a_tensor_that_cannot_be_is_named(tmp_path: Path, value: Any, words: str) -> None:
    assert words in made(tmp_path, metadata({"w": value}, {}))


def test_names_that_are_no_text_are_declined(tmp_path: Path) -> None:
    held = {"\ud800": tensor(size(), []), "fine": tensor(size(0), [])}
    assert "1 keys are no text" in made(tmp_path, metadata(held, {}))
    assert [one.name for one in layout.read(tmp_path).tensors] == ["fine"]


@pytest.mark.parametrize("storage", [None, 5, [1], Pairs(pairs=((5, 6), ("a", None)))])
def test_storage_data_of_another_kind(tmp_path: Path, storage: Any) -> None:
    assert "storage_data" in made(tmp_path, metadata({}, storage))


def many(count: int, offset: int) -> bytes:
    """Metadata of objects, one a file."""
    keys = [f"k{number}" for number in range(count)]
    storage = Pairs(
        pairs=tuple((index(key), place(f"__{key[1:]}_0.distcp", offset, 1)) for key in keys)
    )
    held = {
        key: Made(name="torch.distributed.checkpoint.metadata.BytesStorageMetadata", state={})
        for key in keys
    }
    return metadata(held, storage)


def test_many_missing_files_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(many(300, 0))
    facts = layout.read(tmp_path)
    assert len(facts.problems) == 1
    assert "is missing, and 299 files more; 300 slices of 300 keys" in facts.problems[0]


def test_many_broken_entries_are_counted(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(many(300, -1))
    facts = layout.read(tmp_path)
    assert len(facts.problems) == 101
    assert facts.problems[-1].endswith(
        "and 500 problems more"
    )  # 300 places, and 300 keys without one


def test_a_nested_offset_is_refused_before_it_is_hashed(tmp_path: Path) -> None:
    nested = Opcodes(raw=b")" + 100_000 * b"\x85")
    raw = metadata({}, Pairs(pairs=((index("w", nested), place("__0_0.distcp", 0, 1)),)))
    assert "has no name or no offset" in made(tmp_path, raw)


def test_metadata_that_would_run_something_runs_nothing(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    call = Made(name="os.system", args=(f"touch {witness}",))
    said = made(tmp_path, metadata({}, {}, storage_meta=call))
    assert "asks for os.system" in said
    assert not witness.exists()
    assert "os.system" in layout.read(tmp_path).globals


@pytest.mark.parametrize(
    "raw", [b"", b"\x80", b"hello", dumps({"a": 1}), dumps(Made(name="os.system", args=("true",)))]
)
def test_metadata_that_is_none_is_a_problem(plain: Path, raw: bytes) -> None:
    (plain / ".metadata").write_bytes(raw)
    assert "without it nobody knows what the .distcp files hold" in problems(plain)


def test_a_transform_is_declined_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(one_tensor(transform_descriptors=["zstd"]))
    (tmp_path / "__0_0.distcp").write_bytes(bytes(20))
    facts = layout.read(tmp_path)
    assert (
        "w: stored through a transform (compression), so its values cannot be read here"
        in facts.notes
    )
    assert facts.tensors == ()
    assert facts.complete


@pytest.fixture(scope="module")
def worn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that hypothesis damages and repairs."""
    return Path(shutil.copytree(PLAIN, tmp_path_factory.mktemp("worn") / "step_3"))


def test_a_line_break_in_what_was_found_is_shown_and_not_made(tmp_path: Path) -> None:
    copy = shutil.copytree(PLAIN, tmp_path / "step_3")
    good = (PLAIN / ".metadata").read_bytes()
    (copy / ".metadata").write_bytes(
        good[:61] + b"F" + good[62:]
    )  # a float that ends at the next line break
    (problem,) = (
        one for one in layout.read(copy).problems if "could not convert string to float" in one
    )
    assert "\n" not in problem
    assert "\\n" in problem


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from([".metadata", ".metadata", "__0_0.distcp"]), st.data())
def test_any_damage_is_told_and_never_crashes(worn: Path, name: str, data: st.DataObject) -> None:
    good = (PLAIN / name).read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    bad = (
        good[:at]
        if data.draw(st.booleans())
        else good[:at] + bytes([data.draw(st.integers(0, 255))]) + good[at + 1 :]
    )
    (worn / name).write_bytes(bad)
    try:
        facts = layout.read(worn)
        assert isinstance(facts, CheckpointFacts)
        assert all("\n" not in problem for problem in facts.problems)
    finally:
        (worn / name).write_bytes(good)


def test_bytes_behind_the_metadata_are_damage(plain: Path) -> None:
    with (plain / ".metadata").open("ab") as stream:
        stream.write(b"more")
    assert "4 bytes follow its pickle" in problems(plain)


def test_only_a_key_with_tensor_metadata_owns_entries_of_the_optimizer(tmp_path: Path) -> None:
    counter = Made(name="torch.distributed.checkpoint.metadata.BytesStorageMetadata", state={})
    held = {
        "step": counter,
        "total": counter,
        "iteration": tensor(size(0), [], "torch.int64"),
        "w": tensor(size(0), []),
        "optimizer.state.0.step": tensor(size(0), []),
        "optimizer.state.0.total": tensor(size(0), []),
        "optimizer.state.w.exp_avg": tensor(size(0), []),
    }
    (tmp_path / ".metadata").write_bytes(metadata(held, {}))
    tensors = {one.name: (one.role, one.parameter) for one in layout.read(tmp_path).tensors}
    assert tensors == {
        "iteration": ("other", ""),
        "w": ("parameter", ""),
        "optimizer.state.0.step": ("optimizer", ""),
        "optimizer.state.0.total": ("optimizer", ""),
        "optimizer.state.w.exp_avg": ("optimizer", "w"),
    }
