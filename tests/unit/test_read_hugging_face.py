"""Checkpoints of HF Trainer, Accelerate and nanotron.

Made by the real libraries, then damaged as files get damaged.
"""

import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import StatedStep
from spiketriage.readers.checkpoints.formats import LAYOUTS
from spiketriage.readers.checkpoints.layouts import accelerate, hf_trainer, nanotron
from spiketriage.readers.look import best, look

FIXTURES = Path(__file__).parents[2] / "fixtures" / "hf"
ONE = FIXTURES / "checkpoint-4"
TWO = FIXTURES / "two-ranks" / "checkpoint-4"
LORA = FIXTURES / "lora" / "checkpoint-4"
FSDP = FIXTURES / "fsdp" / "checkpoint-4"
ACCELERATE = FIXTURES / "accelerate" / "checkpoint_0"
NANOTRON = FIXTURES / "nanotron" / "10"
DEEPSPEED = FIXTURES.parent / "torch_save" / "deepspeed_zero2" / "global_step7"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5135\n"
READERS = {
    ONE: hf_trainer,
    TWO: hf_trainer,
    LORA: hf_trainer,
    FSDP: hf_trainer,
    ACCELERATE: accelerate,
    NANOTRON: nanotron,
}


@pytest.fixture
def copy(tmp_path):
    def of(folder, name=None):
        return Path(shutil.copytree(folder, tmp_path / (name or folder.name)))

    return of


def only_problem(facts):
    (problem,) = facts.problems
    assert not facts.complete
    return problem


def steps(facts):
    return {one.source: one.step for one in facts.stated_steps}


def field(facts, name, rank=None):
    (found,) = [one for one in facts.fields if one.name == name and one.rank == rank]
    return found


def resave(path, change):
    value = torch.load(path, weights_only=False)
    torch.save(change(value), path)


@pytest.mark.parametrize("folder", READERS, ids=lambda path: path.relative_to(FIXTURES).as_posix())
def test_every_layout_keeps_the_contract(folder):
    reader = READERS[folder]
    found = best(LAYOUTS, look(folder))
    assert found is not None
    assert found[0] is reader
    assert found[1] >= 0.95
    facts = reader.read(folder)
    assert facts.layout == reader.NAME
    assert (facts.name, facts.path) == (folder.name, folder)
    assert facts.complete
    assert facts.problems == ()
    assert facts.steps_agree
    assert [file.path for file in facts.files] == sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    sizes = {file.path: file.size_bytes for file in facts.files}
    assert all(sizes[file.path] == (folder / file.path).stat().st_size for file in facts.files)
    for tensor in facts.tensors:
        for chunk in tensor.chunks:
            assert 0 <= chunk.start <= chunk.end <= sizes[chunk.path]
            assert len(chunk.offset) == len(chunk.shape) == len(tensor.shape)
    assert all(0 <= one.start < one.end <= sizes[one.path] for one in facts.extents)
    assert all(not one.path or one.path in sizes for one in facts.fields)
    assert len({tensor.name for tensor in facts.tensors}) == len(facts.tensors)


def test_hf_trainer_states_its_step_in_five_places():
    facts = hf_trainer.read(ONE)
    assert steps(facts) == {
        "the name checkpoint-4": 4,
        "trainer_state.json: global_step": 4,
        "trainer_state.json: log_history": 4,
        "optimizer.pt: optimizer step": 4,
        "scheduler.pt: last_epoch": 4,
    }
    assert facts.step == 4
    assert facts.world_size == 1


def test_hf_trainer_weights_and_moments_are_where_the_libraries_find_them():
    facts = hf_trainer.read(ONE)
    weights = load_file(ONE / "model.safetensors")
    optimizer = torch.load(ONE / "optimizer.pt", weights_only=True)["state"]
    assert {one.name for one in facts.tensors if one.role == "parameter"} == weights.keys()
    for tensor in facts.tensors:
        (chunk,) = tensor.chunks
        data = (ONE / chunk.path).read_bytes()[chunk.start : chunk.end]
        if tensor.role == "parameter":
            assert data == weights[tensor.name].tobytes()
        else:
            _, _, key, state = tensor.name.split(".")
            assert data == optimizer[int(key)][state].numpy().tobytes()


