"""Runs of a real Hugging Face Trainer.

Recorded, guarded, resumed, replayed bit for bit, triaged to the right cause.

One run dies in step 103 and goes on from step 100 twice: with code that forgets the scheduler's
counter, and on shards that rotted in between. 103 micro-batches make an epoch of 52 steps, whose
last has one.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from adapted import ADAPTERS, Adapted, child, script

from spiketriage.nouns.telemetry import Link, StepRecord
from spiketriage.practice.rehearsal.corpus import Corpus
from spiketriage.train.adapters.rows import write_documents
from spiketriage.wire.chain import STAGES

pytestmark = pytest.mark.slow
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

ENTRY = ADAPTERS / "hf_entry.py"
DOCUMENTS, RESTART, CRASH, FAULT, LAST = 820, 100, 103, 108, 120
SHORT = (52, 104)  # the last steps of two epochs
# Calm on every processor that was tried (other kernels, other seeds): without the fault, no guard
# skips a step, and the fault lies 15 scales and 2 nats out at least (`policy.FAR_SCALES`: 10 and 1).
PEAK, WARMUP = 4e-3, 5
RESUME = '        print(f"training from step {state.global_step + 1}", flush=True)\n'
FORGET = '        if state.global_step:\n            objects["lr_scheduler"].last_epoch = 0\n'
SAVED = [
    "step-000006",
    "step-000012",
    "step-000014",
]  # every sixth step, and the last: as the trainer saves


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Two continuations of one run, what the first printed, and what triage says of both."""

    reset: Adapted
    rotten: Adapted
    told: str
    triaged: Mapping[str, Future[dict[str, Any]]]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("hf")
    first, sound, forgetful = (release(folder / name) for name in ("r1", "r2", "r3"))
    edit(sound, RESUME, RESUME.replace("training from", "[job] training from"))
    edit(forgetful, RESUME, RESUME + FORGET)
    reset = made(folder / "reset", max_steps=LAST)
    assert start(reset, first, crash_step=CRASH).returncode == -9
    rotten = Adapted(folder=folder / "rotten", rotten=-1)
    shutil.copytree(reset.folder, rotten.folder)
    went_on = start(reset, forgetful)
    assert went_on.returncode == 0, went_on.stderr
    with ThreadPoolExecutor(2) as pool:  # triage goes on while other tests look at the records
        triaged = {"reset": pool.submit(reset.desk, "triage")}
        let_rot(rotten.folder / "data", consumed(reset))
        done = start(rotten, sound)
        assert done.returncode == 0, done.stderr
        triaged["rotten"] = pool.submit(rotten.desk, "triage")
        yield Stage(reset=reset, rotten=rotten, told=went_on.stderr, triaged=triaged)


def release(folder: Path) -> Path:
    """The user's job as a package of its own, to be deployed; returns its file."""
    (folder / "job").mkdir(parents=True)
    return Path(shutil.copyfile(script("hf"), folder / "job" / "train.py"))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def made(folder: Path, **settings: Any) -> Adapted:
    """A run folder with documents and their index."""
    documents = Corpus(7).mix(DOCUMENTS)
    write_documents(
        folder / "data", ((f"d{n:05d}", one.source, one.data) for n, one in enumerate(documents))
    )
    (folder / "settings.json").write_text(json.dumps(settings))
    return Adapted(folder=folder, rotten=-1)


def start(run: Adapted, code: Path, *launcher: str, **fate: Any) -> CompletedProcess[str]:
    """One attempt of the run, by the job of `code`."""
    words = (str(ENTRY), str(code.parents[1]), str(run.folder), json.dumps(fate))
    return child(*launcher, *words, env={"HF_HUB_OFFLINE": "1"})


def consumed(run: Adapted) -> set[str]:
    """Documents that the fault's step consumes, and no step between the restart and it."""
    steps = by_step(run)
    before = {name for step in range(RESTART + 1, FAULT) for name in steps[step].content}
    return set(steps[FAULT].content) - before


def let_rot(data: Path, names: set[str]) -> None:
    """Blank documents where they lie, as a lost page reads; the index says what they were.

    A model that never met a zero byte finds nothing stranger, on every machine alike.
    """
    index = json.loads((data / "index.json").read_text(encoding="utf-8"))
    for row in (dict(zip(index["columns"], row, strict=True)) for row in index["documents"]):
        if row["id"] in names:
            with (data / row["shard"]).open("r+b") as shard:
                shard.seek(row["offset_bytes"])
                shard.write(bytes(row["length_bytes"]))


def by_step(run: Adapted) -> dict[int, StepRecord]:
    """What the last attempt recorded, with what came before it."""
    return {one.step: one for segment in run.segments() for one in segment.steps}


def stage_of(record: StepRecord, name: str) -> dict[str, bytes]:
    return {link.key: digest for link, digest in record.digests.items() if link.stage == name}


