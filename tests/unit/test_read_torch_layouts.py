"""Checkpoints of trainers that use torch.save.

Which layout, which step, complete or not, every tensor's own bytes.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, TensorFacts
from spiketriage.readers.checkpoints.building.state_fields import digest
from spiketriage.readers.checkpoints.formats import LAYOUTS
from spiketriage.readers.look import best, look

FIXTURES = Path(__file__).parents[2] / "fixtures" / "torch_save"
CHECKPOINTS = {
    "mono.pt": "torch-save",
    "legacy.pt": "torch-save",
    "module.pth": "torch-save",
    "odd.pt": "torch-save",
    "plain.pkl": "torch-save",
    "lightning/epoch=1-step=6.ckpt": "lightning",
    "litgpt/step-00000003": "litgpt",
    "composer/ep1-ba4-rank0.pt": "composer",
    "deepspeed_zero2/global_step7": "deepspeed-zero",
    "deepspeed_zero3/global_step7": "deepspeed-zero",
    "deepspeed_universal/global_step7_universal": "deepspeed-universal",
    "megatron_legacy/iter_0000020": "megatron-legacy",
    "llmc_1": "llmc",
    "llmc_2/model_00000040.bin": "llmc",
}
DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}
# As fixtures/make_torch_save.py makes them: a parameter's elements count up from a base of its own.
FLAT = {"a.weight": 0, "b.weight": 1000, "a.bias": 2000}
FLAT_SHAPES = {"a.weight": (3, 5), "b.weight": (4, 7), "a.bias": (5,)}
STATES = {"fp32": 0, "exp_avg": 100, "exp_avg_sq": 200}


def read(path: Path) -> CheckpointFacts:
    chosen = best(LAYOUTS, look(path))
    assert chosen is not None
    return chosen[0].read(path)


def copy(name: str, tmp_path: Path) -> Path:
    source, target = FIXTURES / name, tmp_path / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    return target


def elements(facts: CheckpointFacts, tensor: TensorFacts) -> list:
    """A tensor's elements put together from its chunks, by their place in the flattened whole."""
    whole = np.full(tensor.shape, np.nan)
    for chunk in tensor.chunks:
        path = facts.path / chunk.path if chunk.path else facts.path
        data = path.read_bytes()[chunk.start : chunk.end]
        part = np.frombuffer(data, DTYPES[tensor.dtype]).reshape(chunk.shape)
        whole[tuple(slice(o, o + n) for o, n in zip(chunk.offset, chunk.shape, strict=True))] = part
    return whole.ravel().tolist()


def tensors(facts: CheckpointFacts) -> dict[str, TensorFacts]:
    found = {tensor.name: tensor for tensor in facts.tensors}
    assert len(found) == len(facts.tensors)
    return found


def fields(facts: CheckpointFacts, name: str) -> list:
    return [field for field in facts.fields if field.name == name]


@pytest.mark.parametrize(("name", "layout"), CHECKPOINTS.items())
def test_each_layout_is_recognised_read_whole_and_its_checksums_hold(name, layout):
    facts = read(FIXTURES / name)
    assert (facts.layout, facts.complete, facts.problems) == (layout, True, ())
    assert facts.steps_agree
    for extent in facts.extents:
        path = facts.path / extent.path if extent.path else facts.path
        assert zipfile.crc32(path.read_bytes()[extent.start : extent.end]) == extent.crc32


@pytest.mark.parametrize(
    ("name", "step", "world_size"),
    [
        ("mono.pt", 3, None),
        ("module.pth", None, None),
        ("lightning/epoch=1-step=6.ckpt", 6, None),
        ("litgpt/step-00000003", 3, None),
        ("composer/ep1-ba4-rank0.pt", 4, 2),
        ("deepspeed_zero2/global_step7", 7, 2),
        ("deepspeed_zero3/global_step7", 7, 2),
        ("deepspeed_universal/global_step7_universal", 7, None),
        ("megatron_legacy/iter_0000020", 20, 4),
        ("llmc_1", 80, 1),
        ("llmc_2/model_00000040.bin", 40, 2),
    ],
)
def test_step_and_world_size(name, step, world_size):
    facts = read(FIXTURES / name)
    assert (facts.step, facts.world_size) == (step, world_size)