def test_hf_trainer_fields_say_what_a_person_would_read():
    facts = hf_trainer.read(TWO)
    assert facts.world_size == 2
    arguments = field(facts, "training_args")
    assert arguments.values["learning_rate"] == "0.001"
    assert arguments.values["seed"] == "11"
    assert arguments.values["lr_scheduler_type"] == "linear"
    assert field(facts, "scheduler").values["last_epoch"] == "4"
    assert field(facts, "trainer_state.json").values["max_steps"] == "4"
    assert field(facts, "config.json").values["n_embd"] == "8"
    assert field(facts, "optimizer.param_groups").values["0.weight_decay"] == "0.1"
    kinds = {(one.name, one.rank) for one in facts.fields if one.kind == "rng"}
    assert kinds == {
        (f"rng.{name}", rank) for name in ("python", "numpy", "cpu") for rank in (0, 1)
    }


def test_the_digest_of_a_generator_is_of_what_it_holds(copy):
    folder = copy(TWO)
    before = {rank: field(hf_trainer.read(folder), "rng.numpy", rank).digest for rank in (0, 1)}
    assert (
        before[0] == before[1]
    )  # the same seed, in files that differ by the name in their archive

    def draw(value):
        name, keys, position, *rest = value["numpy"]
        return {**value, "numpy": (name, keys, position + 1, *rest)}

    resave(folder / "rng_state_1.pth", draw)
    after = hf_trainer.read(folder)
    assert field(after, "rng.numpy", 0).digest == before[0]
    assert field(after, "rng.numpy", 1).digest != before[1]
    assert field(after, "rng.cpu", 1).digest == field(after, "rng.cpu", 0).digest


def test_hf_optimizer_keys_get_names_where_a_torch_file_keeps_the_order(copy):
    folder = copy(ONE)
    assert all(one.parameter == "" for one in hf_trainer.read(folder).tensors)
    assert any(
        "optimizer.state mean is ambiguous" in note for note in hf_trainer.read(folder).notes
    )
    shutil.copy(FIXTURES / "torch-weights" / "pytorch_model.bin", folder)
    expected = json.loads(
        (FIXTURES / "torch-weights" / "optimizer_names.json").read_text()
    )  # what the Trainer said
    for remove in ((), ("model.safetensors",)):
        for name in remove:
            (folder / name).unlink()
        facts = hf_trainer.read(folder)
        moments = [one for one in facts.tensors if one.name.endswith(".exp_avg")]
        assert [one.parameter for one in moments] == expected
        assert facts.complete
        assert sum(one.role == "parameter" for one in facts.tensors) >= len(expected)


def test_keys_get_names_where_no_two_parameters_have_the_same_shape(copy):
    from safetensors.torch import save_file

    folder = copy(ONE)
    weights = {"z.weight": torch.ones(3, 2), "a.weight": torch.ones(5, 2), "a.bias": torch.ones(7)}
    save_file(weights, folder / "model.safetensors")
    state = {
        number: {"step": torch.tensor(4.0), "exp_avg": value, "exp_avg_sq": value}
        for number, value in enumerate(weights.values())
    }
    groups = [{"lr": 0.1, "params": [0, 1]}, {"lr": 0.1, "params": [2]}]
    torch.save({"state": state, "param_groups": groups}, folder / "optimizer.pt")
    facts = hf_trainer.read(folder)
    assert [one.parameter for one in facts.tensors if one.name.endswith("exp_avg_sq")] == list(
        weights
    )
    assert facts.steps_agree
    save_file({**weights, "twin": torch.ones(7)}, folder / "model.safetensors")
    assert all(one.parameter == "" for one in hf_trainer.read(folder).tensors)


def test_a_renamed_checkpoint_disagrees_with_all_that_is_inside(copy):
    facts = hf_trainer.read(copy(ONE, "checkpoint-8"))
    assert facts.complete
    assert not facts.steps_agree
    assert facts.stated_steps[0] == StatedStep(source="the name checkpoint-8", step=8)
    assert {one.step for one in facts.stated_steps[1:]} == {4}


