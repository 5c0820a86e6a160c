"""Megatron's and DeepSpeed's lines.

What they say, what they hide, and what only looks like a value.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.errors import EvidenceError
from spiketriage.readers.look import look
from spiketriage.readers.telemetry.consoles import (
    deepspeed_stdout,
    megatron_reruns,
    megatron_stdout,
)
from spiketriage.readers.telemetry.series.names import DEFAULT


def iteration(
    step,
    *,
    loss="2.345678E+00",
    norm="0.812",
    skipped=0,
    nans=0,
    scale="1.0",
    time="(ms): 12500.0",
    more="",
):
    cells = [
        f" [2026-08-22 03:14:15.926535] iteration {step:8d}/  500000 ",
        f" consumed samples: {step * 8:12d} ",
        f" elapsed time per iteration {time} ",
        *([more] if more else []),
        " learning rate: 3.000000E-04 ",
        *([f" lm loss: {loss} "] if loss else []),
        f" loss scale: {scale} ",
        *([f" grad norm: {norm} "] if norm else []),
        f" number of skipped iterations: {skipped:3d} ",
        f" number of nan iterations: {nans:3d} ",
    ]
    return "|".join(cells) + "|\n"


def read(tmp_path, text, module=megatron_stdout):
    path = tmp_path / "run.out"
    path.write_text(text)
    return module.read(path, DEFAULT)


def one(facts, name, *, rank=None, attempt=0):
    (found,) = [
        s for s in facts.series if s.name == name and s.rank == rank and s.attempt == attempt
    ]
    return found


def test_cells_are_read_by_name_wherever_they_stand(tmp_path):
    facts = read(
        tmp_path,
        iteration(1000, more=" energy per GPU (J/iter/GPU): 1.5 ")
        + iteration(1001, loss="2.5E+00"),
    )
    loss = one(facts, "loss/mean")
    assert loss.steps.tolist() == [1000, 1001]
    assert loss.values.tolist() == [2.345678, 2.5]
    assert one(facts, "grad/norm").values.tolist() == [0.812, 0.812]
    assert one(facts, "time/step_s").values.tolist() == [12.5, 12.5]
    assert one(facts, "energy per GPU (J/iter/GPU)").steps.tolist() == [1000]
    assert (facts.num_matched, facts.num_near_misses, facts.problems) == (2, 0, ())


def test_a_time_in_seconds_stays_in_seconds(tmp_path):
    assert one(read(tmp_path, iteration(1, time="(s): 2.5")), "time/step_s").values.tolist() == [
        2.5
    ]


@pytest.mark.parametrize(("skipped", "nans"), [(10, 0), (0, 1), (3, 2)])
def test_a_missing_loss_is_nan_with_the_counter_as_the_reason(tmp_path, skipped, nans):
    text = (
        iteration(10)
        + iteration(20, loss=None, norm=None, skipped=skipped, nans=nans)
        + iteration(30)
    )
    facts = read(tmp_path, text)
    loss = one(facts, "loss/mean")
    assert loss.steps.tolist() == [10, 20, 30]
    assert math.isnan(loss.values[1])
    assert not math.isnan(loss.values[2])
    assert list(loss.reasons) == [1]
    assert str(skipped or nans) in loss.reasons[1]
    assert math.isnan(one(facts, "grad/norm").values[1])
    assert {event.kind for event in facts.events} == {
        name for name, count in (("skipped-iterations", skipped), ("nan-iterations", nans)) if count
    }
    assert {event.step for event in facts.events} == {20}


def test_a_loss_that_was_never_printed_because_everything_was_skipped_is_nan(tmp_path):
    loss = one(read(tmp_path, iteration(10, loss=None, norm=None, skipped=10)), "loss/mean")
    assert math.isnan(loss.values[0])


def test_what_loss_scaling_left_out_is_not_logged_and_a_counted_nan_is_nan(tmp_path):
    facts = read(
        tmp_path,
        iteration(10, loss=None, norm=None, skipped=10, scale="8388608.0")
        + iteration(20, loss="0.000000E+00", norm=None, skipped=10, scale="8192.0")
        + iteration(30, skipped=1, scale="4096.0")
        + iteration(40, loss=None, norm=None, skipped=1, nans=1, scale="4096.0"),
    )
    loss, skipped = one(facts, "loss/mean"), one(facts, "loss_scale/skipped")
    assert loss.steps.tolist() == [30, 40]
    assert np.isnan(loss.values).tolist() == [False, True]
    assert one(facts, "grad/norm").steps.tolist() == [30, 40]
    assert skipped.values.tolist() == [10, 10, 1, 1]


def test_a_loss_under_another_name_is_not_reported_as_nan(tmp_path):
    facts = read(tmp_path, iteration(1, loss=None, more=" reward: 1.5 ") + iteration(2, loss=None))
    assert not [s for s in facts.series if s.name == "loss/mean"]
    assert any("no line has a loss" in note for note in facts.notes)


def test_a_loss_of_exactly_zero_over_no_step_is_nan_and_a_real_zero_stays(tmp_path):
    loss = one(
        read(
            tmp_path,
            iteration(1, loss="0.000000E+00", norm=None, skipped=1)
            + iteration(2, loss="0.000000E+00"),
        ),
        "loss/mean",
    )
    assert math.isnan(loss.values[0])
    assert loss.values[1] == 0.0
    assert list(loss.reasons) == [0]


def test_spelled_nonfinite_values_are_nonfinite(tmp_path):
    facts = read(tmp_path, iteration(1, loss="nan", norm="inf"))
    assert math.isnan(one(facts, "loss/mean").values[0])
    assert math.isinf(one(facts, "grad/norm").values[0])


def test_a_metric_that_is_not_wired_is_not_a_zero_gradient(tmp_path):
    facts = read(
        tmp_path, "".join(iteration(step, norm="0.000", scale="-1.0") for step in (1, 2, 3))
    )
    assert not one(facts, "grad/norm").trusted
    assert "not wired" in one(facts, "grad/norm").trust
    assert not one(facts, "loss_scale").trusted
    assert one(facts, "loss/mean").trusted


def test_zero_gradients_with_a_working_loss_scale_are_trusted(tmp_path):
    assert one(
        read(tmp_path, iteration(1, norm="0.000") + iteration(2, norm="0.000")), "grad/norm"
    ).trusted


def test_means_over_an_interval_are_said_to_be_such(tmp_path):
    coarse = read(tmp_path, iteration(10) + iteration(20) + iteration(30))
    assert any("interval of 10 iterations" in note for note in coarse.notes)
    assert not any("interval" in note for note in read(tmp_path, iteration(1) + iteration(2)).notes)


def test_going_back_is_a_new_attempt_and_the_second_value_is_kept(tmp_path):
    facts = read(
        tmp_path,
        iteration(10, loss="1.0E+00")
        + iteration(20, loss="2.0E+00")
        + iteration(20, loss="2.5E+00")
        + iteration(15, loss="3.0E+00")
        + iteration(20, loss="4.0E+00"),
    )
    assert one(facts, "loss/mean", attempt=0).values.tolist() == [1.0, 2.0, 2.5]
    assert one(facts, "loss/mean", attempt=1).values.tolist() == [3.0, 4.0]
    (rollback,) = facts.rollbacks
    assert (rollback.attempt, rollback.last_step, rollback.first_step) == (1, 20, 15)


def test_ranks_that_collide_on_a_line_keep_their_own_values(tmp_path):
    first, second = iteration(1, loss="1.0E+00").strip(), iteration(1, loss="2.0E+00").strip()
    facts = read(
        tmp_path,
        f"[default0]:{first}[default7]:{second}\n\n[default0]:{iteration(2, loss='1.5E+00')}",
    )
    assert one(facts, "loss/mean", rank=0).values.tolist() == [1.0, 1.5]
    assert one(facts, "loss/mean", rank=7).values.tolist() == [2.0]
    assert any("torchrun's local rank" in note for note in facts.notes)


def test_the_rank_of_a_memory_report_is_not_the_rank_of_the_iteration_behind_it(tmp_path):
    facts = read(
        tmp_path, "[Rank 7] (after 20 iterations) memory (MB) | allocated: 2.5" + iteration(1)
    )
    assert one(facts, "loss/mean").steps.tolist() == [1]


def test_a_record_that_a_collision_cut_short_is_no_nan(tmp_path):
    cut = (
        iteration(2).split("lm loss")[0]
        + "lm loss: 2.3[Rank 6] (after 20 iterations) memory (MB) | allocated: 2 |\n"
    )
    facts = read(tmp_path, iteration(1) + cut + iteration(3))
    assert one(facts, "loss/mean").steps.tolist() == [1, 3]
    assert one(facts, "lr").steps.tolist() == [1, 2, 3]
    assert not [s for s in facts.series if "allocated" in s.name]
    assert any("cut short" in problem for problem in facts.problems)


def test_the_torn_last_line_gives_its_whole_cells_only(tmp_path):
    text = iteration(1) + iteration(2)
    facts = read(tmp_path, text[: text.rindex("lm loss") + 12])
    assert one(facts, "loss/mean").steps.tolist() == [1]
    assert not one(facts, "loss/mean").reasons


def test_a_launcher_that_writes_no_bar_after_the_last_cell_is_read_to_its_end(tmp_path):
    line = (
        "iteration     4873/   10000 | consumed samples:       311872 | lm loss: 3.296875E+00 "
        "| throughput: 7.340\n"
    )
    facts = read(tmp_path, line)
    assert one(facts, "throughput").values.tolist() == [7.34]
    assert one(facts, "loss/mean").values.tolist() == [3.296875]
    assert facts.problems == ()


def test_validation_stands_beside_and_begins_no_attempt(tmp_path):
    validation = (
        " validation loss at iteration 100 on test set | lm loss value: 8.0E+00 | lm loss PPL: "
        "3.0E+03 | \n"
    )
    facts = read(tmp_path, iteration(110) + validation + iteration(120))
    assert one(facts, "validation on test set lm loss value").values.tolist() == [8.0]
    assert not facts.rollbacks


def test_source_code_and_arguments_are_no_iterations(tmp_path):
    code = (
        "log_string = ' iteration {:8d}/{:8d} |'.format(iteration, args.train_iters)\n  "
        "eval_iters ....... 10\n"
    )
    facts = read(tmp_path, code + iteration(1))
    assert facts.num_matched == 1
    path = tmp_path / "code.out"
    path.write_text(code)
    assert megatron_stdout.claims(look(path)) == 0
    with pytest.raises(EvidenceError, match="none of its"):
        megatron_stdout.read(path, DEFAULT)


def test_the_first_iteration_may_come_late(tmp_path):
    path = tmp_path / "run.out"
    path.write_text(
        "building a vocabulary\n" * 60_000 + "".join(iteration(step) for step in range(5))
    )
    assert megatron_stdout.claims(look(path)) > 0.9


@settings(max_examples=50)
@given(
    cut=st.integers(0, 900),
    flips=st.lists(st.tuples(st.integers(0, 899), st.integers(0, 255)), max_size=4),
)
def test_damage_never_crashes_the_reader(tmp_path_factory, cut, flips):
    data = bytearray("".join(iteration(step) for step in (1, 2, 3)).encode())
    for at, byte in flips:
        data[at % len(data)] = byte
    path = tmp_path_factory.mktemp("meg") / "run.out"
    path.write_bytes(bytes(data[: len(data) - cut]))
    assert 0 <= megatron_stdout.claims(look(path)) <= 1
    try:
        facts = megatron_stdout.read(path, DEFAULT)
    except EvidenceError:
        return
    assert all(len(series.steps) == len(series.values) > 0 for series in facts.series)


RERUN = (
    "ts=2026-08-22 03:14:15.926535 node=node17 device=3 jobID=4711 rank=17 iteration=1001 "
    "status={status} result={result} message='Unexpected result nan, rejected'\n"
)


@pytest.mark.parametrize(
    ("status", "severity", "word"),
    [
        ("first_rerun_not_reproducible", "error", "transient"),
        ("RerunValidationStatus.FIRST_RERUN_REPRODUCIBLE", "error", "same device"),
        ("second_rerun_not_reproducible", "error", "persistent"),
        ("second_rerun_reproducible", "error", "not the hardware"),
        ("initial_run", "warning", "first run"),
        ("something_new", "warning", "not known"),
    ],
)
def test_a_rerun_record_is_ready_made_evidence(tmp_path, status, severity, word):
    facts = read(
        tmp_path,
        RERUN.format(status=status, result="tensor(nan, device='cuda:3')"),
        megatron_reruns,
    )
    (event,) = facts.events
    assert (event.severity, event.rank, event.step, event.host, event.device) == (
        severity,
        17,
        1001,
        "node17",
        "3",
    )
    assert word in event.sentence
    assert event.at == "2026-08-22 03:14:15.926535"
    assert math.isnan(facts.series[0].values[0])


def test_rerun_records_that_were_torn_are_counted(tmp_path):
    whole = RERUN.format(status="initial_run", result="1.5")
    facts = read(tmp_path, whole + whole[:-20], megatron_reruns)
    assert (len(facts.events), facts.num_near_misses) == (1, 1)
    assert facts.series[0].values.tolist() == [1.5]


DEEPSPEED = (
    Path(__file__).resolve().parents[2] / "fixtures/text_logs/deepspeed-stdout.log"
).read_text()


def test_deepspeed_tells_overflows_and_skips_and_no_loss(tmp_path):
    facts = read(tmp_path, DEEPSPEED, deepspeed_stdout)
    assert one(facts, "lr").values.tolist() == [0.0003, 0.0002]
    assert one(facts, "RunningAvgSamplesPerSec").steps.tolist() == [20]
    assert [(event.kind, event.rank) for event in facts.events] == [
        ("skipped-steps", 0),
        ("overflow", 0),
        ("overflow", 3),
        ("overflow-in-tensor", 5),
        ("skipped-steps", 0),
        ("loss-scale-at-minimum", None),
    ]
    assert "65536" in facts.events[1].sentence
    assert "32768" in facts.events[1].sentence
    assert facts.events[-1].severity == "fatal"
    assert any("no loss" in note for note in facts.notes)


def test_the_older_throughput_line_of_deepspeed_has_its_step_too(tmp_path):
    facts = read(
        tmp_path,
        "[timer.py:198:stop] 0/30, RunningAvgSamplesPerSec=232.5, CurrSamplesPerSec=inf\n",
        deepspeed_stdout,
    )
    assert one(facts, "RunningAvgSamplesPerSec").steps.tolist() == [30]
    assert math.isinf(one(facts, "CurrSamplesPerSec").values[0])


def test_megatron_on_deepspeed_keeps_the_overflows(tmp_path):
    facts = read(tmp_path, iteration(1) + DEEPSPEED + iteration(2))
    assert [event.kind for event in facts.events].count("overflow") == 2
    path = tmp_path / "run.out"
    assert megatron_stdout.claims(look(path)) > deepspeed_stdout.claims(look(path)) > 0
