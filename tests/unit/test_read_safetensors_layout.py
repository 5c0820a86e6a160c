"""safetensors files as a checkpoint layout.

What is promised, what is there, and what is cut short.
"""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from spiketriage.errors import EvidenceError
from spiketriage.readers.checkpoints.layouts import safetensors_files
from spiketriage.readers.look import look

FIXTURE = Path(__file__).parents[2] / "fixtures" / "hf" / "sharded"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5135\n"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path):
    return Path(shutil.copytree(FIXTURE, tmp_path / "model"))


def edit_index(folder, change):
    index = json.loads((folder / INDEX).read_text())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))


def only_problem(folder):
    facts = safetensors_files.read(folder)
    assert not facts.complete
    (problem,) = facts.problems
    return problem


def test_a_sharded_folder_is_the_tensors_that_the_library_loads():
    facts = safetensors_files.read(FIXTURE)
    arrays = {name: array for shard in SHARDS for name, array in load_file(FIXTURE / shard).items()}
    assert facts.complete
    assert facts.problems == ()
    assert {tensor.name: tensor.shape for tensor in facts.tensors} == {
        name: a.shape for name, a in arrays.items()
    }
    for tensor in facts.tensors:
        (chunk,) = tensor.chunks
        data = (FIXTURE / chunk.path).read_bytes()[chunk.start : chunk.end]
        assert data == arrays[tensor.name].tobytes()
        assert tensor.role == "parameter"
    assert {file.path for file in facts.files} == {path.name for path in FIXTURE.iterdir()}
    assert facts.stated_steps == ()
    assert facts.world_size is None
    assert any("no checksum" in note for note in facts.notes)
    (config,) = [field for field in facts.fields if field.name == "config.json"]
    assert config.values["n_embd"] == "8"


def test_a_missing_shard_is_named(sharded):
    (sharded / SHARDS[1]).unlink()
    facts = safetensors_files.read(sharded)
    assert not facts.complete
    assert facts.problems == (f"{sharded / SHARDS[1]}: there is no such file or folder",)


def test_without_an_index_the_shard_names_say_how_many_there_are(sharded):
    (sharded / INDEX).unlink()
    assert safetensors_files.read(sharded).complete
    (sharded / SHARDS[1]).unlink()
    assert "expected 2 files model-…-of-00002.safetensors, found 1" in only_problem(sharded)


def test_a_shard_cut_short_names_the_tensors_that_it_lost(sharded):
    shard = sharded / SHARDS[0]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    held = [
        one for one in safetensors_files.read(FIXTURE).tensors if one.chunks[0].path == SHARDS[0]
    ]
    last = max(held, key=lambda one: one.chunks[0].end)
    problem = only_problem(sharded)
    assert f"expected {len(whole)} bytes" in problem
    assert f"found {len(whole) - 1}: it is cut short in {last.name}" in problem


def test_bytes_after_the_last_tensor_are_told(sharded):
    with (sharded / SHARDS[0]).open("ab") as stream:
        stream.write(b"x" * 512)
    assert "something was added after the last tensor" in only_problem(sharded)


def test_swapped_shards_are_told(sharded):
    first, second = (sharded / name for name in SHARDS)
    spare = sharded / "spare"
    first.rename(spare)
    second.rename(first)
    spare.rename(second)
    facts = safetensors_files.read(sharded)
    assert not facts.complete
    assert sum("which does not hold them" in problem for problem in facts.problems) == 2


def test_a_tensor_that_the_index_names_and_no_shard_holds_is_told(sharded):
    edit_index(sharded, lambda index: index["weight_map"].update({"ghost.weight": SHARDS[0]}))
    assert f"names ghost.weight in {SHARDS[0]}, which does not hold it" in only_problem(sharded)


def test_a_tensor_that_the_index_does_not_know_is_told(sharded):
    edit_index(sharded, lambda index: index["weight_map"].pop("transformer.wte.weight"))
    assert (
        "holds transformer.wte.weight, which model.safetensors.index.json does not expect"
        in only_problem(sharded)
    )


def test_a_total_size_that_is_not_the_sum_is_told(sharded):
    edit_index(sharded, lambda index: index["metadata"].update(total_size=1))
    assert "total_size: expected the " in only_problem(sharded)


@pytest.mark.parametrize("total", [None, "big", True, float("nan"), [1]])
def test_a_total_size_that_is_no_number_promises_nothing(sharded, total):
    edit_index(sharded, lambda index: index["metadata"].update(total_size=total))
    assert safetensors_files.read(sharded).complete


@pytest.mark.parametrize(
    "target", ["../outside.safetensors", "/etc/passwd", "", 7, None, "a\0b", "\ud800"]
)
def test_an_index_that_points_out_of_its_folder_is_not_followed(sharded, target):
    edit_index(sharded, lambda index: index["weight_map"].update({"w": target}))
    assert "weight_map: expected tensor names with files in this folder" in only_problem(sharded)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b'{"weight_map": 3}', b"{}"])