def test_an_optimizer_of_another_moment_disagrees(copy):
    folder = copy(ONE)
    resave(
        folder / "optimizer.pt",
        lambda value: {
            **value,
            "state": {k: {**v, "step": v["step"] - 1} for k, v in value["state"].items()},
        },
    )
    facts = hf_trainer.read(folder)
    assert not facts.steps_agree
    assert steps(facts)["optimizer.pt: optimizer step"] == 3


def test_steps_that_loss_scaling_skipped_are_no_disagreement(copy):
    folder = copy(ONE, "checkpoint-6")
    state = json.loads((folder / "trainer_state.json").read_text())
    (folder / "trainer_state.json").write_text(json.dumps({**state, "global_step": 6}))
    without_scaler = hf_trainer.read(folder)
    assert without_scaler.steps_agree
    assert without_scaler.complete
    assert any(
        "2 of 6 steps were skipped as loss scaling skips them; there is no scaler.pt" in note
        for note in without_scaler.notes
    )
    torch.save({"scale": 1024.0, "growth_factor": 2.0, "_growth_tracker": 4}, folder / "scaler.pt")
    facts = hf_trainer.read(folder)
    assert facts.steps_agree
    assert facts.step == 6
    assert (
        "optimizer.pt and scheduler.pt both state 4 steps: 2 of 6 steps were skipped by "
        "loss scaling" in facts.notes
    )
    assert field(facts, "scaler").values["scale"] == "1024.0"


def test_bf16_skips_no_step_so_an_optimizer_behind_the_trainer_is_of_another_moment(copy):
    folder = copy(ONE, "checkpoint-6")
    state = json.loads((folder / "trainer_state.json").read_text())
    (folder / "trainer_state.json").write_text(json.dumps({**state, "global_step": 6}))
    arguments = torch.load(folder / "training_args.bin", weights_only=False)
    arguments.bf16 = True
    torch.save(arguments, folder / "training_args.bin")
    assert not hf_trainer.read(folder).steps_agree


def test_a_history_that_ends_before_the_step_is_just_not_logged_yet(copy):
    folder = copy(ONE)
    state = json.loads((folder / "trainer_state.json").read_text())
    (folder / "trainer_state.json").write_text(
        json.dumps({**state, "log_history": state["log_history"][:2]})
    )
    assert hf_trainer.read(folder).steps_agree
    late = [*state["log_history"], {"step": 9, "loss": 1.0}]
    (folder / "trainer_state.json").write_text(json.dumps({**state, "log_history": late}))
    assert steps(hf_trainer.read(folder))["trainer_state.json: log_history"] == 9


def test_a_plateau_scheduler_counts_evaluations_not_steps(copy):
    folder = copy(ONE)
    resave(
        folder / "scheduler.pt", lambda value: {"last_epoch": 1, "num_bad_epochs": 0, "best": 3.0}
    )
    facts = hf_trainer.read(folder)
    assert facts.steps_agree
    assert "scheduler.pt: last_epoch" not in steps(facts)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt"])
def test_a_missing_file_is_named(copy, name):
    folder = copy(ONE)
    (folder / name).unlink()
    assert only_problem(hf_trainer.read(folder)) == f"{folder}: {name} is missing"


def test_a_missing_trainer_state_means_that_the_save_did_not_finish(copy):
    folder = copy(ONE)
    (folder / "trainer_state.json").unlink()
    facts = hf_trainer.read(folder)
    assert "trainer_state.json: is missing: it is the last file that a save writes" in only_problem(
        facts
    )
    assert facts.step == 4
    assert hf_trainer.claims(look(folder)) >= 0.95


