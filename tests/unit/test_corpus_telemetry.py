"""Real files of structured telemetry formats, with the values that a person reads off them."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import pytest
from telemetry_files import CORPUS, one, points

from spiketriage.readers.look import best, look
from spiketriage.readers.telemetry.formats import FORMATS
from spiketriage.readers.telemetry.series.names import DEFAULT
from spiketriage.readers.telemetry.stores import tensorboard, wandb_file
from spiketriage.readers.telemetry.tables import hf_trainer_state

pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not on this machine")
SYGOAT = tuple(CORPUS / f"hf_sygoat_ckpt{step}_trainer_state.json" for step in (500, 4500, 8500))


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*.tfevents", "tensorboard"),
        ("*.wandb", "wandb"),
        ("*_trainer_state.json", "hf-trainer-state"),
    ],
)
def test_every_file_is_claimed_by_its_reader_and_read_without_a_problem(
    pattern: str, name: str
) -> None:
    paths = sorted(CORPUS.glob(pattern))
    assert paths
    for path in paths:
        told = best(FORMATS, look(path))
        assert told is not None
        assert name == told[0].NAME
        assert told[1] > 0.9
        facts = told[0].read(path, DEFAULT)
        assert (facts.problems, facts.rollbacks, facts.num_near_misses) == ((), (), 0)
        assert facts.series


def test_event_file() -> None:
    facts = tensorboard.read(CORPUS / "tb_cvp.tfevents", DEFAULT)
    assert sorted(series.name for series in facts.series) == [
        "batch_acc", "batch_loss", "epoch_acc", "epoch_loss", "epoch_val_acc", "epoch_val_loss",
    ]  # fmt: skip
    assert {len(series.steps) for series in facts.series} == {17}
    loss = one(facts, "batch_loss")
    assert loss.steps.tolist() == list(range(17))
    assert loss.values[0] == pytest.approx(3.9135773)
    assert loss.values[16] == pytest.approx(2.9325056e-05)


def test_offline_run() -> None:
    facts = wandb_file.read(CORPUS / "wandb_offline_g9dvvkua.wandb", DEFAULT)
    assert (facts.identity["run_id"], facts.identity["project"], facts.num_lines) == (
        "g9dvvkua",
        "code-toad",
        10,
    )
    assert points(one(facts, "system/cpu")) == [(0, 24.3)]
    assert points(one(facts, "system/memory")) == [(0, 49.55)]
    assert "the run logged no history" in facts.notes


def test_growing_prefixes(tmp_path: Path) -> None:
    lengths = []
    for path, step in zip(SYGOAT, (500, 4500, 8500), strict=True):
        lengths.append(len(one(hf_trainer_state.read(path, DEFAULT), "loss/mean").steps))
        (tmp_path / f"checkpoint-{step}").mkdir()
        os.symlink(path, tmp_path / f"checkpoint-{step}" / "trainer_state.json")
    assert lengths == [50, 450, 850]
    facts = hf_trainer_state.read(tmp_path, DEFAULT)
    found = one(facts, "loss/mean")
    assert (points(found)[0], points(found)[-1]) == ((10, 2.4977), (8500, 0.1127))
    assert len(found.steps) == 850
    assert facts.rollbacks == ()
    assert "3 states: 2 are verified prefixes of a longer one" in facts.notes


def test_a_changed_past_is_another_attempt(tmp_path: Path) -> None:
    for path, step in zip(SYGOAT[:2], (500, 4500), strict=True):
        (tmp_path / f"checkpoint-{step}").mkdir()
        shutil.copy(path, tmp_path / f"checkpoint-{step}" / "trainer_state.json")
    state = tmp_path / "checkpoint-500" / "trainer_state.json"
    state.chmod(0o644)
    state.write_text(state.read_text().replace("0.6294", "0.6295"))
    os.utime(state, (1000, 1000))
    facts = hf_trainer_state.read(tmp_path, DEFAULT)
    assert points(one(facts, "loss/mean", 0))[-1] == (500, 0.6295)
    assert points(one(facts, "loss/mean", 1))[0] == (500, 0.6294)
    assert [(back.last_step, back.first_step) for back in facts.rollbacks] == [(500, 500)]


def test_two_thousand_points_without_an_incident() -> None:
    facts = hf_trainer_state.read(CORPUS / "hf_star_trainer_state.json", DEFAULT)
    loss, norm, rate = (one(facts, name) for name in ("loss/mean", "grad/norm", "lr"))
    assert (len(loss.steps), loss.steps[-1], loss.trusted) == (2000, 40000, True)
    assert (loss.values[0], loss.values[-1]) == pytest.approx((24.79317626953125, 3.75598755))
    assert 82 <= norm.values.max() < 83
    assert set(rate.values.tolist()) == {0.0001}


def test_ten_points_only() -> None:
    facts = hf_trainer_state.read(CORPUS / "hf_theai_ckpt50_trainer_state.json", DEFAULT)
    loss = points(one(facts, "loss/mean"))
    assert (len(loss), loss[0], loss[-1]) == (10, (5, 4.6997), (50, 4.3371))
    assert facts.identity["global_step"] == "50"


@pytest.mark.parametrize("is_filtered", [True, False])
def test_nan_from_step_six_with_the_filter_and_without(is_filtered: bool) -> None:
    facts = hf_trainer_state.read(
        CORPUS / f"gen_hf_nan_filter_{str(is_filtered).lower()}_trainer_state.json", DEFAULT
    )
    loss = one(facts, "loss/mean")
    assert [step for step, value in points(loss) if value is None] == [6, 7, 8, 9, 10]
    assert [math.isnan(value) for value in one(facts, "grad/norm").values.tolist()] == [
        False
    ] * 5 + [True] * 5
    assert (len(loss.reasons), loss.trusted) == ((5, False) if is_filtered else (0, True))
    final = one(facts, "train_loss").values[0]
    assert final == pytest.approx(2.08039598) if is_filtered else math.isnan(final)