def test_a_broken_index_is_a_sentence(sharded, text):
    (sharded / INDEX).write_bytes(text)
    assert INDEX in only_problem(sharded)


def test_a_git_lfs_pointer_is_called_one(sharded):
    (sharded / SHARDS[0]).write_bytes(POINTER)
    assert (
        only_problem(sharded)
        == f"{sharded / SHARDS[0]}: is a Git-LFS pointer: the file was never fetched (git lfs pull)"
    )
    with pytest.raises(EvidenceError, match="never fetched") as caught:
        safetensors_files.read(sharded / SHARDS[0])
    assert caught.value.hint == "git lfs pull"


def test_a_shard_that_is_a_folder_or_a_loop_is_a_sentence(sharded):
    (sharded / SHARDS[0]).unlink()
    (sharded / SHARDS[0]).mkdir()
    (sharded / SHARDS[1]).unlink()
    (sharded / SHARDS[1]).symlink_to(SHARDS[1])
    facts = safetensors_files.read(sharded)
    assert not facts.complete
    assert len(facts.problems) == 2
    assert all(name in problem for name, problem in zip(SHARDS, facts.problems, strict=True))


def test_the_same_tensor_in_two_files_is_noted(tmp_path):
    for name in ("a.safetensors", "b.safetensors"):
        save_file({"w": np.zeros(2, np.float32)}, tmp_path / name)
    facts = safetensors_files.read(tmp_path)
    assert (
        f"{tmp_path}: w in both a.safetensors and b.safetensors: which one counts is not said"
        in facts.notes
    )


def test_one_file_is_a_checkpoint_of_its_own(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, path, metadata={"format": "pt"})
    facts = safetensors_files.read(path)
    (tensor,) = facts.tensors
    (chunk,) = tensor.chunks
    assert (tensor.name, tensor.dtype, tensor.shape) == ("w", "F32", (2, 3))
    assert (chunk.path, chunk.offset, chunk.shape) == ("", (0, 0), (2, 3))
    assert np.frombuffer(path.read_bytes()[chunk.start : chunk.end], np.float32).tolist() == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]
    assert [field.values for field in facts.fields] == [{"format": "pt"}]


@pytest.mark.parametrize(
    ("dtype", "shape", "size"), [("F4", [3, 2], 3), ("F6_E2M3", [4], 3), ("F8_E4M3FNUZ", [2], 2)]
)
def test_narrow_dtypes_of_the_current_library_are_read(tmp_path, dtype, shape, size):
    header = json.dumps({"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}).encode()
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    assert load_names(tmp_path / "w.safetensors") == ["w"]
    (tensor,) = safetensors_files.read(tmp_path / "w.safetensors").tensors
    assert (tensor.dtype, tensor.shape) == (dtype, tuple(shape))


def load_names(path):
    import safetensors

    return [name for name, _ in safetensors.deserialize(path.read_bytes())]


def test_claims_are_surest_of_the_name_and_the_index(tmp_path, sharded):
    assert safetensors_files.claims(look(sharded / SHARDS[0])) >= 0.95
    assert 0.5 < safetensors_files.claims(look(sharded)) < 0.95
    renamed = tmp_path / "weights"
    shutil.copy(sharded / SHARDS[0], renamed)
    assert safetensors_files.claims(look(renamed)) >= 0.9
    (tmp_path / "empty").mkdir()
    assert safetensors_files.claims(look(tmp_path / "empty")) == 0
    with pytest.raises(EvidenceError, match="holds no safetensors file"):
        safetensors_files.read(tmp_path / "empty")


def test_a_header_of_a_million_digits_or_of_half_a_letter_is_refused_at_once(tmp_path):
    path = tmp_path / "w.safetensors"
    shapes = [[10**4000] * 50, [1] * 100_000]
    headers = [
        json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}})
        for shape in shapes
    ]
    twice = "{" + ", ".join(f'"{number % 40_000}": 1' for number in range(80_000)) + "}"
    for text in (
        *headers,
        twice,
        '{"\\ud800": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
    ):
        path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + bytes(4))
        with pytest.raises(EvidenceError) as caught:
            safetensors_files.read(path)
        assert len(caught.value.message) < 1000


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cut=st.integers(0, 6080), at=st.integers(0, 6079), flip=st.integers(0, 255))
def test_whatever_is_cut_or_flipped_there_are_facts_or_an_evidence_error(tmp_path, cut, at, flip):
    data = bytearray((FIXTURE / SHARDS[0]).read_bytes())
    data[at] ^= flip
    path = tmp_path / "w.safetensors"
    path.write_bytes(data[:cut])
    try:
        facts = safetensors_files.read(path)
    except EvidenceError:
        return
    assert facts.complete == (cut == facts.tensors[-1].chunks[0].end)