@pytest.mark.parametrize(
    ("rename", "sentence"),
    [
        ({"rng_state_0.pth": None}, "expected the RNG state of 2 ranks, found 1: rank 0 missing"),
        ({"rng_state_1.pth": None}, "expected the RNG state of 2 ranks, found 1: rank 1 missing"),
        (
            {"rng_state_0.pth": None, "rng_state_1.pth": None},
            "there is no rng_state file of any rank",
        ),
        (
            {"rng_state_1.pth": "rng_state_2.pth"},
            "expected the RNG state of 2 ranks, found 2: rank 1 missing",
        ),
        (
            {"rng_state_0.pth": "rng_state.pth", "rng_state_1.pth": None},
            "rng_state.pth, as of one process",
        ),
    ],
)
def test_the_rng_files_must_be_those_of_the_world_size(copy, rename, sentence):
    folder = copy(TWO)
    for name, to in rename.items():
        (folder / name).rename(folder / to) if to else (folder / name).unlink()
    facts = hf_trainer.read(folder)
    assert not facts.complete
    assert sentence in facts.problems[0]
    assert facts.world_size == 2


def test_without_arguments_the_world_size_is_counted(copy):
    folder = copy(TWO)
    (folder / "training_args.bin").unlink()
    facts = hf_trainer.read(folder)
    assert facts.complete
    assert facts.world_size == 2
    assert (
        "training_args.bin is missing: the world size is counted from the RNG files" in facts.notes
    )


def test_a_rank_number_that_lies_is_not_counted_to(copy):
    folder = copy(TWO)
    (folder / "training_args.bin").unlink()
    (folder / "rng_state_1.pth").rename(folder / "rng_state_999999999.pth")
    (problem,) = hf_trainer.read(folder).problems
    assert len(problem) < 400


def test_a_model_alone_is_no_broken_checkpoint(copy):
    folder = copy(ONE, "final")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (folder / name).unlink()
    facts = hf_trainer.read(folder)
    assert facts.complete
    assert f"{folder}: the model alone was saved: training cannot be resumed from it" in facts.notes
    assert not hf_trainer.read(folder.rename(folder.with_name("checkpoint-4"))).complete


def test_no_weights_at_all_is_told(copy):
    folder = copy(ONE)
    (folder / "model.safetensors").unlink()
    assert only_problem(hf_trainer.read(folder)) == f"{folder}: there are no weights"


def test_a_missing_and_a_cut_shard_are_told_inside_a_checkpoint(copy):
    folder = copy(ONE)
    (folder / "model.safetensors").unlink()
    for path in (FIXTURES / "sharded").glob("model*"):
        shutil.copy(path, folder)
    assert hf_trainer.read(folder).complete
    second = folder / "model-00002-of-00002.safetensors"
    second.write_bytes(second.read_bytes()[:-4])
    assert "it is cut short in " in only_problem(hf_trainer.read(folder))
    second.unlink()
    assert "model-00002-of-00002.safetensors: there is no such file or folder" in only_problem(
        hf_trainer.read(folder)
    )


def test_torch_shards_with_an_index_are_read_and_checked(copy):
    folder = copy(ONE)
    weights = {
        name: torch.from_numpy(array)
        for name, array in load_file(folder / "model.safetensors").items()
    }
    (folder / "model.safetensors").unlink()
    names = list(weights)
    files = {
        "pytorch_model-00001-of-00002.bin": names[:9],
        "pytorch_model-00002-of-00002.bin": names[9:],
    }
    for file, held in files.items():
        torch.save({name: weights[name] for name in held}, folder / file)
    total = sum(value.nbytes for value in weights.values())
    index = {
        "metadata": {"total_size": total},
        "weight_map": {n: file for file, held in files.items() for n in held},
    }
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    facts = hf_trainer.read(folder)
    assert facts.complete
    assert {one.name for one in facts.tensors if one.role == "parameter"} == set(names)
    (folder / "pytorch_model-00001-of-00002.bin").unlink()
    assert "pytorch_model-00001-of-00002.bin" in only_problem(hf_trainer.read(folder))


def test_arguments_that_call_os_system_run_nothing(copy, tmp_path):
    folder = copy(ONE)
    mark = tmp_path / "ran"

    class Payload:
        def __reduce__(self):
            return os.system, (f"touch {mark}",)

    torch.save({"arguments": Payload()}, folder / "training_args.bin")
    assert zipfile.is_zipfile(folder / "training_args.bin")
    facts = hf_trainer.read(folder)
    assert not mark.exists()
    assert f"{os.system.__module__}.system" in facts.globals
    (folder / "rng_state.pth").write_bytes(pickle.dumps(Payload()))
    hf_trainer.read(folder)
    assert not mark.exists()