def test_a_step_is_told_from_every_place_that_states_it():
    facts = read(FIXTURES / "lightning/epoch=1-step=6.ckpt")
    assert [stated.source.rpartition(": ")[2] for stated in facts.stated_steps] == [
        "name epoch=1-step=6.ckpt",
        "optimizer_states step",
        "global_step",
        "loops.fit_loop.completed",
    ]


def test_a_renamed_checkpoint_disagrees_with_itself(tmp_path):
    path = copy("lightning/epoch=1-step=6.ckpt", tmp_path).rename(tmp_path / "epoch=1-step=9.ckpt")
    facts = read(path)
    assert not facts.steps_agree
    assert [stated.step for stated in facts.stated_steps] == [9, 6, 6, 6]


@pytest.mark.parametrize("name", ["mono.pt", "legacy.pt", "litgpt/step-00000003"])
def test_integer_keys_of_the_optimizer_are_mapped_where_shapes_leave_one_answer(name):
    facts = read(FIXTURES / name)
    owners = {
        t.name: (t.parameter, t.shape)
        for t in facts.tensors
        if t.role == "optimizer" and "exp_avg." in f"{t.name}."
    }
    # The groups of the fixture: the two matrices first, then bias and norm in module order.
    assert owners == {
        "optimizer.state.0.weight.exp_avg": ("0.weight", (4, 6)),
        "optimizer.state.2.weight.exp_avg": ("2.weight", (6, 4)),
        "optimizer.state.0.bias.exp_avg": ("0.bias", (4,)),
        "optimizer.state.1.weight.exp_avg": ("1.weight", (4,)),
        "optimizer.state.1.bias.exp_avg": ("1.bias", (4,)),
    }


def test_what_is_no_tensor_is_a_field_with_its_scalars():
    facts = read(FIXTURES / "mono.pt")
    kinds = {field.name: field.kind for field in facts.fields}
    assert kinds == {
        "optimizer.param_groups": "config",
        "lr_scheduler": "scheduler",
        "rng_state": "rng",
        "args": "config",
        "progress": "progress",
    }
    assert fields(facts, "lr_scheduler")[0].values["last_epoch"] == "3"
    assert fields(facts, "args")[0].values == {"lr": "0.01", "seed": "3"}


def test_fields_of_equal_content_have_equal_digests_wherever_they_are_stored():
    new, old = read(FIXTURES / "mono.pt"), read(FIXTURES / "legacy.pt")
    assert {field.name: field.digest for field in new.fields} == {
        field.name: field.digest for field in old.fields
    }


def test_a_changed_random_state_changes_its_digest_alone(tmp_path):
    path = copy("mono.pt", tmp_path)
    tensor = next(e for e in read(path).extents if e.name == "tensor rng_state.torch")
    data = bytearray(path.read_bytes())
    data[tensor.start] ^= 1
    before = {field.name: field.digest for field in read(path).fields}
    path.write_bytes(data)
    after = {field.name: field.digest for field in read(path).fields}
    assert {name for name in before if before[name] != after[name]} == {"rng_state"}


def test_a_pickled_module_gives_its_parameters_by_their_names():
    facts = read(FIXTURES / "module.pth")
    assert set(tensors(facts)) == {
        *("0.weight", "0.bias", "1.weight", "1.bias"),
        *("1.running_mean", "1.running_var", "1.num_batches_tracked"),
    }
    assert "torch.nn.modules.linear.Linear" in facts.globals


def test_composer_names_and_random_states_of_all_ranks():
    facts = read(FIXTURES / "composer/ep1-ba4-rank0.pt")
    moments = tensors(facts)["optimizers.DecoupledAdamW.state.model.weight.exp_avg_sq"]
    assert (moments.parameter, elements(facts, moments)) == ("model.weight", [2.0] * 6)
    assert [(field.kind, field.rank) for field in fields(facts, "rng")] == [("rng", 0), ("rng", 1)]
    assert fields(facts, "dataset_state")[0].kind == "cursor"


