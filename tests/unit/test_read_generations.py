"""Generations as disks and crashes leave them.

Every kind of damage is named, none is an exception.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folder import flip_byte, write_run

from spiketriage import digests
from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.readers.checkpoints.dcp import layout as dcp
from spiketriage.readers.checkpoints.files import safetensors_file
from spiketriage.readers.checkpoints.generations import read_generations
from spiketriage.readers.checkpoints.layouts import own_generation, safetensors_files
from spiketriage.readers.checkpoints.native import read_generation
from spiketriage.readers.scan.run import measure


def layout(header: object, data: bytes = b"\0" * 40) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: object, shape: object, start: object, end: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


A, B = entry("F32", [8], 0, 32), entry("BF16", [4], 32, 40)
HOSTILE = {
    "empty": b"",
    "seven bytes": b"p" + b"\0" * 6,
    "huge header length": struct.pack("<Q", 1 << 63) + b"{}",
    "header beyond the file": struct.pack("<Q", 100) + b"{}",
    "not JSON": layout(b'{"a":'),
    "not UTF-8": layout(b"\xff\xfe{}"),
    "not an object": layout([1]),
    "deep nesting": layout(b"[" * 100_000),
    "duplicate key": layout(
        b'{"a":%b,"a":%b}' % (json.dumps(A).encode(), json.dumps(A).encode()), b"\0" * 32
    ),
    "hole at the start": layout({"a": entry("F32", [8], 4, 36), "b": entry("BF16", [2], 36, 40)}),
    "overlap": layout({"a": A, "b": entry("BF16", [4], 24, 32)}, b"\0" * 32),
    "reversed": layout({"a": entry("F32", [8], 32, 0), "b": B}),
    "shape mismatch": layout({"a": entry("F32", [7], 0, 32), "b": B}),
    "shape overflow": layout({"a": entry("F32", [1 << 62, 1 << 62], 0, 32), "b": B}),
    "negative shape": layout({"a": entry("F32", [-2, -4], 0, 32), "b": B}),
    "unknown dtype": layout({"a": entry("F99", [8], 0, 32), "b": B}),
    "dtype is a list": layout({"a": entry([], [8], 0, 32), "b": B}),
    "no offsets": layout({"a": {"dtype": "F32", "shape": [8]}}, b"\0" * 32),
    "entry is a number": layout({"a": 1}, b""),
    "trailing garbage": layout({"a": A, "b": B}, b"\0" * 44),
    "truncated tail": layout({"a": A, "b": B}, b"\0" * 36),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_safetensors_file_is_refused_with_its_name(tmp_path, name):
    path = tmp_path / "x.safetensors"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(CorruptFileError, match=r"x\.safetensors"):
        safetensors_file.read_header(path)


def scanned(path):
    """The tensors that one pass finds nonfinite, and the file's digest."""
    found = measure(safetensors_files.read(path), is_full=False)
    return {name for name, stats in found.stats.items() if stats.num_nonfinite}, found.files[
        0
    ].digest


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
@pytest.mark.parametrize(
    "special", ["nan", "-nan", "inf", "-inf", "largest", "-largest", "-0", "subnormal"]
)
def test_finiteness_is_exact_at_the_borders(tmp_path, dtype, special):
    width, mantissa = {"F64": (64, 52), "F32": (32, 23), "F16": (16, 10), "BF16": (16, 7)}[dtype]
    infinity = (1 << (width - 1)) - (1 << mantissa)
    word = {"nan": infinity + 1, "inf": infinity, "largest": infinity - 1, "0": 0, "subnormal": 1}[
        special.strip("-")
    ]
    word |= (1 << (width - 1)) if special.startswith("-") else 0
    words = np.full(9, (1 << (width - 1)) | 0x10, dtype=f"<u{width // 8}")  # small negative numbers
    words[5] = word
    size = words.nbytes
    path = tmp_path / "x.safetensors"
    # The byte in front puts the tensor on an odd offset.
    header = {"odd": entry("U8", [1], 0, 1), "w": entry(dtype, [9], 1, 1 + size)}
    path.write_bytes(layout(header, b"\xff" + words.tobytes()))
    assert scanned(path)[0] == ({"w"} if special.strip("-") in ("nan", "inf") else set())


