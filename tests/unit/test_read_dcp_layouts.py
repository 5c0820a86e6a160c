"""The layouts that are torch DCP with something around it.

Torchtitan, OLMo-core, Megatron, Lightning, Composer.
"""

from __future__ import annotations

import hashlib
import pickle
import shutil
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spiketriage.nouns.checkpoint import CheckpointFacts
from spiketriage.readers.checkpoints.formats import LAYOUTS
from spiketriage.readers.look import best, look

FIXTURES = Path(__file__).parents[2] / "fixtures" / "dcp"
TITAN, OLMO = FIXTURES / "torchtitan" / "checkpoint", FIXTURES / "olmo_core" / "step7"
MEGATRON, LIGHTNING = (
    FIXTURES / "megatron" / "iter_0000010",
    FIXTURES / "lightning" / "epoch=0-step=2.ckpt",
)


def read(path: Path) -> CheckpointFacts:
    """What the layout that is surest of `path` says."""
    found = best(LAYOUTS, look(path))
    assert found is not None
    return found[0].read(path)


def damaged(tmp_path: Path, source: Path) -> Path:
    """A copy of a fixture, in a folder of its own."""
    return Path(shutil.copytree(source, tmp_path / source.name))


def values(facts: CheckpointFacts, name: str, rank: int | None = None) -> dict[str, str]:
    return dict(next(one.values for one in facts.fields if (one.name, one.rank) == (name, rank)))


@pytest.mark.parametrize(
    ("path", "layout", "step", "world_size"),
    [
        (FIXTURES / "plain" / "step_3", "dcp", 3, 2),
        (FIXTURES / "safetensors" / "step_1", "dcp", 1, 2),
        (TITAN / "step-4", "torchtitan", 4, 2),
        (TITAN / "step-5", "torchtitan", 5, 2),
        (TITAN / "step-6", "torchtitan", 6, None),
        (OLMO, "olmo-core", 7, 2),
        (MEGATRON, "megatron-dist", 10, 2),
        (LIGHTNING, "lightning-sharded", 2, 2),
    ],
)
def test_every_layout_is_recognized_and_complete(
    path: Path, layout: str, step: int, world_size: int | None
) -> None:
    facts = read(path)
    assert (facts.layout, facts.step, facts.world_size) == (layout, step, world_size)
    assert facts.complete
    assert facts.steps_agree
    assert facts.problems == ()
    assert facts.interrupted == ""
    assert {one.path for one in facts.files} == {
        one.relative_to(path).as_posix() for one in path.rglob("*") if one.is_file()
    }
    assert {part.path for one in facts.tensors for part in one.chunks} <= {
        one.path for one in facts.files
    }


def test_torchtitan_tells_its_places_of_the_step_and_its_cursors() -> None:
    facts = read(TITAN / "step-4")
    assert [one.source for one in facts.stated_steps] == [
        "the name step-4",
        "lr_scheduler.last_epoch",
        "train_state.step",
        "optimizer.state.gate.step and 3 more",
    ]
    assert values(facts, "dataloader.dp_rank_1", 1) == {
        "sample_idx": "41",
        "token_buffer.0": "1",
        "token_buffer.1": "2",
    }
    assert values(facts, "train_state.ntokens_seen") == {"value": "4096"}
    owners = {one.name: one.parameter for one in facts.tensors if one.role == "optimizer"}
    assert owners["optimizer.state.layers.0.bias.exp_avg"] == "layers.0.bias"


def test_torchtitans_last_save_is_not_taken_for_damaged() -> None:
    facts = read(TITAN / "step-5")
    assert {one.dtype for one in facts.tensors} == {"BF16"}
    assert any(note.startswith("a model-only save") for note in facts.notes)
    exported = read(TITAN / "step-6")
    assert {one.name for one in exported.tensors} == {one.name for one in facts.tensors}
    assert any(note.startswith("an export for Hugging Face") for note in exported.notes)


def test_a_step_in_another_folder_disagrees(tmp_path: Path) -> None:
    facts = read(Path(shutil.copytree(TITAN / "step-4", tmp_path / "step-9")))
    assert not facts.steps_agree
    assert facts.step == 9


def test_a_lost_cursor_is_missed(tmp_path: Path) -> None:
    folder = damaged(tmp_path, TITAN / "step-4")
    raw = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(
        raw.replace(b"dataloader.dp_rank_1", b"dataloader.xx_rank_1")
    )
    assert any(
        "1 of the 2 cursors are missing (dp_rank_1)" in problem for problem in read(folder).problems
    )


