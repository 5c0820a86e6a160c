"""Real logs of the corpus, with the values that grep and awk read off them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from spiketriage.readers.look import best, look
from spiketriage.readers.telemetry.formats import FORMATS
from spiketriage.readers.telemetry.series.names import DEFAULT

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"
pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not on this machine")


def read(name, format):
    path = CORPUS / name
    found = best(FORMATS, look(path))
    assert found is not None
    reader, confidence = found
    assert (reader.NAME, confidence >= 0.8) == (format, True)
    facts = reader.read(path, DEFAULT)
    assert facts.problems == ()
    assert facts.num_near_misses == 0
    assert facts.rollbacks == ()
    return facts


def one(facts, name):
    (found,) = [s for s in facts.series if s.name == name]
    return found


def at(series, step):
    (found,) = series.values[series.steps == step]
    return found


def test_llmc_main_log():
    facts = read("llmc_main.log", "llmc")
    loss, norm, test = one(facts, "loss/mean"), one(facts, "grad/norm"), one(facts, "tel")
    assert np.array_equal(loss.steps, np.arange(1, 19561))  # `s:0` is the first step
    assert (loss.values[0], at(loss, 10_001), loss.values[-1]) == (11.0091, 3.3851, 3.2217)
    assert math.isclose(loss.values.sum(), 69958.6296, abs_tol=1e-4)
    assert (norm.values.max(), norm.values[0], at(norm, 10_001), norm.values[-1]) == (
        15.37,
        15.37,
        0.30,
        0.22,
    )
    assert at(one(facts, "lr"), 10_001) == 0.000306
    assert (len(test.steps), at(test, 0), at(test, 10_000), at(test, 19560)) == (
        80,
        11.0092,
        3.3924,
        3.2722,
    )


def test_nanogpt_in_bits_per_character():
    facts = read("nanogpt_jack_output.log", "nanogpt-stdout")
    loss, validation = one(facts, "loss/mean"), one(facts, "val loss")
    assert np.array_equal(loss.steps, np.arange(1, 5002, 10))  # `iter 0` is the first step
    assert (loss.values[0], at(loss, 2501), loss.values[-1]) == (12.5435, 1.7130, 1.5822)
    assert math.isclose(loss.values.sum(), 995.8718, abs_tol=1e-4)
    assert "BPC" in loss.trust
    assert (len(validation.steps), at(validation, 2500), at(validation, 5000)) == (
        21,
        1.7035,
        1.5617,
    )
    assert at(one(facts, "time/step_s"), 1) == pytest.approx(242.62093)
    assert (
        at(one(facts, "mfu"), 5001) == 6.79
    )  # the last line has no line feed, yet its value is whole


def test_megatron_at_the_start_of_fp16():
    facts = read("meg_base_n4.out", "megatron-stdout")
    loss, norm, scale = one(facts, "loss/mean"), one(facts, "grad/norm"), one(facts, "loss_scale")
    # Loss scaling stepped nothing up to 10 and not at 20: what the lines leave out was finite.
    assert np.array_equal(loss.steps, np.arange(20, 201, 10))
    assert np.array_equal(norm.steps, np.arange(30, 201, 10))
    assert loss.reasons == {}
    assert not np.isnan(loss.values).any()
    assert not np.isnan(norm.values).any()
    assert (at(loss, 20), at(loss, 30), at(loss, 200)) == (12.03115, 22.47505, 7.365868)
    assert math.isclose(np.nansum(loss.values), 174.09310, abs_tol=1e-5)
    assert (at(norm, 40), at(scale, 10), at(scale, 200)) == (51.641, 8388608.0, 16384.0)
    assert [(event.kind, event.step) for event in facts.events] == [
        ("skipped-iterations", step) for step in (10, 20, 30)
    ]
    assert one(facts, "loss_scale/skipped").values[:4].tolist() == [10, 8, 1, 0]
    assert one(facts, "validation lm loss value").values.tolist() == [8.017406, 7.487306]
    assert norm.trusted


def test_megatron_on_deepspeed_with_metrics_that_are_not_wired():
    facts = read("meg_ds3d_n16_on.out", "megatron-stdout")
    loss, norm = one(facts, "loss/mean"), one(facts, "grad/norm")
    assert np.array_equal(loss.steps, np.arange(1, 50))
    assert (loss.values[0], at(loss, 4), loss.values[-1]) == (12.44238, 43.05696, 7.747273)
    assert math.isclose(loss.values.sum(), 657.91232, abs_tol=1e-5)
    assert loss.written_as == "lm-loss"
    assert loss.trusted
    assert (norm.trusted, one(facts, "loss_scale").trusted) == (False, False)
    assert not facts.events
    assert at(one(facts, "time/step_s"), 1) == pytest.approx(159.7789)


def test_hf_on_deepspeed_that_skipped_its_only_step():
    facts = read("hfds_perf_n16.out", "hf-stdout")
    (event,) = facts.events
    assert (event.kind, event.rank, event.line) == ("overflow", 0, 1566)
    assert "256" in event.sentence
    assert facts.series == ()
    assert any("no line has a loss" in note for note in facts.notes)
    assert any(note.startswith("16 closing summaries") for note in facts.notes)
    assert facts.identity["train_runtime"] == "273.0148"


def test_torchtitan_golden_losses():
    facts = read("titan_golden_llama3_cuda.txt", "torchtitan-golden")
    loss = one(facts, "loss/mean")
    assert np.array_equal(loss.steps, np.arange(1, 101))
    assert (loss.values[0], loss.values[-1]) == (8.049097061157227, 2.746471643447876)
    assert loss.steps[loss.values.argmin()] == 98
    assert math.isclose(loss.values.sum(), 310.770110607, abs_tol=1e-8)


def test_no_other_file_of_the_corpus_is_taken_for_a_text_log():
    ours = {"llmc_main.log", "nanogpt_jack_output.log", "titan_golden_llama3_cuda.txt"}
    text_formats = [
        reader
        for reader in FORMATS
        if reader.NAME.endswith("-stdout")
        or reader.NAME in ("llmc", "torchtitan-golden", "modded-nanogpt", "megatron-reruns")
    ]
    for path in sorted(CORPUS.iterdir()):
        if path.suffix != ".out" and path.name not in ours:
            assert {path.name: [r.NAME for r in text_formats if r.claims(look(path)) > 0]} == {
                path.name: []
            }