@settings(max_examples=40, deadline=None)
@given(
    at=st.integers(0, 700_000),
    value=st.sampled_from([np.nan, np.inf, -np.inf, 3e38]),
    pad=st.integers(0, 3),
)
def test_a_nonfinite_element_is_found_wherever_chunks_are_cut(tmp_path_factory, at, value, pad):
    tensor = np.ones(
        700_001, dtype="<f4"
    )  # 2.8 MB: three read buffers, whose borders cut elements when pad is odd
    tensor[at] = value
    path = tmp_path_factory.getbasetemp() / "large.safetensors"
    header = {
        "pad": entry("U8", [pad], 0, pad),
        "w": entry("F32", [700_001], pad, pad + tensor.nbytes),
    }
    path.write_bytes(layout(header, b"\0" * pad + tensor.tobytes()))
    assert scanned(path) == (
        set() if np.isfinite(value) else {"w"},
        digests.of_bytes(path.read_bytes()),
    )


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("healthy") / "run") / "checkpoints"


@pytest.fixture
def generation(healthy, tmp_path):
    return shutil.copytree(healthy / "step-000080", tmp_path / "step-000080")


def test_healthy_generations_have_no_problem_and_are_in_order(healthy):
    facts = read_generations(healthy, verify=True)
    assert [(one.name, one.step, one.complete) for one in facts] == [
        ("step-000040", 40, True),
        ("step-000080", 80, True),
        ("step-000120", 120, True),
    ]
    assert all(one.problems == () and one.nonfinite == () for one in facts)
    assert facts[0].file_digests == {entry.path: entry.digest for entry in facts[0].manifest.files}


def test_without_verify_nothing_is_digested(healthy):
    assert all(one.file_digests == {} for one in read_generations(healthy, verify=False))


def test_a_missing_complete_marker_is_incomplete(generation):
    (generation / "COMPLETE").unlink()
    facts = read_generation(generation, verify=True)
    assert not facts.complete
    assert facts.step == 80
    assert "COMPLETE: is missing" in facts.problems[0]


@pytest.mark.parametrize("text", [b"0" * 32, b"", b"\xff\xfe"])
def test_a_complete_marker_of_another_manifest_is_incomplete(generation, text):
    (generation / "COMPLETE").write_bytes(text)
    facts = read_generation(generation, verify=False)
    assert not facts.complete
    assert "digest of MANIFEST.json" in facts.problems[0]


@pytest.mark.parametrize("name", ["model.head.weight", "optimizer.state.head.weight.exp_avg_sq"])
def test_a_flipped_byte_names_file_and_tensor(generation, name):
    (chunk,) = next(
        one for one in dcp.read(generation / "tensors").tensors if one.name == name
    ).chunks
    path = generation / "tensors" / chunk.path
    flip_byte(path, path.read_bytes().index(b"data/0", chunk.start) + 100)
    (problem,) = read_generation(generation, verify=True).problems
    assert f"tensors/{path.name}: digest: expected " in problem
    assert name in problem
    assert read_generation(generation, verify=False).problems == ()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_in_any_file_is_noticed(healthy, tmp_path_factory, data):
    copy = tmp_path_factory.mktemp("flip") / "step-000040"
    shutil.copytree(healthy / "step-000040", copy)
    path = data.draw(st.sampled_from(sorted(path for path in copy.rglob("*") if path.is_file())))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    facts = read_generation(copy, verify=True)
    assert any(path.name in problem for problem in facts.problems)