def test_a_token_in_the_arguments_is_not_shown(copy):
    folder = copy(ONE)
    torch.save({"hub_token": "hf_secret", "seed": 3}, folder / "training_args.bin")
    facts = hf_trainer.read(folder)
    assert field(facts, "training_args").values == {"hub_token": "(not shown)", "seed": "3"}
    assert "hf_secret" not in str(facts)


def test_a_lora_checkpoint_says_that_the_base_is_elsewhere():
    facts = hf_trainer.read(LORA)
    weights = load_file(LORA / "adapter_model.safetensors")
    assert {one.name: one.shape for one in facts.tensors if one.role == "parameter"} == {
        name: array.shape for name, array in weights.items()
    }
    assert (
        "adapter_model.safetensors: an adapter; the base model's weights are not here"
        in facts.notes
    )
    assert field(facts, "adapter_config.json").values["lora_alpha"] == "4"


def test_an_fsdp_checkpoint_names_the_owner_of_every_moment(copy):
    facts = hf_trainer.read(FSDP)
    parameters = {one.name: one.shape for one in facts.tensors if one.role == "parameter"}
    assert parameters == {
        name: array.shape for name, array in load_file(ONE / "model.safetensors").items()
    }
    moments = [one for one in facts.tensors if one.name.endswith(".exp_avg")]
    assert {one.parameter: one.shape for one in moments} == parameters
    assert all(chunk.path.startswith("optimizer_0/") for one in moments for chunk in one.chunks)
    folder = copy(FSDP)
    (folder / "pytorch_model_fsdp_0" / "__0_0.distcp").unlink()
    broken = hf_trainer.read(folder)
    assert not broken.complete
    assert any("pytorch_model_fsdp_0/__0_0.distcp" in problem for problem in broken.problems)


def test_a_git_lfs_pointer_in_any_place_is_called_one(copy):
    for name in (
        "model.safetensors",
        "optimizer.pt",
        "trainer_state.json",
        "training_args.bin",
        "rng_state.pth",
    ):
        folder = copy(ONE)
        (folder / name).write_bytes(POINTER)
        facts = hf_trainer.read(folder)
        assert not facts.complete
        assert any(
            f"{name}: is a Git-LFS pointer: the file was never fetched (git lfs pull)" in one
            for one in facts.problems
        )
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b"{}",
        b'{"global_step": "4"}',
        b'{"global_step": -1}',
        b'{"global_step": NaN}',
    ],
)
def test_a_broken_trainer_state_is_a_sentence(copy, text):
    folder = copy(ONE)
    (folder / "trainer_state.json").write_bytes(text)
    assert "trainer_state.json" in only_problem(hf_trainer.read(folder))


def test_a_history_of_the_wrong_types_is_no_error(copy):
    folder = copy(ONE)
    history = [1, None, {}, {"step": "x"}, {"step": 2.5}, [{"step": 3}]]
    for value in (history, 7, {"step": 3}):
        (folder / "trainer_state.json").write_text(
            json.dumps({"global_step": 4, "log_history": value})
        )
        assert hf_trainer.read(folder).complete


def test_folders_and_loops_where_files_are_expected_are_sentences(copy):
    folder = copy(ONE)
    for name in ("trainer_state.json", "training_args.bin"):
        (folder / name).unlink()
        (folder / name).mkdir()
    (folder / "optimizer.pt").unlink()
    (folder / "optimizer.pt").symlink_to("optimizer.pt")
    facts = hf_trainer.read(folder)
    assert not facts.complete
    for name in ("trainer_state.json", "training_args.bin", "optimizer.pt"):
        assert any(name in problem for problem in facts.problems)


