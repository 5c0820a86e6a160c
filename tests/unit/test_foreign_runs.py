"""Runs without our recorder.

What a folder is found to hold, which logs are the run, and what its checkpoints are.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import stack_damage
from command_line import call

from spiketriage.digests import PIECE_BYTES
from spiketriage.errors import EvidenceError
from spiketriage.nouns.series import LogFacts, Series
from spiketriage.nouns.telemetry import Segment
from spiketriage.readers import discover as discovering
from spiketriage.readers.checkpoints.generations import (
    read_generation,
    read_generations,
    steps_in_words,
)
from spiketriage.readers.discover import discover, files_of
from spiketriage.readers.look import LFS_HEAD
from spiketriage.readers.telemetry.run.foreign import choose
from spiketriage.readers.telemetry.run.sources import read_telemetry

FIXTURES = Path(__file__).parents[2] / "fixtures"
HF = FIXTURES / "hf" / "checkpoint-4"
DCP = FIXTURES / "dcp" / "plain" / "step_3"
TITAN = FIXTURES / "dcp" / "torchtitan" / "checkpoint" / "step-4"
POINTER = LFS_HEAD + b"v1\noid sha256:00\nsize 9\n"


def rows(*steps: int) -> str:
    return "".join(
        json.dumps({"step": step, "loss": 2.0 + step, "grad_norm": 1.0}) + "\n" for step in steps
    )


def found(folder: Path) -> list[tuple[str, str, str]]:
    return [
        (one.path.relative_to(folder).as_posix(), one.kind, one.format.NAME)
        for one in discover(folder).claims
    ]


# What a folder holds


def test_a_run_is_found_in_whatever_folders(tmp_path: Path) -> None:
    shutil.copytree(DCP, tmp_path / "out" / "saves" / "step_3")
    (tmp_path / "out" / "metrics.jsonl").write_text(rows(1, 2))
    (tmp_path / "notes.md").write_text("nothing\n")
    assert sorted(found(tmp_path)) == [
        ("out", "telemetry", "jsonl"),
        ("out/saves/step_3", "checkpoint", "dcp"),
    ]


def test_last_weights_in_the_run_folder_do_not_hide_its_checkpoints_and_log(tmp_path: Path) -> None:
    """`Trainer.save_model` and `save_state` leave weights and a state beside the `checkpoint-N` folders."""
    shutil.copytree(HF, tmp_path / "checkpoint-4")
    for name in ("model.safetensors", "config.json", "trainer_state.json", "training_args.bin"):
        shutil.copy(HF / name, tmp_path)
    (tmp_path / "slurm-1.out").write_text("starting\n")
    assert {(".", "checkpoint", "hf-trainer"), ("checkpoint-4", "checkpoint", "hf-trainer")} <= set(
        found(tmp_path)
    )
    assert (".", "telemetry", "hf-trainer-state") in found(tmp_path)
    own = next(one for one in read_generations(tmp_path, verify=True) if one.name == ".")
    assert set(own.file_digests) <= {
        "model.safetensors",
        "config.json",
        "trainer_state.json",
        "training_args.bin",
    }


def test_a_part_of_a_checkpoint_is_no_checkpoint(tmp_path: Path) -> None:
    fsdp = FIXTURES / "hf" / "fsdp"
    (checkpoint,) = [path for path in fsdp.iterdir() if path.is_dir()]
    shutil.copytree(checkpoint, tmp_path / checkpoint.name)
    assert [one.path.name for one in discover(tmp_path).of("checkpoint")] == [checkpoint.name]


def test_a_folder_of_rows_does_not_hide_the_rows_in_its_folders(tmp_path: Path) -> None:
    (tmp_path / "eval.jsonl").write_text('{"step": 10, "eval_loss": 2.5}\n')
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "log.jsonl").write_text(rows(1, 2, 3))
    assert found(tmp_path) == [(".", "telemetry", "jsonl"), ("train", "telemetry", "jsonl")]
    telemetry = read_telemetry(tmp_path)
    assert telemetry.steps == (1, 2, 3)
    assert telemetry.notes == ()  # an evaluation is not the run once more


def test_links_to_folders_and_the_incidents_themselves_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / ".spiketriage").mkdir()
    (tmp_path / ".spiketriage" / "metrics.jsonl").write_text(rows(1, 2))
    (tmp_path / "loop").symlink_to(tmp_path)
    assert found(tmp_path) == []


def test_what_is_not_looked_at_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path.joinpath(*"abcdefghijklmn")
    deep.mkdir(parents=True)
    assert any("folders deep" in note for note in discover(tmp_path).notes)
    monkeypatch.setattr(discovering, "MAX_PATHS", 3)
    assert any("only the first 3" in note for note in discover(tmp_path).notes)


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="no such"):
        discover(tmp_path / "gone")


def test_only_wanted_claims_are_kept(tmp_path: Path) -> None:
    shutil.copytree(DCP, tmp_path / "step_3")
    (tmp_path / "metrics.jsonl").write_text(rows(1, 2))
    kinds = {
        one.kind
        for one in discover(tmp_path, wanted=lambda claim: claim.kind == "telemetry").claims
    }
    assert kinds == {"telemetry"}


def test_the_files_behind_a_claim_are_what_a_freeze_copies(tmp_path: Path) -> None:
    (tmp_path / "rank-0.jsonl").write_text(rows(1, 2))
    (tmp_path / "rank-1.jsonl").write_text(rows(1, 2))
    (tmp_path / "model.py").write_text("import torch\n")
    (claim,) = discover(tmp_path).of("telemetry")
    assert [path.name for path in files_of(claim)] == ["rank-0.jsonl", "rank-1.jsonl"]


# Which logs are the run


def log(
    path: str,
    *,
    steps: range,
    rank: int | None = None,
    attempt: int = 0,
    form: str = "jsonl",
    trusted: bool = True,
) -> LogFacts:
    return LogFacts(
        format=form, path=Path(path), series=(series(path, steps, rank, attempt, trusted=trusted),)
    )


def series(
    source: str, steps: range, rank: int | None, attempt: int, *, trusted: bool = True
) -> Series:
    return Series(
        source=source,
        name="loss/mean",
        written_as="loss",
        attempt=attempt,
        rank=rank,
        steps=np.array(steps, dtype=np.int64),
        values=np.array(steps, dtype=np.float64) / 10,
        trusted=trusted,
    )


def told(segments: tuple[Segment, ...]) -> list[tuple[str, int, int, int, int]]:
    """Source, attempt, rank, first and last step."""
    return [
        (one.path.name, one.attempt, one.rank, one.steps[0].step, one.steps[-1].step)
        for one in segments
    ]


def test_a_log_that_begins_later_is_a_later_attempt() -> None:
    chosen = choose([log("b", steps=range(60, 120)), log("a", steps=range(1, 80))])
    assert told(chosen.segments) == [("a", 0, 0, 1, 79), ("b", 1, 0, 60, 119)]
    assert chosen.notes == ()


def test_attempts_that_are_numbered_keep_their_order() -> None:
    """The second restart went back further than the first one."""
    logs = [
        log("two", steps=range(50, 90), attempt=2),
        log("none", steps=range(1, 80), attempt=0),
        log("one", steps=range(60, 70), attempt=1),
    ]
    assert [(name, attempt) for name, attempt, *_ in told(choose(logs).segments)] == [
        ("none", 0),
        ("one", 1),
        ("two", 2),
    ]


def test_an_attempt_that_began_from_scratch_again_is_kept() -> None:
    logs = [log("none", steps=range(1, 8), attempt=0), log("one", steps=range(1, 80), attempt=1)]
    assert told(choose(logs).segments) == [("none", 0, 0, 1, 7), ("one", 1, 0, 1, 79)]


def test_a_restart_inside_one_log_is_two_attempts() -> None:
    both = LogFacts(
        format="jsonl",
        path=Path("a"),
        series=(series("a", range(1, 9), None, 0), series("a", range(5, 12), None, 1)),
    )
    assert told(choose([both]).segments) == [("a", 0, 0, 1, 8), ("a", 1, 0, 5, 11)]


def test_every_rank_has_its_own_log() -> None:
    chosen = choose([log("one", steps=range(1, 9), rank=1), log("zero", steps=range(1, 9), rank=0)])
    assert told(chosen.segments) == [("zero", 0, 0, 1, 8), ("one", 0, 1, 1, 8)]


def test_the_same_run_in_another_format_is_not_merged() -> None:
    chosen = choose(
        [log("events", steps=range(1, 9), form="tensorboard"), log("rows", steps=range(1, 90))]
    )
    assert told(chosen.segments) == [("rows", 0, 0, 1, 89)]
    assert chosen.notes == (
        "events (tensorboard): holds the same run once more and was not merged",
    )


def test_steps_that_were_counted_lose_against_steps_that_are_written() -> None:
    """HF Trainer's console goes on after the last save, but has no step in its lines."""
    counted = log("console", steps=range(1, 30), form="hf-stdout", trusted=False)
    assert (
        told(choose([counted, log("state", steps=range(10, 110, 10), form="state")]).segments)[0][0]
        == "state"
    )
    assert told(choose([counted]).segments)[0][0] == "console"


