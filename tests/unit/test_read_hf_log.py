"""The dict lines of the Hugging Face Trainer.

No step in them, a filter that hides NaN, and a run that is healthy.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from spiketriage.readers.look import look
from spiketriage.readers.telemetry.consoles import hf_stdout
from spiketriage.readers.telemetry.series.names import DEFAULT


def row(loss, norm, epoch, lr="5e-05", *, quoted=True):
    mark = "'" if quoted else ""
    cells = (("loss", loss), ("grad_norm", norm), ("learning_rate", lr), ("epoch", epoch))
    return (
        "{"
        + ", ".join(f"'{key}': {mark}{value}{mark}" for key, value in cells if value is not None)
        + "}\n"
    )


def read(tmp_path, text):
    path = tmp_path / "train.log"
    path.write_text(text)
    return hf_stdout.read(path, DEFAULT)


def one(facts, name, attempt=0):
    (found,) = [s for s in facts.series if s.name == name and s.attempt == attempt]
    return found


@pytest.mark.parametrize("quoted", [True, False])
def test_quoted_and_bare_numbers_are_the_same(tmp_path, quoted):
    facts = read(
        tmp_path,
        row("4.845", "1.119", "0.0625", quoted=quoted) + row("nan", "nan", "0.125", quoted=quoted),
    )
    loss = one(facts, "loss/mean")
    assert loss.values[0] == 4.845
    assert math.isnan(loss.values[1])
    assert one(facts, "grad/norm").values[0] == 1.119
    assert one(facts, "lr").values.tolist() == [5e-05, 5e-05]


def test_without_a_stated_interval_points_are_numbered_and_not_trusted(tmp_path):
    loss = one(read(tmp_path, row("4", "1", "0.1") + row("3", "1", "0.2")), "loss/mean")
    assert loss.steps.tolist() == [1, 2]
    assert not loss.trusted
    assert "no step" in loss.trust


@pytest.mark.parametrize(
    "setting",
    [
        "logging_steps=25,\n",
        "+ python train.py --logging_steps 25 --lr 1\n",
        "logging_steps: 25\n",
        "'logging_steps': 25,\n",
    ],
)
def test_a_stated_interval_gives_the_steps(tmp_path, setting):
    loss = one(read(tmp_path, setting + row("4", "1", "0.1") + row("3", "1", "0.2")), "loss/mean")
    assert loss.steps.tolist() == [25, 50]
    assert loss.trusted
    assert "logging_steps=25" in loss.trust


def test_the_first_step_may_be_logged_too(tmp_path):
    text = "logging_first_step=True,\nlogging_steps=10,\n" + "".join(
        row("4", "1", f"0.{at}") for at in (1, 2, 3)
    )
    assert one(read(tmp_path, text), "loss/mean").steps.tolist() == [1, 10, 20]


@pytest.mark.parametrize(
    "setting",
    ["logging_steps=0.05,\n", "logging_steps=500,\nlogging_strategy=IntervalStrategy.EPOCH,\n"],
)
def test_an_interval_that_does_not_apply_is_not_used(tmp_path, setting):
    loss = one(read(tmp_path, setting + row("4", "1", "1.0") + row("3", "1", "2.0")), "loss/mean")
    assert (loss.steps.tolist(), loss.trusted) == ([1, 2], False)


def test_the_filter_hides_nan_as_exactly_zero(tmp_path):
    facts = read(
        tmp_path, row("4.5", "1.0", "0.1") + row("0.0", "nan", "0.2") + row("0.0", "inf", "0.3")
    )
    loss = one(facts, "loss/mean")
    assert loss.values[0] == 4.5
    assert [math.isnan(value) for value in loss.values] == [False, True, True]
    assert set(loss.reasons) == {1, 2}
    assert "filter" in loss.reasons[1]


def test_the_trainers_own_output_with_a_planted_nan(tmp_path):
    path = Path(__file__).resolve().parents[2] / "fixtures" / "text_logs" / "hf-stdout.log"
    assert hf_stdout.claims(look(path)) > 0.9
    facts = hf_stdout.read(path, DEFAULT)
    loss = one(facts, "loss/mean")
    assert loss.steps.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [math.isnan(value) for value in loss.values] == [False] * 5 + [True] * 3
    assert set(loss.reasons) == {5, 6, 7}
    assert loss.trusted
    assert (facts.num_near_misses, facts.problems) == (0, ())


def test_a_healthy_run_with_mostly_zero_losses_stays_as_it_is(tmp_path):
    text = "".join(
        row("0.0" if at % 100 < 79 else "0.01", "0.5", f"{at / 1000}") for at in range(1000)
    )
    loss = one(read(tmp_path, text), "loss/mean")
    assert not loss.reasons
    assert (loss.values == 0.0).sum() == 790
    assert not any(math.isnan(value) for value in loss.values)


def test_a_zero_loss_without_any_gradient_norm_stays(tmp_path):
    assert one(read(tmp_path, row("0.0", None, "0.1")), "loss/mean").values.tolist() == [0.0]


def test_progress_bars_and_lines_of_other_programs_do_not_disturb(tmp_path):
    text = (
        "\r  1%|▏         | 10/1000 [00:05<04:05,  2.00it/s]\r"
        + " " * 60
        + "\r"
        + row("4", "1", "0.1").strip()
        + "\n"
        "\r  2%|▏         | 20/1000 [00:05<04:05,  2.00it/s]"
        + row("3", "1", "0.2")
        + "{'a': 1, 'b': 'x'}\n{'loss': 5}\n"
    )
    facts = read(tmp_path, text)
    assert one(facts, "loss/mean").values.tolist() == [4.0, 3.0]
    assert (
        facts.num_near_misses == 1
    )  # the dict with a loss and nothing that the Trainer prints beside it


def test_evaluation_stands_beside_and_the_summary_is_no_point(tmp_path):
    text = (
        row("4", "1", "0.5")
        + "{'eval_loss': '3.9', 'eval_runtime': '1.5', 'epoch': '0.5'}\n"
        + row("3", "1", "1.0")
    )
    summary = (
        "{'train_runtime': '9.5', 'train_samples_per_second': '2.0', 'train_loss': '3.5', "
        "'epoch': '1.0'}\n"
    )
    facts = read(tmp_path, text + summary)
    assert one(facts, "eval_loss").steps.tolist() == [1]
    assert one(facts, "loss/mean").steps.tolist() == [1, 2]
    assert facts.identity["train_runtime"] == "9.5"


def test_an_epoch_that_goes_back_is_a_restart(tmp_path):
    first = "".join(row(str(9 - at), "1", f"{at / 10}") for at in (1, 2, 3, 4))
    facts = read(
        tmp_path, "logging_steps=5,\n" + first + row("6.5", "1", "0.3") + row("5.5", "1", "0.4")
    )
    assert one(facts, "loss/mean", 0).steps.tolist() == [5, 10, 15, 20]
    assert one(facts, "loss/mean", 1).steps.tolist() == [15, 20]
    assert one(facts, "loss/mean", 1).values.tolist() == [6.5, 5.5]
    assert [(one.last_step, one.first_step) for one in facts.rollbacks] == [(20, 15)]


def test_two_dicts_on_one_line_are_two_points(tmp_path):
    facts = read(tmp_path, row("4", "1", "0.1").strip() + row("3", "1", "0.2"))
    assert one(facts, "loss/mean").values.tolist() == [4.0, 3.0]


def test_a_torn_dict_is_a_near_miss(tmp_path):
    facts = read(tmp_path, row("4", "1", "0.1") + row("3", "1", "0.2")[:-9])
    assert one(facts, "loss/mean").values.tolist() == [4.0]
    assert facts.num_near_misses == 1


def test_deepspeed_underneath_keeps_its_overflows(tmp_path):
    overflow = (
        "[deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 256, reducing to 256\n"
    )
    facts = read(tmp_path, row("4", "1", "0.1") + overflow + row("3", "1", "0.2"))
    (event,) = facts.events
    assert (event.kind, event.rank, event.step, event.line) == ("overflow", 0, None, 2)