def test_a_pipe_is_refused_and_a_name_that_is_no_text_is_kept(copy):
    folder = copy(ONE)
    for name in ("trainer_state.json", "optimizer.pt"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    os.mkfifo(folder / "pytorch_model.bin")
    facts = hf_trainer.read(folder)
    assert (
        sum("is neither a folder nor a regular file" in problem for problem in facts.problems) == 3
    )
    for path in (
        os.fsencode(folder / "model-") + b"\xff.safetensors",
        os.fsencode(folder / "model.safetensors"),
    ):
        os.rename(os.fsencode(folder / "model.safetensors"), path)
        assert sum(one.role == "parameter" for one in hf_trainer.read(folder).tensors) == 28
        os.rename(path, os.fsencode(folder / "model.safetensors"))


def test_a_checkpoint_with_its_temporary_name_was_not_finished(copy):
    folder = copy(ONE, "tmp-checkpoint-4")
    assert "still has the temporary name" in only_problem(hf_trainer.read(folder))
    (folder / "trainer_state.json").unlink()
    assert hf_trainer.claims(look(folder)) >= 0.95


def test_fsdp_full_state_files_are_read_by_name(copy):
    folder = copy(ONE)
    weights = torch.load(FIXTURES / "torch-weights" / "pytorch_model.bin", weights_only=True)
    (folder / "model.safetensors").unlink()
    (folder / "optimizer.pt").unlink()
    torch.save(weights, folder / "pytorch_model_fsdp.bin")
    state = {name: {"step": torch.tensor(4.0), "exp_avg": value} for name, value in weights.items()}
    torch.save(
        {"state": state, "param_groups": [{"params": list(weights)}]}, folder / "optimizer.bin"
    )
    facts = hf_trainer.read(folder)
    assert facts.complete
    assert facts.steps_agree
    assert {one.parameter for one in facts.tensors if one.name.endswith(".exp_avg")} == set(weights)


def test_a_deepspeed_folder_inside_is_read_with_its_paths(copy):
    folder = copy(TWO, "checkpoint-7")
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt"):
        (folder / name).unlink()
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 7, "log_history": []}))
    shutil.copytree(DEEPSPEED, folder / "global_step7")
    facts = hf_trainer.read(folder)
    assert facts.complete
    assert facts.steps_agree
    assert facts.world_size == 2
    assert steps(facts)["global_step7/mp_rank_00_model_states.pt: global_steps"] == 7
    sizes = {file.path: file.size_bytes for file in facts.files}
    assert {one.parameter for one in facts.tensors if one.name.startswith("exp_avg.")} == {
        "a.weight",
        "b.weight",
        "a.bias",
    }
    for chunk in (chunk for one in facts.tensors for chunk in one.chunks):
        assert chunk.path.startswith("global_step7/")
        assert chunk.end <= sizes[chunk.path]
    assert all(one.path in sizes for one in (*facts.extents, *facts.fields))
    next((folder / "global_step7").glob("*zero_pp_rank_1*")).unlink()
    assert "expected 2 optimizer files, found 1" in only_problem(hf_trainer.read(folder))


def test_accelerate_with_deepspeed_is_read_too(copy):
    folder = copy(ACCELERATE)
    for name in ("model.safetensors", "optimizer.bin", "scheduler.bin"):
        (folder / name).unlink()
    shutil.copytree(DEEPSPEED, folder / "pytorch_model")
    facts = accelerate.read(folder)
    assert facts.complete
    assert facts.step == 7
    assert not any("there is no optimizer" in note for note in facts.notes)


def test_accelerate_takes_the_step_from_the_optimizer_alone():
    facts = accelerate.read(ACCELERATE)
    # 12 micro steps of gradient accumulation over two, by two processes: the scheduler has made 12
    # steps too.
    assert steps(facts) == {
        "optimizer.bin: optimizer step": 6,
        "scheduler.bin: last_epoch, by 2 processes": 6,
    }
    assert facts.world_size == 2
    assert field(facts, "scheduler").values["last_epoch"] == "12"
    assert [field(facts, "micro_steps", rank).values for rank in (0, 1)] == [{"step": "12"}] * 2
    assert field(facts, "rng.random_state", 0).digest != field(facts, "rng.random_state", 1).digest
    assert "the number 0 in the name counts saves, not steps" in facts.notes