@pytest.mark.parametrize("stage", [2, 3])
def test_flat_slices_of_zero_are_put_together_by_parameter(stage):
    facts = read(FIXTURES / f"deepspeed_zero{stage}/global_step7")
    held = tensors(facts)
    for state, (name, base) in ((state, pair) for state in STATES for pair in FLAT.items()):
        tensor = held[f"{state}.{name}"]
        first = base + STATES[state]
        assert elements(facts, tensor) == list(range(first, first + math.prod(FLAT_SHAPES[name])))
        assert (tensor.parameter, tensor.role) == (name, "optimizer")


def test_universal_tensors_are_whole():
    facts = read(FIXTURES / "deepspeed_universal/global_step7_universal")
    for state, (name, base) in ((state, pair) for state in STATES for pair in FLAT.items()):
        tensor = tensors(facts)[f"{state}.{name}"]
        first = base + STATES[state]
        assert tensor.shape == FLAT_SHAPES[name]
        assert elements(facts, tensor) == list(range(first, first + math.prod(tensor.shape)))


def test_the_loss_scaler_of_deepspeed_is_readable_without_its_class():
    facts = read(FIXTURES / "deepspeed_zero2/global_step7")
    assert fields(facts, "loss_scaler")[0].values["cur_scale"] == "65536.0"
    assert "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler" in facts.globals


@pytest.mark.parametrize("stage", [2, 3])
def test_a_missing_optimizer_file_of_zero_makes_it_incomplete(tmp_path, stage):
    path = copy(f"deepspeed_zero{stage}/global_step7", tmp_path)
    lost = next(path.glob("*rank_1_mp_rank_00_optim_states.pt"))
    lost.unlink()
    facts = read(path)
    assert not facts.complete
    sentence = (
        "expected 2 optimizer files, found 1: zero_pp_rank_1_mp_rank_00_optim_states.pt missing"
    )
    assert facts.problems == (f"{path}: {sentence}",)
    part = elements(facts, tensors(facts)["fp32.b.weight"])
    known = [value for value in part if not math.isnan(value)]
    assert known == [1000.0 + number for number in range(7 if stage == 2 else 14)]


def test_a_missing_model_file_of_zero_makes_it_incomplete(tmp_path):
    path = copy("deepspeed_zero2/global_step7", tmp_path)
    (path / "mp_rank_00_model_states.pt").unlink()
    facts = read(path)
    assert not facts.complete
    assert "there is no readable *_model_states.pt" in facts.problems[0]
    assert tensors(facts)["fp32.0 [dp 1]"].shape == (
        21,
    )  # without param_shapes the buffers have no names


def test_a_missing_state_of_a_universal_checkpoint_makes_it_incomplete(tmp_path):
    path = copy("deepspeed_universal/global_step7_universal", tmp_path)
    (path / "zero/a.bias/exp_avg.pt").unlink()
    shutil.rmtree(path / "zero/b.weight")
    facts = read(path)
    assert not facts.complete
    assert facts.problems == (
        f"{path}: 1 parameters of param_shapes have no folder: b.weight",
        f"{path}: 1 state files are missing: a.bias/exp_avg.pt",
    )


def test_megatron_parts_arguments_and_random_states():
    facts = read(FIXTURES / "megatron_legacy/iter_0000020")
    masters = tensors(facts)["optimizer.fp32_from_fp16_params.0.0 [mp_rank_01]"]
    assert elements(facts, masters) == [10.0 + number for number in range(8)]
    assert fields(facts, "args")[0].values["consumed_train_samples"] == "160"
    assert len(fields(facts, "rng_state.0")) == 2


def test_a_missing_part_of_megatron_makes_it_incomplete(tmp_path):
    path = copy("megatron_legacy/iter_0000020", tmp_path)
    shutil.rmtree(path / "mp_rank_01")
    facts = read(path)
    assert not facts.complete
    assert facts.problems == (f"{path}: expected 2 mp_rank folders, found 1",)


