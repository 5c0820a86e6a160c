"""Generations of two real ranks.

What one, two and four ranks make of them, and every way a folder can be wrong.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import generation_ranks
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.errors import EvidenceError
from spiketriage.readers.checkpoints.generations import read_generations
from spiketriage.readers.checkpoints.native import read_generation
from spiketriage.train.generations.generation import load_verified

pytestmark = pytest.mark.slow
FILES = (
    "COMPLETE",
    "MANIFEST.json",
    "rank-00000.json",
    "rank-00001.json",
    "tensors/.metadata",
    "tensors/__0_0.distcp",
    "tensors/__1_0.distcp",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("generations") / "checkpoints"


@pytest.fixture(scope="module")
def saved(folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    return generation_ranks.start(folder, "saving", 2, folder.parent / "saving")


def expected(seed: int) -> dict[str, Any]:
    params, moments = generation_ranks.whole(seed), generation_ranks.whole(seed + 1000)
    tensors = {name: one.float().tolist() for name, one in params.items()}
    return {
        **tensors,
        **{f"{n}/exp_avg": one.float().tolist() for n, one in moments.items()},
        "w/step": float(seed),
    }


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_any_number_of_ranks_goes_on_where_two_stopped(
    saved: list[dict[str, Any]], folder: Path, tmp_path: Path, num_ranks: int
) -> None:
    told = generation_ranks.start(folder, "loading", num_ranks, tmp_path / "out")
    for rank, one in enumerate(told):
        loaded = one["40"]
        assert loaded["tensors"] == expected(40)
        assert loaded["bias"] == [40.0] * 4
        assert (loaded["scheduler"], loaded["scaler"]) == ({"last_step": 40}, {"scale": 1024.0})
        assert (loaded["guard"], loaded["cursor"], loaded["num_tokens"]) == (
            {"patience": 40},
            {"position": 280},
            2560,
        )
        assert loaded["rng"] == (saved[rank]["rng"] if num_ranks == 2 else {})
    rows = [one["40"]["local"]["w"][0] for one in told]
    assert (sum(rows), max(rows)) == (10, math.ceil(10 / num_ranks))


def test_a_cursor_of_each_rank_s_own_goes_on_with_as_many_ranks_alone(
    saved: list[dict[str, Any]], folder: Path
) -> None:
    assert [one["mine"] for one in saved] == [{"position": 420, "rank": rank} for rank in (0, 1)]
    with pytest.raises(
        EvidenceError, match="saved by 2 ranks, loaded by 1: cursor differs"
    ) as caught:
        load_verified(folder / "step-000060")
    assert "is_cursor_global=True" in caught.value.hint


def test_the_background_save_wrote_what_was_there_when_it_was_called(
    saved: list[dict[str, Any]], folder: Path
) -> None:
    assert [(one["newest"], one["total"]) for one in saved] == [("step-000060", 2.0)] * 2
    facts = read_generations(folder, verify=True)
    assert [one.name for one in facts] == ["step-000020", "step-000040", "step-000060"]
    assert [(one.complete, one.problems, one.nonfinite) for one in facts] == [(True, (), ())] * 3
    loaded = load_verified(folder / "step-000040")
    assert {name: one.float().tolist() for name, one in loaded.params.items()}.items() <= expected(
        40
    ).items()


def test_the_desk_sees_the_same_files_and_both_ranks(
    saved: list[dict[str, Any]], folder: Path
) -> None:
    facts = read_generation(folder / "step-000020", verify=True)
    assert facts.manifest is not None
    assert (facts.manifest.world_size, facts.manifest.step, facts.manifest.num_tokens) == (
        2,
        20,
        1280,
    )
    assert sorted(facts.file_digests) == [
        name for name in FILES if "." in name and name != "MANIFEST.json"
    ]
    shards = facts.manifest.tensors["rank-1"]["params"]
    assert sorted(shards) == ["b", "tp@dp=1", "w@dp=1"]


def test_a_rotten_file_of_one_rank_is_refused_by_all_and_so_is_a_save_that_fails_on_one(
    saved: list[dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    path = copy / "step-000020" / "rank-00001.json"
    path.write_bytes(path.read_bytes().replace(b"1024.0", b"1025.0"))
    told = generation_ranks.start(copy, "rotten", 2, tmp_path / "out")
    for one in told:
        assert one["lost"][0] == 4
        assert f"{path}: digest: expected " in one["lost"][1]
        assert one["unsaved"][0] == 6
        assert "step-000080: this generation was not saved: " in one["unsaved"][1]
        assert "superseded: File exists" in one["unsaved"][1]


BOTH = {"the job", "the desk"}


def refusals(generation: Path, name: str) -> set[str]:
    """Who refuses the folder and names the file.

    With a mark that does not fit, either file may be the wrong one.
    """
    place = str(generation if name in ("COMPLETE", "MANIFEST.json") else generation / name)
    found = set()
    try:
        load_verified(generation)
    except EvidenceError as error:
        found |= {"the job"} if place in error.message else set()
    if any(place in problem for problem in read_generation(generation, verify=True).problems):
        found.add("the desk")
    return found


@pytest.fixture(scope="module")
def copies(
    saved: list[dict[str, Any]], folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The generations 20 and 40, to be damaged and mended again."""
    place = tmp_path_factory.mktemp("copies")
    for name in ("step-000020", "step-000040"):
        shutil.copytree(folder / name, place / name)
    return place


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(FILES), place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255)
)
def test_any_byte_of_any_file_is_vouched_for(
    copies: Path, name: str, place: float, change: int
) -> None:
    path = copies / "step-000020" / name
    data = path.read_bytes()
    changed = bytearray(data)
    changed[int(place * len(data))] ^= change
    path.write_bytes(changed)
    try:
        assert refusals(copies / "step-000020", name) == BOTH
    finally:
        path.write_bytes(data)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["missing", "empty", "cut", "longer", "of another generation"])