def test_accelerate_with_a_scheduler_of_its_own_pace_is_no_disagreement(copy):
    folder = copy(ACCELERATE)
    for count, note in (
        (6, ""),
        (1, "it may not step with the optimizer"),
        (24, "as 4 processes would"),
    ):
        resave(folder / "scheduler.bin", lambda value, count=count: {**value, "last_epoch": count})
        facts = accelerate.read(folder)
        assert facts.steps_agree
        assert facts.step == 6
        assert any(note in one for one in facts.notes)


def test_accelerate_in_a_folder_named_by_the_step_must_agree_with_it(copy):
    assert accelerate.read(copy(ACCELERATE, "checkpoint-6")).steps_agree
    assert not accelerate.read(copy(ACCELERATE, "step_7")).steps_agree


def test_accelerate_misses_a_rank_between_others(copy):
    folder = copy(ACCELERATE)
    (folder / "random_states_0.pkl").unlink()
    problem = only_problem(accelerate.read(folder))
    assert problem == f"{folder}: expected the random states of 2 ranks, found 1: rank 0 missing"
    (folder / "random_states_1.pkl").unlink()
    assert "there is no random_states file of any rank" in only_problem(accelerate.read(folder))
    assert accelerate.claims(look(folder)) == 0.8


def test_accelerate_ranks_that_saved_at_different_moments_are_told(copy):
    folder = copy(ACCELERATE)
    resave(folder / "random_states_1.pkl", lambda value: {**value, "step": 14})
    (problem,) = accelerate.read(folder).problems
    assert (
        problem
        == f"{folder}: ranks saved at different moments: micro step 12 (rank 0) and 14 (rank 1)"
    )


def test_accelerate_keeps_a_second_model_apart(copy):
    folder = copy(ACCELERATE)
    shutil.copy(folder / "model.safetensors", folder / "model_1.safetensors")
    names = {one.name for one in accelerate.read(folder).tensors if one.role == "parameter"}
    own = set(load_file(folder / "model.safetensors"))
    assert names == own | {f"model_1.{name}" for name in own}


def test_nanotron_puts_its_parameters_together_from_the_shards():
    facts = nanotron.read(NANOTRON)
    assert steps(facts) == {
        "the name 10": 10,
        "checkpoint_metadata.json: last_train_step": 10,
        "lr_scheduler/lr_scheduler.pt: last_epoch": 10,
        "optimizer/optimizer_pp-0-of-1_tp-0-of-2_exp-0-of-1.pt: optimizer.pp-0.tp-0.exp-0 step": 10,
    }
    assert facts.world_size == 2
    name = "model.token_position_embeddings.pp_block.token_embedding.weight"
    (tensor,) = [one for one in facts.tensors if one.name == name]
    assert (tensor.shape, tensor.role) == ((64, 8), "parameter")
    assert [(chunk.offset, chunk.shape) for chunk in tensor.chunks] == [
        ((0, 0), (32, 8)),
        ((32, 0), (32, 8)),
    ]
    for chunk in tensor.chunks:
        array = load_file(NANOTRON / chunk.path)["data"]
        assert (NANOTRON / chunk.path).read_bytes()[chunk.start : chunk.end] == array.tobytes()
    assert (
        sum(one.parameter == name and one.name.endswith(".exp_avg") for one in facts.tensors) == 2
    )
    assert (
        field(facts, "metas").values["data_stages.0.consumed_tokens_per_dataset_folder.data/a"]
        == "1280"
    )
    assert sum(one.kind == "rng" for one in facts.fields) == 2
    assert "nanotron.random.RandomStates" in facts.globals


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("model_config.json", "model_config.json is missing, which is written last"),
        ("config.yaml", "config.yaml is missing"),
        ("checkpoint_metadata.json", "checkpoint_metadata.json: is missing"),
        (
            "random/tp-1-of-2_dp-0-of-1_pp-0-of-1.pt",
            "expected 2 files of the RNG state (tp 2 × dp 1 × pp 1), found 1",
        ),
        (
            "optimizer/optimizer_pp-0-of-1_tp-0-of-2_exp-0-of-1.pt",
            "expected 2 files of the optimizer",
        ),
        ("lr_scheduler/lr_scheduler.pt", "there is no file of the scheduler"),
    ],
)
def test_nanotron_misses_a_file(copy, name, sentence):
    folder = copy(NANOTRON)
    (folder / name).unlink()
    assert sentence in only_problem(nanotron.read(folder))