def test_the_parameters_and_moments_of_llmc_lie_where_its_writer_put_them():
    facts = read(FIXTURES / "llmc_1")
    held = tensors(facts)
    names = [name for name, tensor in held.items() if tensor.role == "parameter"]
    assert [x for name in names for x in elements(facts, held[name])] == list(range(576))
    assert [x for name in names for x in elements(facts, held[f"v.{name}"])] == list(
        range(576, 1152)
    )
    assert held["qkvw"].shape == (2, 12, 4)
    assert held["master.qkvw"].parameter == "qkvw"


def test_ranks_of_llmc_have_their_own_random_state_and_cursor():
    facts = read(FIXTURES / "llmc_2")
    random = fields(facts, "rng_state")
    assert [field.rank for field in random] == [0, 1]
    assert random[0].digest != random[1].digest
    assert fields(facts, "data")[0].values == {"shard": "3", "sample": "1200"}


@pytest.mark.parametrize(
    ("lost", "sentence"),
    [
        ("DONE_00000040", "DONE_00000040 is missing"),
        ("state_00000040_00001.bin", "expected 2 state files, found 1"),
    ],
)
def test_llmc_is_incomplete_without_its_marker_or_a_rank(tmp_path, lost, sentence):
    path = copy("llmc_2", tmp_path)
    (path / lost).unlink()
    facts = read(path)
    assert not facts.complete
    assert any(sentence in problem for problem in facts.problems)


@pytest.mark.parametrize("name", ["model_00000040.bin", "state_00000040_00000.bin"])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_llmc_of_another_size_is_told(tmp_path, name, change):
    path = copy("llmc_2", tmp_path)
    os.truncate(path / name, (path / name).stat().st_size + change)
    # A state file with a shuffled loader may be longer; this fixture's is not shuffled.
    assert any(f"{name}: size: expected" in problem for problem in read(path).problems)


def test_litgpt_without_the_settings_that_follow_the_weights_is_incomplete(tmp_path):
    path = copy("litgpt/step-00000003", tmp_path)
    (path / "model_config.yaml").unlink()
    assert not read(path).complete


def test_a_git_lfs_pointer_says_so(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (tmp_path / "model.pt").write_bytes(pointer)
    with pytest.raises(EvidenceError, match="never fetched") as raised:
        read(tmp_path / "model.pt")
    assert raised.value.hint == "git lfs pull"
    path = copy("deepspeed_zero2/global_step7", tmp_path)
    (path / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(pointer)
    facts = read(path)
    assert not facts.complete
    assert any("never fetched" in problem for problem in facts.problems)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_damage_to_any_file_is_facts_or_the_one_error(tmp_path, data):
    name = data.draw(st.sampled_from(sorted(CHECKPOINTS)))
    path = tmp_path / name
    if not path.exists():
        copy(name, tmp_path)
    file = (
        data.draw(st.sampled_from(sorted(p for p in path.rglob("*") if p.is_file())))
        if path.is_dir()
        else path
    )
    good = file.read_bytes()
    at = data.draw(st.integers(0, max(0, len(good) - 1)))
    byte = bytes([data.draw(st.integers(0, 255))])
    try:
        file.write_bytes(
            data.draw(st.sampled_from([good[:at], good[:at] + byte + good[at + 1 :], good + byte]))
        )
        with contextlib.suppress(EvidenceError):
            read(path)
    finally:
        file.write_bytes(good)


def test_every_number_of_a_long_permutation_counts_in_its_digest():
    order = list(range(2_100_000))  # more than a walk visits
    other = [*order[:-2], order[-1], order[-2]]
    assert digest({"order": order}) != digest({"order": other})
    huge = [1 << 70] * 2000
    assert digest(huge) != digest([*huge[:-1], 1])


def test_digests_tell_types_keys_and_nesting_apart():
    values = [
        1,
        1.0,
        True,
        "1",
        b"1",
        None,
        [1],
        {"0": 1},
        {"a": 1},
        {"a": [1]},
        [[1], []],
        {1},
        1 << 70,
        float("nan"),
    ]
    assert (
        len({digest(value) for value in values}) == len(values) - 1
    )  # a list and a mapping from "0" are one
    assert digest(float("nan")) == digest(float("nan"))