def test_every_stage_of_every_step_is_on_record_with_the_losses_before_anything_averages_them(
    stage: Stage,
) -> None:
    steps = by_step(stage.rotten)
    assert list(steps) == list(range(1, LAST + 1))
    for step, one in steps.items():
        missing = set(STAGES) - {link.stage for link in one.digests} - {"restored"}
        assert missing == ({"optimizer"} if step == FAULT else set()), step
        assert len(one.ids["micros"]) == (1 if step in SHORT else 2)
        assert one.metrics["lr"] == pytest.approx(rate(step - (step > FAULT)), rel=1e-6, abs=1e-12)
        assert one.metrics["grad/norm_local"] == pytest.approx(one.metrics["grad/norm"])
        assert one.metrics["loss/sum"] == pytest.approx(
            one.metrics["loss/mean"] * one.metrics["tokens/valid"]
        )
        assert mean_of_rows(one, stage) == pytest.approx(one.metrics["loss/mean"], rel=1e-5), step
    batch = {
        f"{name}#{micro}" for name in ("inputs", "labels", "valid", "mask") for micro in (0, 1)
    }
    assert stage_of(steps[5], "batch").keys() == batch
    assert len(stage_of(steps[5], "activations")) == 3 * 2
    assert steps[1].metrics["loss/mean"] == pytest.approx(
        math.log(258), abs=0.2
    )  # nothing is learned yet


def mean_of_rows(record: StepRecord, stage: Stage) -> float:
    """The step's mean loss from those of its rows, weighted by their documents' lengths.

    A target for each byte.
    """
    index = json.loads((stage.rotten.folder / "data" / "index.json").read_text(encoding="utf-8"))
    rows = [dict(zip(index["columns"], row, strict=True)) for row in index["documents"]]
    lengths = [rows[key]["length_bytes"] for micro in record.ids["micros"] for key in micro]
    losses = record.series["loss/per_sample"]
    return sum(loss * num for loss, num in zip(losses, lengths, strict=True)) / sum(lengths)


def rate(step: int) -> float:
    """Hugging Face's cosine, by its own formula."""
    counter = step - 1
    if counter < WARMUP:
        return PEAK * counter / WARMUP
    return PEAK * 0.5 * (1 + math.cos(math.pi * (counter - WARMUP) / (LAST - WARMUP)))


def test_the_filter_that_hides_nan_losses_is_told_of_once(stage: Stage) -> None:
    assert stage.told.count("UserWarning: logging_nan_inf_filter is on") == 1


def test_a_resumed_run_repeats_the_steps_that_were_lost(stage: Stage) -> None:
    first, second = stage.rotten.segments()
    lost = {one.step: one for one in first.steps if one.step > RESTART}
    again = {one.step: one for one in second.steps if one.step in lost}
    assert list(lost) == [101, 102] == list(again)
    for step, one in again.items():
        assert (one.digests, one.rng, one.ids) == (
            lost[step].digests,
            lost[step].rng,
            lost[step].ids,
        )


def test_the_guard_leaves_the_spike_out_and_nothing_moves(stage: Stage) -> None:
    steps = by_step(stage.rotten)
    assert [step for step, one in steps.items() if one.metrics["guard/skipped"]] == [FAULT]
    skipped, after = steps[FAULT], steps[FAULT + 1]
    assert (
        stage_of(skipped, "params_before")
        == stage_of(skipped, "params_after")
        == stage_of(after, "params_before")
    )
    assert "optimizer" not in {link.stage for link in skipped.digests}
    assert after.metrics["optimizer/step"] == FAULT  # one of the steps was not taken
    assert after.metrics["scheduler/step"] == skipped.metrics["scheduler/step"]
    assert after.metrics["lr"] == skipped.metrics["lr"] == pytest.approx(rate(FAULT), rel=1e-6)
    assert Link("reduced_gradient", "transformer.wte.weight") in skipped.digests


@pytest.mark.parametrize(
    ("name", "cause", "where"),
    [
        (
            "reset",
            "scheduler-reset",
            {"step": RESTART + 1, "stage": "restored", "key": "scheduler"},
        ),
        ("rotten", "shard-bitrot", {"step": FAULT, "stage": "content", "path": "shard-00000.bin"}),
    ],
)
def test_triage_names_the_planted_fault(
    stage: Stage, name: str, cause: str, where: dict[str, Any]
) -> None:
    told = stage.triaged[name].result()
    assert told["verdict"] == "established", told
    assert told["data"]["cause"] == cause
    assert {key: told["data"]["where"][key] for key in where} == where


def test_the_replay_repeats_the_guards_word_and_the_end_of_an_epoch_bit_for_bit(
    stage: Stage,
) -> None:
    stage.triaged["rotten"].result()
    replayed = stage.rotten.desk("replay")  # the one of triage: 101 to two steps after the fault
    assert (replayed["exit"], replayed["verdict"]) == (0, "agrees"), replayed
    assert replayed["data"]["steps_executed"] == 0


def test_two_ranks_are_replayed_bit_for_bit_from_what_the_trainer_saved(tmp_path: Path) -> None:
    run = made(tmp_path / "run", max_steps=14, save_strategy="steps", save_steps=6)
    code = release(tmp_path / "r1")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = start(run, code, *launcher)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (run.folder / "checkpoints").iterdir()) == SAVED
    shutil.rmtree(run.folder / "checkpoints" / SAVED[1])
    assert run.desk("freeze")["ok"]
    found = {
        one["name"]: one["outcome"] for one in run.desk("check", "--audit")["data"]["findings"]
    }
    assert "differs" not in found.values(), found
    assert {found[name] for name in ("reduction", "continuity", "ranks-params-after", "ids")} == {
        "agrees"
    }
    replayed = run.desk("replay")
    assert (replayed["exit"], replayed["verdict"]) == (0, "agrees"), replayed
    assert replayed["data"]["steps_executed"] == 8  # 7 to 14