def test_nanotron_misses_a_shard_and_a_whole_parameter(copy):
    folder = copy(NANOTRON)
    block = folder / "model" / "model" / "decoder" / "0" / "pp_block" / "attn" / "qkv_proj"
    shards = sorted(block.iterdir())
    shards[1].unlink()
    facts = nanotron.read(folder)
    assert not facts.complete
    parameter = "parameter model.decoder.0.pp_block.attn.qkv_proj.weight"
    assert facts.problems == (
        f"{folder}: expected 2 files of the {parameter} (tp 2), found 1",
        f"{folder}: {parameter}: no chunk holds 12:24 of axis 0",
    )
    shards[0].unlink()
    (problem,) = nanotron.read(folder).problems
    assert (
        "model.decoder.0.pp_block.attn.qkv_proj.weight, of which there is no weight file" in problem
    )


def test_nanotron_is_not_told_to_have_holes_by_other_pipeline_stages(copy):
    folder = copy(NANOTRON)
    for path in [one for one in folder.rglob("*pp-rank-0-of-1*") if one.is_file()]:
        path.rename(path.with_name(path.name.replace("pp-rank-0-of-1", "pp-rank-2-of-4")))
    assert nanotron.read(folder).problems == ()


def test_nanotron_folder_of_another_step_disagrees(copy):
    facts = nanotron.read(copy(NANOTRON, "12"))
    assert facts.complete
    assert not facts.steps_agree
    assert facts.step == 12


@pytest.mark.parametrize(
    "slices",
    [
        "",
        "#",
        "0,32,None#0,32,None",
        "0,99,None|0,8,None#0,99,None|0,8,None",
        "0,32,2|0,8,None#0,32,2|0,8,None",
        "-1,32,None|0,8,None#0,33,None|0,8,None",
        "a,b,c|0,8,None#0,32,None|0,8,None",
        "0,32,None|0,4,None#0,32,None|0,4,None",
    ],
)
def test_nanotron_slices_that_do_not_fit_are_a_sentence(copy, slices):
    from safetensors.numpy import save_file

    folder = copy(NANOTRON)
    (path,) = folder.rglob("token_embedding/*tp-rank-0*")
    save_file(
        load_file(path), path, {"local_global_slices_pairs": slices, "unsharded_shape": "(64, 8)"}
    )
    facts = nanotron.read(folder)
    assert not facts.complete
    assert any("local_global_slices_pairs" in problem for problem in facts.problems)


def test_a_file_where_a_folder_is_expected_is_refused(tmp_path):
    (tmp_path / "checkpoint-4").write_bytes(b"")
    for reader in (hf_trainer, accelerate, nanotron):
        assert reader.claims(look(tmp_path / "checkpoint-4")) == 0
        with pytest.raises(EvidenceError, match="is a file, not a checkpoint folder"):
            reader.read(tmp_path / "checkpoint-4")
        with pytest.raises(EvidenceError, match="there is no such file or folder"):
            reader.read(tmp_path / "none")


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(folder=st.sampled_from([TWO, ACCELERATE, NANOTRON]), data=st.data())
def test_whatever_is_cut_or_flipped_there_are_facts_or_an_evidence_error(tmp_path, folder, data):
    target = tmp_path / folder.name
    if not target.exists():
        shutil.copytree(folder, target)
    paths = sorted(path for path in target.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(paths), label="file")
    whole = path.read_bytes()
    content = bytearray(whole)
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=3), label="flipped"):
        content[at] ^= data.draw(st.integers(1, 255), label="flip")
    path.write_bytes(content[: data.draw(st.integers(0, len(content)), label="cut")])
    try:
        facts = READERS[folder].read(target)
        assert facts.layout == READERS[folder].NAME
    except EvidenceError:
        pass
    finally:
        path.write_bytes(whole)
