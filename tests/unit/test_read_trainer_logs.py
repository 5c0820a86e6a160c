"""The console of each trainer.

Values and steps as a person reads them, and the lines that only look alike.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.errors import EvidenceError
from spiketriage.readers.look import best, look
from spiketriage.readers.telemetry.consoles import (
    composer_stdout,
    deepspeed_stdout,
    hf_stdout,
    litgpt_stdout,
    llmc_log,
    megatron_reruns,
    megatron_stdout,
    modded_nanogpt,
    nanogpt_stdout,
    nanotron_stdout,
    olmo_stdout,
    torchtitan_golden,
    torchtitan_stdout,
)
from spiketriage.readers.telemetry.series.names import DEFAULT, Names

MODULES = (
    megatron_reruns,
    llmc_log,
    megatron_stdout,
    torchtitan_stdout,
    nanotron_stdout,
    olmo_stdout,
    composer_stdout,
    modded_nanogpt,
    nanogpt_stdout,
    litgpt_stdout,
    hf_stdout,
    torchtitan_golden,
    deepspeed_stdout,
)

LOGS = Path(__file__).resolve().parents[2] / "fixtures" / "text_logs"
TITAN = (LOGS / "torchtitan-stdout.log").read_bytes().decode()
NANOTRON = (LOGS / "nanotron-stdout.log").read_bytes().decode()
OLMO = (LOGS / "olmo-stdout.log").read_bytes().decode()
COMPOSER = (LOGS / "composer-stdout.log").read_bytes().decode()
LLMC_FILE = (LOGS / "llmc.log").read_bytes().decode()
LLMC_STDOUT = (LOGS / "llmc.stdout.log").read_bytes().decode()
NANOGPT = (LOGS / "nanogpt-stdout.log").read_bytes().decode()
MODDED = (LOGS / "modded-nanogpt.log").read_bytes().decode()
LITGPT = (LOGS / "litgpt-stdout.log").read_bytes().decode()
GOLDEN = (LOGS / "torchtitan-golden.log").read_bytes().decode()
HF = (LOGS / "hf-stdout.log").read_bytes().decode()
MEGATRON = (LOGS / "megatron-stdout.log").read_bytes().decode()
RERUNS = (LOGS / "megatron-reruns.log").read_bytes().decode()
DEEPSPEED = (LOGS / "deepspeed-stdout.log").read_bytes().decode()
EXAMPLES = (
    (torchtitan_stdout, TITAN),
    (nanotron_stdout, NANOTRON),
    (olmo_stdout, OLMO),
    (composer_stdout, COMPOSER),
    (llmc_log, LLMC_FILE),
    (llmc_log, LLMC_STDOUT),
    (nanogpt_stdout, NANOGPT),
    (modded_nanogpt, MODDED),
    (litgpt_stdout, LITGPT),
    (torchtitan_golden, GOLDEN),
    (hf_stdout, HF),
    (megatron_stdout, MEGATRON),
    (megatron_reruns, RERUNS),
    (deepspeed_stdout, DEEPSPEED),
)


def write(tmp_path, text):
    path = tmp_path / "run.log"
    path.write_bytes(text.encode())
    return path


def read(tmp_path, module, text, names=DEFAULT):
    return module.read(write(tmp_path, text), names)


def one(facts, name):
    (found,) = [s for s in facts.series if s.name == name]
    return found


@pytest.mark.parametrize(("module", "text"), EXAMPLES)
def test_a_log_is_claimed_by_its_own_format_only(tmp_path, module, text):
    seen = look(write(tmp_path, text))
    found = best(MODULES, seen)
    assert found is not None
    assert found[0] is module
    assert [other.NAME for other in MODULES if other is not module and other.claims(seen) > 0] == []


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n",
        b"just some words\n" * 50,
        b'{"step": 1, "loss": 2.0}\n' * 9,
        bytes(range(256)) * 9,
    ],
)
def test_what_is_no_log_is_claimed_by_none_and_refused(tmp_path, module, data):
    path = tmp_path / "other.log"
    path.write_bytes(data)
    assert module.claims(look(path)) == 0
    assert module.claims(look(tmp_path)) == 0
    with pytest.raises(EvidenceError):
        module.read(path, DEFAULT)


@pytest.mark.parametrize(("module", "text"), EXAMPLES)
@settings(max_examples=25)
@given(data=st.data())
def test_damage_gives_facts_or_a_refusal(tmp_path_factory, module, text, data):
    raw = bytearray(text.encode())
    for at, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=5)
    ):
        raw[at] = byte
    path = tmp_path_factory.mktemp("damaged") / "run.log"
    path.write_bytes(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    assert 0 <= module.claims(look(path)) <= 1
    try:
        facts = module.read(path, DEFAULT)
    except EvidenceError:
        return
    assert all(len(series.steps) == len(series.values) > 0 for series in facts.series)
    assert facts.num_matched + facts.num_near_misses <= 2 * facts.num_lines


@pytest.mark.parametrize(("module", "text"), EXAMPLES)
def test_names_of_the_run_come_before_ours(tmp_path, module, text):
    written = {series.written_as for series in read(tmp_path, module, text).series}
    facts = read(tmp_path, module, text, Names(columns={name: f"my/{name}" for name in written}))
    assert {series.name for series in facts.series} == {f"my/{name}" for name in written}


def test_torchtitan(tmp_path):
    facts = read(tmp_path, torchtitan_stdout, TITAN)
    loss, norm = one(facts, "loss/mean"), one(facts, "grad/norm")
    assert (loss.rank, loss.steps.tolist(), loss.values[0]) == (0, [1, 10], 12.24712)
    assert math.isnan(loss.values[1])
    assert math.isinf(norm.values[1])
    assert one(facts, "tflops").values.tolist() == [1412.11, 412.11]
    assert one(facts, "mfu").steps.tolist() == [10]
    assert one(facts, "memory").values.tolist() == [62.1, 62.1]
    assert one(facts, "validate loss").values.tolist() == [7.1234]
    assert (facts.num_matched, facts.rollbacks) == (3, ())


def test_torchtitan_validation_only_is_not_a_training_log(tmp_path):
    facts = read(
        tmp_path,
        torchtitan_stdout,
        "validate step: 10  loss:  7.1234  memory: 1.00GiB(1.00%)  tps: 7,012\n",
    )
    assert {series.name for series in facts.series} == {
        "validate loss",
        "validate memory",
        "validate tps",
    }


def test_golden_losses_keep_every_digit(tmp_path):
    facts = read(tmp_path, torchtitan_golden, GOLDEN)
    assert one(facts, "loss/mean").values.tolist() == [
        8.049097061157227,
        7.75183629989624,
        7.032886028289795,
    ]
    torn = read(tmp_path, torchtitan_golden, GOLDEN + "4 6.15490")
    assert one(torn, "loss/mean").steps.tolist() == [1, 2, 3]
    assert torn.num_near_misses == 1


@pytest.mark.parametrize(
    "text", ["1 2\n2 3\n3 4\n", "3 1.5\n2 1.5\n1 1.5\n", "1 1.5\n2 x\n3 1.5\n", "1 1.5\n2 1.5\n"]
)
def test_a_table_that_is_no_golden_file_is_not_claimed(tmp_path, text):
    assert torchtitan_golden.claims(look(write(tmp_path, text))) == 0


def test_nanotron(tmp_path):
    facts = read(tmp_path, nanotron_stdout, NANOTRON)
    loss = one(facts, "loss/mean")
    assert (loss.steps.tolist(), loss.values[0]) == ([1000, 1001], 2.35)
    assert math.isnan(loss.values[1])
    assert one(facts, "grad/norm").values.tolist() == [0.812, math.inf]
    assert "before clipping" in one(facts, "grad/norm").trust
    assert one(facts, "tokens/total").values.tolist() == [4.19e9, 4.2e9]
    assert one(facts, "time/step_s").values.tolist() == [1.25, 0.5]
    assert one(facts, "tokens_per_sec").values.tolist() == [1.7e6]
    assert facts.identity["printed_by"] == "DP=0 PP=3 TP=0"


def test_olmo_takes_only_the_lines_that_follow_a_header(tmp_path):
    facts = read(tmp_path, olmo_stdout, OLMO)
    loss = one(facts, "loss/mean")
    assert (loss.steps.tolist(), loss.values[0], loss.written_as) == (
        [1000, 1001],
        2.346,
        "train/CE loss",
    )
    assert math.isnan(loss.values[1])
    assert one(facts, "grad/norm").values.tolist() == [0.8123, math.inf]
    assert one(facts, "tokens/total").values.tolist() == [4.19e9]
    assert not [series for series in facts.series if series.name == "other/value"]


def test_composer_counts_batches_of_the_run(tmp_path):
    facts = read(tmp_path, composer_stdout, COMPOSER)
    loss = one(facts, "loss/mean")
    assert (loss.steps.tolist(), loss.values[0]) == ([1000, 1001], 2.3456)
    assert math.isnan(loss.values[1])
    assert one(facts, "eval metrics/eval/LanguageCrossEntropy").steps.tolist() == [1000]


def test_composer_epochs_are_no_rollbacks(tmp_path):
    record = "[epoch={}][batch={}/100]:\n\t Train loss/train/total: 2.0\n"
    facts = read(tmp_path, composer_stdout, record.format(1, 100) + record.format(2, 1))
    assert one(facts, "loss/mean").steps.tolist() == [100, 101]
    assert not facts.rollbacks
    assert any("every epoch" in note for note in facts.notes)


def test_composer_under_srun_with_spaces_for_tabs_and_a_batch_count_of_its_own(tmp_path):
    record = (
        "0: [epoch={}][batch={}/5]:\n0:          Train time/batch: {}\n0:          Train "
        "loss/train/total: 8.4213\n"
    )
    facts = read(tmp_path, composer_stdout, record.format(1, 5, 4) + record.format(3, 1, 10))
    loss = one(facts, "loss/mean")
    assert (loss.rank, loss.steps.tolist(), loss.values.tolist()) == (0, [5, 11], [8.4213, 8.4213])


def test_olmo_without_tabs_and_with_commas_in_the_step(tmp_path):
    line = (
        "2026-08-08 12:01:00 INFO [olmo_core.train.callbacks.console_logger:68] "
        "[step={},epoch=0,eta=5h11m]\n"
    )
    text = (
        line.format("1,100/2,000")
        + "    train/CE loss=6.2341\n"
        + line.format("1,200/2,000")
        + "    train/CE loss=5.8\n"
    )
    assert one(read(tmp_path, olmo_stdout, text), "loss/mean").steps.tolist() == [1100, 1200]


def test_composer_tokens_are_not_taken_for_steps(tmp_path):
    record = "[token={}/1000000]:\n\t Train loss/train/total: 2.0\n"
    facts = read(tmp_path, composer_stdout, record.format(4096) + record.format(8192))
    assert facts.series == ()
    assert any("left out" in note for note in facts.notes)


def test_llmc_main_log(tmp_path):
    facts = read(tmp_path, llmc_log, LLMC_FILE)
    loss = one(facts, "loss/mean")
    assert (loss.steps.tolist(), loss.values[0]) == ([1, 2], 11.0091)
    assert math.isnan(loss.values[1])
    assert one(facts, "grad/norm").values.tolist() == [15.37, math.inf]
    assert one(facts, "tel").values.tolist() == [11.0092]
    assert any("from 0" in note for note in facts.notes)
    assert one(facts, "eval").steps.tolist() == [1]


def test_llmc_standard_output_counts_finished_steps_itself(tmp_path):
    facts = read(tmp_path, llmc_log, LLMC_STDOUT)
    assert one(facts, "loss/mean").steps.tolist() == [1, 2]
    assert one(facts, "loss/mean").values.tolist() == [11.0091, 7.123456]
    assert one(facts, "grad/norm").values.tolist() == [15.37, 1.2345]
    assert one(facts, "time/step_s").values.tolist() == [0.25, 0.5]
    assert math.isnan(one(facts, "loss z-score").values[0])
    assert one(facts, "norm z-score").values[1] == -0.52
    assert one(facts, "val loss").steps.tolist() == [2]
    assert not any("from 0" in note for note in facts.notes)


def test_nanogpt_does_not_take_the_evaluation_for_the_step(tmp_path):
    facts = read(tmp_path, nanogpt_stdout, NANOGPT)
    loss = one(facts, "loss/mean")
    assert (loss.steps.tolist(), loss.values[0]) == ([1, 11], 4.25)
    assert math.isnan(loss.values[1])
    assert "nats" not in loss.trust
    assert one(facts, "val loss").values.tolist() == [4.3]
    assert one(facts, "time/step_s").values.tolist() == [0.5, 0.25]
    assert any("from 0" in note for note in facts.notes)


def test_bits_per_character_are_said_to_be_bits(tmp_path):
    facts = read(tmp_path, nanogpt_stdout, "iter 0: loss 1.5 BPC, time 1.00ms, mfu 1.00%\n")
    assert "BPC" in one(facts, "loss/mean").trust
    assert any("BPC" in note for note in facts.notes)


def test_source_code_at_the_head_of_a_log_is_no_step(tmp_path):
    facts = read(tmp_path, modded_nanogpt, MODDED)
    assert (facts.num_matched, facts.num_near_misses) == (3, 0)
    assert one(facts, "val_loss").values.tolist() == [10.8258]
    assert one(facts, "loss/mean").steps.tolist() == [1, 2]
    assert one(facts, "train_time").values.tolist() == [0.0, 0.5, 0.75]
    (tmp_path / "code.log").write_text(MODDED[: MODDED.index("=" * 100)])
    assert modded_nanogpt.claims(look(tmp_path / "code.log")) == 0


def test_litgpt_keeps_every_iteration_of_a_step(tmp_path):
    facts = read(tmp_path, litgpt_stdout, LITGPT)
    loss = one(facts, "loss/mean")
    assert (loss.steps.tolist(), loss.values[:2].tolist()) == ([1, 2, 2], [2.5, 2.346])
    assert math.isnan(loss.values[2])
    assert one(facts, "loss val").steps.tolist() == [2]
    assert one(facts, "iter").values.tolist() == [7, 8, 9]


def test_a_log_that_begins_anew_is_a_second_attempt(tmp_path):
    facts = read(
        tmp_path,
        llmc_log,
        "s:5 trl:3.0 lr:0.1 norm:1.0\ns:4 trl:2.0 lr:0.1 norm:1.0\ns:5 trl:9.0 lr:0.1 norm:1.0\n",
    )
    losses = [
        (s.attempt, s.steps.tolist(), s.values.tolist())
        for s in facts.series
        if s.name == "loss/mean"
    ]
    assert losses == [(0, [6], [3.0]), (1, [5, 6], [2.0, 9.0])]
    assert [(one.attempt, one.last_step, one.first_step) for one in facts.rollbacks] == [(1, 6, 5)]


def test_a_restart_of_all_ranks_is_one_rollback(tmp_path):
    line = "{}: iter {}: loss 2.5, time 1.00ms\n"
    text = "".join(line.format(rank, step) for step in (10, 20, 10) for rank in (0, 1))
    facts = read(tmp_path, nanogpt_stdout, text)
    assert len(facts.rollbacks) == 1
    assert sorted({(s.attempt, s.rank) for s in facts.series}) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_an_absurd_step_is_a_near_miss(tmp_path):
    facts = read(
        tmp_path,
        nanogpt_stdout,
        "iter 1: loss 2.5, time 1.00ms\niter " + "9" * 400 + ": loss 2.5, time 1.00ms\n",
    )
    assert (facts.num_matched, facts.num_near_misses) == (1, 1)
    assert any("could not be read" in problem for problem in facts.problems)


TOKENS = (
    "a",
    " ",
    "{'a",
    "'loss': ",
    "1",
    "1/",
    "[",
    "[rank1]:",
    "step:1 ",
    "iteration 1/1 | ",
    "s:1 ",
    "x:1 ",
    "ts=a ",
    "\x1b]",
)


@pytest.mark.parametrize("token", TOKENS)
def test_endless_repetitions_cost_no_more_than_a_pass(tmp_path, token):
    path = tmp_path / "run.log"
    path.write_text((token * (50_000 // len(token)) + "!\n") * 2 + token * 10_000)
    for module in MODULES:
        assert 0 <= module.claims(look(path)) <= 1
        with contextlib.suppress(EvidenceError):
            module.read(path, DEFAULT)


def test_a_step_that_no_run_reaches_is_left_out(tmp_path):
    record = "[epoch={}][batch=1/{}]:\n\t Train loss/train/total: 2.0\n"
    facts = read(
        tmp_path, composer_stdout, record.format(1, 100) + record.format(999999999, 10**17)
    )
    assert one(facts, "loss/mean").steps.tolist() == [1]
    assert any("no run reaches" in problem for problem in facts.problems)