def test_an_export_without_its_weights(tmp_path: Path) -> None:
    folder = damaged(tmp_path, TITAN / "step-6")
    (folder / "model-00001-of-00001.safetensors").unlink()
    facts = read(folder)
    assert not facts.complete
    assert "model-00001-of-00001.safetensors" in " ".join(facts.problems)


def test_olmo_core_tells_the_cursor_and_rng_of_every_rank() -> None:
    facts = read(OLMO)
    assert [one.source for one in facts.stated_steps] == [
        "the name step7",
        "train/rank0.pt: global_step",
        "optim.state.gate.step and 3 more",
    ]
    for rank in (0, 1):
        assert values(facts, "data_loader", rank)["dataset_fingerprint"] == "f00d"
        assert values(facts, "progress", rank)["global_train_tokens_seen"] == "7168"
    assert [one.rank for one in facts.fields if one.kind == "rng"] == [0, 1]
    assert all(
        part.path.startswith("model_and_optim/") for one in facts.tensors for part in one.chunks
    )
    assert not any("lower bound" in note for note in facts.notes)


@pytest.mark.parametrize(
    "missing", [".metadata.json", "train/rank0.pt", "model_and_optim/.metadata"]
)
def test_olmo_core_is_complete_with_its_three_files_only(tmp_path: Path, missing: str) -> None:
    folder = damaged(tmp_path, OLMO)
    (folder / missing).unlink()
    facts = read(folder)
    assert facts.layout == "olmo-core"
    assert not facts.complete
    assert missing in facts.interrupted


def test_olmo_core_misses_a_rank(tmp_path: Path) -> None:
    folder = damaged(tmp_path, OLMO)
    (folder / "train" / "rank1.pt").unlink()
    facts = read(folder)
    assert not facts.complete
    assert any(
        "1 of 2 ranks' files are missing (rank1.pt)" in problem for problem in facts.problems
    )
    (folder / "train" / "rank1.pt").write_bytes(b"torn")
    assert any("the state of rank 1 is lost" in problem for problem in read(folder).problems)


def test_olmo_cores_temporary_folder_is_an_interrupted_save(tmp_path: Path) -> None:
    facts = read(Path(shutil.copytree(OLMO, tmp_path / "step7-tmp")))
    assert not facts.complete
    assert "renames it at the end" in facts.interrupted


def test_olmo_core_without_its_dcp_folder_is_not_complete(tmp_path: Path) -> None:
    folder = damaged(tmp_path, OLMO)
    shutil.rmtree(folder / "model_and_optim")
    (folder / "model_and_optim").mkdir()
    facts = read(folder)
    assert not facts.complete
    assert any(
        "holds neither .metadata nor a .distcp file" in problem for problem in facts.problems
    )


def test_megatron_tells_arguments_fp8_rng_and_promises() -> None:
    facts = read(MEGATRON)
    assert [one.source for one in facts.stated_steps] == [
        "the name iter_0000010",
        "common_state.iteration",
    ]
    assert values(facts, "common_state.args")["tensor_model_parallel_size"] == "2"
    assert values(facts, "common_state.args")["consumed_train_samples"] == "640"
    assert values(facts, "common_state.opt_param_scheduler") == {
        "max_lr": "0.0003",
        "num_steps": "640",
    }
    kinds = {one.name: one.kind for one in facts.fields}
    shard = "decoder.layers.self_attention.linear_qkv._extra_state/shard_1_2"
    assert kinds[shard] == "fp8"
    assert values(facts, shard)["delayed_scaling"] == "True"
    assert values(facts, shard)["state.scale_fwd"] == "1.0"
    assert kinds["rng_state/shard_0.1_1.2"] == "rng"
    promised = {one.path: one.digest for one in facts.promises}
    for name in ("__0_0.distcp", "__1_0.distcp", ".metadata", "metadata.json"):
        assert promised[name] == hashlib.sha256((MEGATRON / name).read_bytes()).hexdigest()
    owners = {one.name: one.parameter for one in facts.tensors}
    assert (
        owners["optimizer.state.exp_avg.embedding.word_embeddings.weight"]
        == "embedding.word_embeddings.weight"
    )


def test_bytes_inside_an_object_are_vouched_for() -> None:
    facts = read(MEGATRON)
    names = {one.name.partition("/")[0] for one in facts.extents}
    assert names == {"decoder.layers.self_attention.linear_qkv._extra_state", "rng_state"}
    for one in facts.extents:
        assert zlib.crc32((MEGATRON / one.path).read_bytes()[one.start : one.end]) == one.crc32