@pytest.mark.parametrize("how", ["missing", "truncated", "empty", "folder", "loop"])
@pytest.mark.parametrize("name", ["tensors/__0_0.distcp", "tensors/.metadata", "rank-00001.json"])
def test_a_file_that_is_gone_or_short_is_named_once_per_fact(generation, how, name):
    path = generation / name
    data = path.read_bytes()
    path.unlink()
    if how in ("truncated", "empty"):
        path.write_bytes(data[: len(data) // 2] if how == "truncated" else b"")
    elif how == "folder":
        path.mkdir()
    elif how == "loop":
        path.symlink_to(path.name)
    for verify in (False, True):
        facts = read_generation(generation, verify=verify)
        assert facts.complete
        assert facts.problems
        assert all(name in problem for problem in facts.problems)


def test_a_nan_is_named_by_file_and_tensor_though_digests_agree(tmp_path):
    run = write_run(tmp_path / "run", nan_tensor="step-000080")
    facts = read_generations(run / "checkpoints", verify=True)
    assert facts[1].problems == ()
    (told,) = facts[1].nonfinite
    assert "model.block.0.weight" in told


def test_ranks_that_disagree_are_named_with_the_tensor(tmp_path):
    run = write_run(tmp_path / "run", disagreeing="step-000080")
    (problem,) = read_generations(run / "checkpoints", verify=False)[1].problems
    assert "rank-1" in problem
    assert "head.weight" in problem


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "other/9"},
        {"files": [{"path": "../../../etc/passwd", "size_bytes": 1, "digest": "0"}]},
        {"files": [{"path": "/etc/passwd", "size_bytes": 1, "digest": "0"}]},
        {"files": [{"path": "a", "size_bytes": -1, "digest": "0"}]},
        {"files": [{"path": "a", "size_bytes": 1}]},
        {"files": 3},
        {"fields": {"rank-0": 3}},
        {"tensors": []},
        {"step": -1},
        {"step": True},
        {"world_size": "two"},
        {"unknown": 1},
        {"hparams": []},
    ],
)
def test_a_manifest_that_lies_about_itself_is_refused(generation, change):
    value = json.loads((generation / "MANIFEST.json").read_text()) | change
    (generation / "MANIFEST.json").write_text(json.dumps(value))
    facts = read_generation(generation, verify=True)
    assert facts.manifest is None
    assert facts.file_digests == {}
    assert any("a manifest spiketriage.generation/2" in problem for problem in facts.problems)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_manifest_that_is_not_json_is_a_problem(generation, text):
    (generation / "MANIFEST.json").write_bytes(text)
    facts = read_generation(generation, verify=True)
    assert facts.manifest is None
    assert any("MANIFEST.json" in problem for problem in facts.problems)


def test_a_lying_world_size_is_a_problem_and_costs_nothing(generation):
    value = json.loads((generation / "MANIFEST.json").read_text()) | {"world_size": 10**12}
    (generation / "MANIFEST.json").write_text(json.dumps(value))
    assert any(
        "1000000000000 ranks" in problem
        for problem in read_generation(generation, verify=False).problems
    )


def test_a_renamed_generation_is_a_problem(generation):
    renamed = generation.rename(generation.with_name("step-000100"))
    facts = read_generation(renamed, verify=False)
    assert "generation step-000080" in facts.problems[0]


def test_an_empty_generation_folder_is_a_problem(tmp_path):
    (tmp_path / "step-000007").mkdir()
    (tmp_path / "step-000008").symlink_to("step-000008")
    (tmp_path / "notes").mkdir()
    facts = read_generations(tmp_path, verify=True)
    assert [(one.step, one.complete, bool(one.problems)) for one in facts] == [
        (7, False, True),
        (8, False, True),
    ]


def test_a_missing_checkpoint_folder_is_one_clear_error(tmp_path):
    with pytest.raises(EvidenceError, match="nowhere"):
        read_generations(tmp_path / "nowhere", verify=False)


def test_reading_generations_never_imports_torch_or_safetensors(healthy):
    code = (
        "import sys; from pathlib import Path; from spiketriage.readers.checkpoints.generations "
        "import read_generations;"
        "assert read_generations(Path(sys.argv[1]), verify=True);"
        "assert not {'torch', 'safetensors', 'pydantic'} & set(sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(healthy)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert (told.returncode, told.stderr) == (0, "")


def test_inspect_holds_a_generation_against_its_manifest(generation):
    facts = own_generation.read(generation)
    assert (facts.layout, facts.step, facts.complete, facts.world_size) == (
        "spiketriage",
        80,
        True,
        2,
    )
    assert (facts.problems, facts.interrupted) == ((), "")
    assert {one.name for one in facts.tensors if one.role == "parameter"} == {
        f"model.{name}" for name in ("embed.weight", "block.0.weight", "head.weight")
    }
    assert {(one.rank, one.values["position"]) for one in facts.fields if one.name == "cursor"} == {
        (0, "160"),
        (1, "161"),
    }
    path = generation / "rank-00001.json"
    path.write_bytes(path.read_bytes().replace(b"161", b"162"))
    (problem,) = own_generation.read(generation).problems
    assert f"{path}: digest: expected " in problem
    (generation / "COMPLETE").unlink()
    unfinished = own_generation.read(generation)
    assert not unfinished.complete
    assert "the generation was not finished" in unfinished.interrupted