def test_any_file_that_is_missing_or_of_something_else_is_refused(
    copies: Path, name: str, how: str
) -> None:
    path, other = (copies / step / name for step in ("step-000020", "step-000040"))
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        wrong = {
            "empty": b"",
            "cut": data[:-1],
            "longer": data + b"\0",
            "of another generation": other.read_bytes(),
        }
        path.write_bytes(wrong[how])
    try:
        assert refusals(copies / "step-000020", name) == BOTH
    finally:
        path.write_bytes(data)


@pytest.mark.parametrize("names", [("rank-00000.json", "rank-00001.json"), FILES[-2:]])
def test_files_swapped_between_ranks_are_refused(copies: Path, names: tuple[str, str]) -> None:
    one, other = (copies / "step-000020" / name for name in names)
    ours, theirs = one.read_bytes(), other.read_bytes()
    one.write_bytes(theirs), other.write_bytes(ours)
    try:
        assert refusals(copies / "step-000020", names[0]) == BOTH
    finally:
        one.write_bytes(ours), other.write_bytes(theirs)


@pytest.mark.parametrize(
    "name", ["rank-00002.json", "tensors/__2_0.distcp", "tensors/__0_1.distcp", "notes.txt"]
)
def test_a_file_more_is_refused(copies: Path, name: str) -> None:
    (copies / "step-000020" / name).write_bytes(
        (copies / "step-000020" / "rank-00001.json").read_bytes()
    )
    try:
        assert refusals(copies / "step-000020", name) == BOTH
    finally:
        (copies / "step-000020" / name).unlink()


def test_manifest_and_mark_of_another_generation_together_are_refused(
    copies: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(copies / "step-000020", tmp_path / "step-000020")
    for name in ("MANIFEST.json", "COMPLETE"):
        shutil.copy(copies / "step-000040" / name, copy / name)
    with pytest.raises(
        EvidenceError, match="expected that of step-000020, found that of step-000040"
    ):
        load_verified(copy)
    assert (
        "the manifest is that of generation step-000040"
        in read_generation(copy, verify=False).problems[0]
    )
    whole = shutil.copytree(copies / "step-000040", tmp_path / "step-000021")
    with pytest.raises(EvidenceError, match="found that of step-000040"):
        load_verified(whole)


def test_the_manifest_tells_what_ranks_share_once(copies: Path) -> None:
    told = json.loads((copies / "step-000020" / "MANIFEST.json").read_text())["tensors"]
    assert told["rank-1"]["buffers"] == "rank-0"
    assert set(told["rank-1"]["params"]) == {"b", "tp@dp=1", "w@dp=1"}
