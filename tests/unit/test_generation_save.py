"""Generations as training saves and loads them: what comes back is what went in, or the file is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.readers.checkpoints.native import read_generation
from spiketriage.train.checkpoint import (
    Provenance,
    RankState,
    digest_state,
    load_verified,
    newest_complete,
    read_manifest,
    save,
)

PROVENANCE = Provenance(
    hparams={"clip": 1.0},
    schedule={"kind": "constant"},
    code_path="code/r1",
    code_digest="0" * 32,
    config_digest="1" * 32,
    index_digest="2" * 32,
)
FILES = ("MANIFEST.json", "params.rank-00000.safetensors", "optimizer.rank-00000.safetensors", "state.rank-00000.json")


def state(step: int) -> RankState:
    generator = torch.Generator().manual_seed(step)
    weight = torch.randn(5, 3, generator=generator)
    return RankState(
        params={"w": weight, "turned": weight.t(), "half": weight.to(torch.bfloat16)},
        optimizer={"w/step": torch.tensor(float(step)), "w/exp_avg": weight * 0.1},
        scheduler={"last_step": step},
        rng=bytes(torch.Generator().manual_seed(step).get_state().tolist()).hex(),
        cursor={"step": step, "position": 7 * step},
        num_tokens=64 * step,
    )


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one, as every rank has before it saves."""
    rendezvous = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("saved"), step=20, state=state(20), provenance=PROVENANCE)


def test_a_load_gives_back_what_was_saved(saved: Path) -> None:
    before, after = state(20), load_verified(saved, 0)
    assert digest_state(after) == digest_state(before)
    for name, tensor in before.params.items():
        assert torch.equal(after.params[name], tensor)
        assert after.params[name].dtype == tensor.dtype
    assert (after.scheduler, after.rng, after.cursor, after.num_tokens) == (
        before.scheduler,
        before.rng,
        before.cursor,
        before.num_tokens,
    )


def test_the_desk_reads_the_same_generation_and_finds_nothing_wrong(saved: Path) -> None:
    facts = read_generation(saved, verify=True)
    assert (facts.name, facts.step, facts.complete, facts.problems, facts.nonfinite) == (
        "step-000020",
        20,
        True,
        (),
        (),
    )
    assert facts.manifest is not None
    assert facts.manifest.fields["rank-0"] == digest_state(state(20)).fields
    assert facts.manifest.num_tokens == 64 * 20
    assert sorted(path.name for path in saved.iterdir()) == sorted((*FILES, "COMPLETE"))


def test_a_state_that_differs_anywhere_has_another_digest_in_that_field_alone() -> None:
    whole = digest_state(state(20)).fields
    other = digest_state(state(21)).fields
    assert [name for name in whole if whole[name] == other[name]] == []
    moved = state(20)
    moved.cursor["position"] += 1
    assert [name for name, digest in digest_state(moved).fields.items() if digest != whole[name]] == ["cursor"]


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(FILES), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_in_any_file_is_refused_by_name(saved: Path, name: str, place: float, bit: int) -> None:
    copy = saved.parent / "flipped" / saved.name
    shutil.rmtree(copy.parent, ignore_errors=True)
    shutil.copytree(saved, copy)
    data = bytearray((copy / name).read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    (copy / name).write_bytes(data)
    with pytest.raises(CorruptFileError) as caught:
        load_verified(copy, 0)
    assert caught.value.exit_code == 4
    assert (name if name != "MANIFEST.json" else str(copy)) in caught.value.message


@pytest.mark.parametrize("name", [*FILES, "COMPLETE"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut"])
def test_a_file_that_is_missing_or_cut_is_refused(saved: Path, tmp_path: Path, name: str, damage: str) -> None:
    copy = shutil.copytree(saved, tmp_path / saved.name)
    data = (copy / name).read_bytes()
    (copy / name).unlink()
    if damage != "missing":
        (copy / name).write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
    with pytest.raises(EvidenceError, match=name if name.endswith((".json", "tensors")) else "COMPLETE"):
        load_verified(copy, 0)


def test_a_manifest_that_was_changed_together_with_its_mark_is_still_refused(saved: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(saved, tmp_path / saved.name)
    manifest = json.loads((copy / "MANIFEST.json").read_text())
    manifest["fields"]["rank-0"]["cursor"] = "0" * 32
    (copy / "MANIFEST.json").write_text(json.dumps(manifest))
    from spiketriage.digests import of_file

    (copy / "COMPLETE").write_text(of_file(copy / "MANIFEST.json"))
    with pytest.raises(CorruptFileError, match="field cursor of rank 0"):
        load_verified(copy, 0)


def test_the_newest_generation_that_is_complete_is_chosen(tmp_path: Path) -> None:
    assert newest_complete(tmp_path) is None
    folders = [save(tmp_path, step=step, state=state(step), provenance=PROVENANCE) for step in (20, 40, 60, 80)]
    assert newest_complete(tmp_path) == folders[3]
    (folders[3] / "COMPLETE").unlink()
    (folders[2] / "COMPLETE").write_text("0" * 32)
    assert newest_complete(tmp_path) == folders[1]
    assert read_manifest(folders[1]).step == 40
