"""`.wandb` files.

Rows at the step that the run logged, nonfinite numbers, and what a damaged file still tells.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry_files import CORPUS, FIXTURES, LFS_POINTER, NUM_STEPS, loss, one, points

from spiketriage.errors import EvidenceError
from spiketriage.readers.look import look
from spiketriage.readers.telemetry.series.names import DEFAULT, Names
from spiketriage.readers.telemetry.stores import wandb_file, wandb_summary

STEPPED = FIXTURES / "wandb" / "run-stepped.wandb"
CALLS = FIXTURES / "wandb" / "run-calls.wandb"


def test_a_logged_step_key_is_preferred_to_the_count_of_log_calls() -> None:
    facts = wandb_file.read(STEPPED, DEFAULT)
    found = one(facts, "loss/mean")
    assert found.steps.tolist() == list(range(NUM_STEPS))
    assert found.values == pytest.approx([loss(step) for step in range(NUM_STEPS)], nan_ok=True)
    assert found.trusted
    assert found.trust == "at the logged train/global_step"
    assert found.times_s is not None
    assert found.times_s[3] == 1_700_000_003
    assert set(one(facts, "train/inf").values.tolist()) == {math.inf}
    assert (facts.problems, facts.identity["run_id"], facts.identity["config/lr"]) == (
        (),
        "abc123",
        "0.01",
    )


def test_without_a_step_key_the_steps_are_not_trusted() -> None:
    facts = wandb_file.read(CALLS, DEFAULT)
    found = one(facts, "loss/mean")
    assert found.steps.tolist() == list(range(0, 2 * NUM_STEPS, 2))
    assert not found.trusted
    assert "no step key was logged: steps are _step, which counts log calls" in facts.notes


def test_a_mapping_names_the_step_key() -> None:
    facts = wandb_file.read(CALLS, Names(columns={"train/inf": "overflow"}))
    assert one(facts, "overflow").written_as == "train/inf"


def test_samples_of_the_machine_keep_their_time_and_are_no_steps() -> None:
    found = one(wandb_file.read(STEPPED, DEFAULT), "system/gpu.0.temp")
    assert (found.values.tolist(), found.trusted) == ([61.0], False)
    assert found.times_s is not None
    assert found.times_s.tolist() == [1_700_000_000.0]


def test_a_file_that_is_none_of_these(tmp_path: Path) -> None:
    pointer = tmp_path / "run-a.wandb"
    pointer.write_bytes(LFS_POINTER)
    with pytest.raises(EvidenceError, match="Git-LFS pointer"):
        wandb_file.read(pointer, DEFAULT)
    pointer.write_bytes(b"nothing of that kind")
    with pytest.raises(EvidenceError, match="expected the magic"):
        wandb_file.read(tmp_path, DEFAULT)


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(7, STEPPED.stat().st_size - 1))
def test_whatever_precedes_a_truncation_is_kept(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "run.wandb"
    path.write_bytes(STEPPED.read_bytes()[:cut])
    facts = wandb_file.read(path, DEFAULT)
    whole = points(one(wandb_file.read(STEPPED, DEFAULT), "loss/mean"))
    kept = [points(series) for series in facts.series if series.name == "loss/mean"]
    assert not kept or kept[0] == whole[: len(kept[0])]
    assert all("ends inside a record" in problem for problem in facts.problems)


@settings(max_examples=50, deadline=None)
@given(at=st.integers(7, STEPPED.stat().st_size - 1), bits=st.integers(1, 255))
def test_no_flip_invents_a_point(
    at: int, bits: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(STEPPED.read_bytes())
    data[at] ^= bits
    path = tmp_path_factory.mktemp("flip") / "run.wandb"
    path.write_bytes(data)
    facts = wandb_file.read(path, DEFAULT)
    whole = {
        (s.name, *pair) for s in wandb_file.read(STEPPED, DEFAULT).series for pair in points(s)
    }
    # Where every row of one key were lost, another key would be the step; one flip cannot do that
    # here.
    assert {(s.name, *pair) for s in facts.series for pair in points(s)} <= whole
    is_padding = len(facts.series) == 3 and sum(len(s.steps) for s in facts.series) == len(whole)
    assert facts.problems or is_padding


def test_claims() -> None:
    assert wandb_file.claims(look(STEPPED)) > 0.95
    assert wandb_file.claims(look(FIXTURES / "trackio.db")) == 0
    assert wandb_file.claims(look(STEPPED.parent)) == 0  # two runs: each file is claimed for itself


def test_a_summary_is_last_values_without_a_series() -> None:
    path = STEPPED.parent / "wandb-summary.json"
    assert wandb_summary.claims(look(path)) > 0.5
    facts = wandb_summary.read(path, DEFAULT)
    assert facts.series == ()
    assert facts.identity == {
        "final/_step": "20.0",
        "final/_runtime": "13.0",
        "final/loss/mean": "2.5",
        "final/val/loss": "nan",
    }


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of real files is not here")
def test_the_empty_summary_of_a_real_run_is_told_as_such() -> None:
    facts = wandb_summary.read(CORPUS / "wandb_offline_g9dvvkua_summary.json", DEFAULT)
    assert facts.identity == {}
    assert "is empty" in facts.notes[0]