def test_megatron_without_its_last_file_did_not_finish(tmp_path: Path) -> None:
    folder = damaged(tmp_path, MEGATRON)
    (folder / "metadata.json").unlink()
    facts = read(folder)
    assert facts.layout == "megatron-dist"
    assert not facts.complete
    assert "metadata.json: is missing; Megatron writes it last" in facts.interrupted
    assert any(
        "promises metadata.json, which is not there" in problem for problem in facts.problems
    )


def test_megatrons_older_common_state_is_a_file(tmp_path: Path) -> None:
    folder = damaged(tmp_path, MEGATRON)
    group = {"param_groups": [{"step": 12, "lr": 0.1}]}
    common = {
        "iteration": 12,
        "optimizer": {"optimizer": group},
        "opt_param_scheduler": {"num_steps": 99},
    }
    (folder / "common.pt").write_bytes(pickle.dumps(common))
    facts = read(folder)
    assert not facts.steps_agree
    assert ("common_state.iteration", 12) in [(one.source, one.step) for one in facts.stated_steps]
    assert ("common_state.optimizer.optimizer.param_groups.0.step", 12) in [
        (one.source, one.step) for one in facts.stated_steps
    ]
    assert ("scheduler", "common.pt") in [(one.kind, one.path) for one in facts.fields]


def test_megatrons_tracker_is_a_note(tmp_path: Path) -> None:
    folder = damaged(tmp_path, MEGATRON)
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.write_text("10\n")
    assert not any("pointer" in note for note in read(folder).notes)
    tracker.write_text("20")
    facts = read(folder)
    assert facts.complete
    assert any("names '20', not this checkpoint (10)" in note for note in facts.notes)


def test_megatron_misses_a_shard_of_an_object(tmp_path: Path) -> None:
    folder = damaged(tmp_path, MEGATRON)
    raw = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(
        raw.replace(b"rng_state/shard_0.1_1.2", b"rng_state/shard_0.1_1.3")
    )
    assert any(
        "rng_state: 1 of its 2 shards are there (0.0)" in problem
        for problem in read(folder).problems
    )


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("integrity.json", "{", "integrity.json"),
        (
            "integrity.json",
            '{"algorithm": "md5", "files": {}}',
            "expected SHA-256 digests by file, found 'md5'",
        ),
        ("integrity.json", '{"files": {"../x": "00"}}', "no file in this folder, or no SHA-256"),
        ("metadata.json", '{"sharded_backend": "zarr"}', "expected torch_dist, found 'zarr'"),
        ("metadata.json", "[]", "expected a JSON object"),
    ],
)
def test_megatrons_side_files_may_be_anything(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    folder = damaged(tmp_path, MEGATRON)
    (folder / name).write_text(text)
    facts = read(folder)
    assert facts.layout == "megatron-dist"
    assert any(words in problem for problem in facts.problems)


def test_lightning_tells_meta_beside_the_shards(tmp_path: Path) -> None:
    facts = read(LIGHTNING)
    assert ("meta.pt: global_step", 2) in [(one.source, one.step) for one in facts.stated_steps]
    assert values(facts, "hyper_parameters") == {"width": "4"}
    folder = damaged(tmp_path, LIGHTNING)
    (folder / "meta.pt").write_bytes(b"")
    torn = read(folder)
    assert not torn.complete
    assert any("meta.pt" in problem for problem in torn.problems)


def test_composers_folder_name_states_the_batch(tmp_path: Path) -> None:
    facts = read(Path(shutil.copytree(FIXTURES / "plain" / "step_3", tmp_path / "ep0-ba3")))
    assert (facts.layout, facts.step, facts.steps_agree) == ("composer-sharded", 3, True)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(
        [
            (MEGATRON, "metadata.json"),
            (MEGATRON, "integrity.json"),
            (MEGATRON, "__1_0.distcp"),
            (OLMO, "train/rank1.pt"),
            (OLMO, ".metadata.json"),
            (LIGHTNING, "meta.pt"),
        ]
    ),
    st.data(),
)
def test_any_damage_is_told_and_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, place: tuple[Path, str], data: st.DataObject
) -> None:
    source, name = place
    folder = tmp_path_factory.mktemp("worn") / source.name
    shutil.copytree(source, folder)
    good = (folder / name).read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    flipped = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    (folder / name).write_bytes(good[:at] if data.draw(st.booleans()) else flipped)
    assert isinstance(read(folder), CheckpointFacts)