def test_a_log_without_a_loss_is_no_segment() -> None:
    only_lr = LogFacts(format="jsonl", path=Path("a"), series=())
    assert choose([only_lr]).segments == ()


def test_what_a_source_says_twice_counts_as_it_said_last() -> None:
    twice = series("a", range(1, 3), None, 0)
    twice = Series(
        source="a",
        name=twice.name,
        written_as="loss",
        attempt=0,
        rank=None,
        steps=np.array([1, 1]),
        values=np.array([3.0, 4.0]),
    )
    (segment,) = choose([LogFacts(format="jsonl", path=Path("a"), series=(twice,))]).segments
    assert [dict(one.metrics) for one in segment.steps] == [{"loss/mean": 4.0}]
    assert math.isnan(segment.steps[0].wall_time_s)


def test_telemetry_says_what_it_left_out_and_how_it_counts(tmp_path: Path) -> None:
    lightning = tmp_path / "logs" / "version_0"
    lightning.mkdir(parents=True)
    (lightning / "metrics.csv").write_text(
        "epoch,step,train_loss\n" + "".join(f"0,{n},{n / 2}\n" for n in range(9))
    )
    (tmp_path / "short.jsonl").write_text(rows(1, 2))
    telemetry = read_telemetry(tmp_path)
    assert telemetry.steps == tuple(range(1, 10))
    assert any(note.startswith("logs") and "from 0" in note for note in telemetry.notes)
    assert (
        "the folder itself (jsonl): holds the same run once more and was not merged"
        in telemetry.notes
    )


# What its checkpoints are


def test_generations_come_by_step_with_all_that_states_it(tmp_path: Path) -> None:
    shutil.copytree(DCP, tmp_path / "saves" / "step_3")
    shutil.copytree(TITAN, tmp_path / "saves" / "step-4")
    one, other = read_generations(tmp_path, verify=False)
    assert [(g.name, g.step, g.layout, g.complete) for g in (one, other)] == [
        ("saves/step_3", 3, "dcp", True),
        ("saves/step-4", 4, "torchtitan", True),
    ]
    assert set(one.stated_steps.values()) == {3}
    assert (one.file_digests, one.problems) == ({}, ())


def test_one_generation_is_read_as_among_all(tmp_path: Path) -> None:
    """Its folder is named like one of ours, and a name with a slash stays as it was listed."""
    shutil.copytree(TITAN, tmp_path / "checkpoint" / "step-4")
    (listed,) = read_generations(tmp_path, verify=True)
    assert read_generation(tmp_path, listed.name, verify=True) == listed
    assert listed.layout == "torchtitan"
    assert set(listed.file_digests) == {".metadata", "__0_0.distcp", "__1_0.distcp"}


def test_a_flipped_bit_is_named_to_the_tensor_and_its_parameter(tmp_path: Path) -> None:
    saved = next(
        path for path in (FIXTURES / "torch_save" / "lightning").rglob("*.ckpt") if path.is_file()
    )
    with zipfile.ZipFile(saved) as archive:
        keys = [name.rpartition("/")[2] for name in archive.namelist() if "/data/" in name]
    told = []
    for key in keys:
        path = tmp_path / key / saved.name
        path.parent.mkdir()
        shutil.copy(saved, path)
        stack_damage.in_torch_file(path, key).flip()
        (generation,) = read_generations(path.parent, verify=True)
        told += [one for one in generation.problems if "expected CRC-32" in one]
    assert len(told) == len(keys)
    weights = [one for one in told if ": tensor state_dict." in one]
    moments = [one for one in told if "exp_avg" in one]
    assert weights
    assert moments
    assert all(", of " in one for one in moments)
    assert not any(", of " in one for one in weights)


def test_a_pointer_where_a_checkpoint_was_is_a_checkpoint_that_cannot_be_read(
    tmp_path: Path,
) -> None:
    for name in ("epoch=0-step=6.ckpt", "last.ckpt", "model.pt"):
        (tmp_path / name).write_bytes(POINTER)
    generations = read_generations(tmp_path, verify=False)
    assert [one.name for one in generations] == ["epoch=0-step=6.ckpt", "last.ckpt", "model.pt"]
    assert all("Git-LFS pointer" in one.problems[0] and not one.complete for one in generations)


def test_what_is_left_of_a_named_checkpoint_is_told(tmp_path: Path) -> None:
    (tmp_path / "epoch=0-step=6.ckpt").write_bytes(b"")
    (generation,) = read_generations(tmp_path, verify=False)
    assert not generation.complete
    assert generation.problems


def test_a_mixture_of_steps_is_a_problem(tmp_path: Path) -> None:
    shutil.copytree(DCP, tmp_path / "step_5")
    (generation,) = read_generations(tmp_path, verify=False)
    (problem,) = generation.problems
    assert problem.startswith(f"{tmp_path / 'step_5'}: its parts are not of one step: 3 (")
    assert problem.endswith("and 5 (the name step_5)")


def test_steps_are_told_by_step_and_not_one_by_one() -> None:
    assert steps_in_words({"b": 4, "the name": 3, "a": 4}) == "3 (the name) and 4 (a, b)"


def test_a_generation_that_is_gone_is_told(tmp_path: Path) -> None:
    assert "no such file" in read_generation(tmp_path, "step_9", verify=True).problems[0]
    (tmp_path / "step_9").mkdir()
    assert (
        "no checkpoint of a known layout any more"
        in read_generation(tmp_path, "step_9", verify=True).problems[0]
    )


def test_an_incident_inside_a_checkpoint_is_no_part_of_it(tmp_path: Path) -> None:
    shutil.copytree(DCP, tmp_path / "step_3")
    (tmp_path / "step_3" / ".spiketriage").mkdir()
    (tmp_path / "step_3" / ".spiketriage" / "incident.db").write_bytes(b"grows")
    (generation,) = read_generations(tmp_path, verify=True)
    assert set(generation.file_digests) == {".metadata", "__0_0.distcp", "__1_0.distcp"}


def test_names_that_are_not_utf8_go_through_the_whole_desk(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    log = run / os.fsdecode(b"\xff\xfe.jsonl")
    log.write_text(
        "".join(f'{{"step": {step}, "loss": {3 - step / 100}}}\n' for step in range(1, 101))
    )
    shutil.copytree(DCP, run / os.fsdecode(b"step_3\xff"))
    for command in ("freeze", "hash", "verify", "report"):
        done = call(command, str(run), cwd=tmp_path)
        assert (command, done.returncode, done.stderr.count("bug")) == (command, 0, 0), done.stdout
    assert "known good: step_3\\xff" in call("status", str(run), cwd=tmp_path).stdout


def test_a_file_that_is_read_in_pieces_is_intact_until_it_is_changed(tmp_path: Path) -> None:
    run, num_floats = tmp_path / "run", 20 << 20
    weights = run / "checkpoint-100" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    rows = (f'{{"step": {step}, "loss": {3 - step / 100}}}\n' for step in range(1, 101))
    (run / "log.jsonl").write_text("".join(rows))
    tensor = {"dtype": "F32", "shape": [num_floats], "data_offsets": [0, 4 * num_floats]}
    header = json.dumps({"w": tensor}).encode()
    weights.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(weights, 8 + len(header) + 4 * num_floats)
    assert weights.stat().st_size > PIECE_BYTES
    assert call("freeze", str(run), cwd=tmp_path).returncode == 6  # the checkpoint has no step
    assert call("verify", str(run), "--deep", cwd=tmp_path).returncode == 0
    with weights.open("r+b") as stream:
        stream.seek(PIECE_BYTES + 1)
        stream.write(b"\1")
    changed = call("verify", str(run), "--deep", cwd=tmp_path)
    assert (changed.returncode, changed.stdout.count("changed: expected xxh3-128")) == (4, 1)
