"""The check that holds a logged learning rate against the schedule that the run's settings declare."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic_view import SyntheticRun

from spiketriage.diagnosis.checks import declared_lr
from spiketriage.diagnosis.schedule import declared
from spiketriage.nouns.series import LogFacts, Series
from spiketriage.readers.telemetry.run.lineage import Telemetry
from spiketriage.readers.telemetry.run.sources import read_telemetry
from spiketriage.runbook import check, freeze

HUGGING_FACE = {
    "config/lr_scheduler_type": "SchedulerType.LINEAR",
    "config/learning_rate": "0.0002",
    "config/warmup_steps": "100",
    "config/max_steps": "1100",
}
ARGUMENTS = {
    "lr": "0.0003",
    "min_lr": "3e-05",
    "lr_decay_style": "cosine",
    "lr_decay_iters": "None",
    "lr_warmup_fraction": "0.1",
    "lr_warmup_iters": "0",
    "train_iters": "1000",
    "train_samples": "None",
}


def linear(step):
    return 2e-4 * (step / 100 if step < 100 else (1100 - step) / 1000)


def cosine(step):
    if step < 100:
        return 3e-4 * step / 100
    return 3e-5 + 2.7e-4 * (1 + math.cos(math.pi * (step - 100) / 900)) / 2


def finding(identity, steps, rates, attempts=None):
    attempts = np.zeros(len(steps), dtype=np.int64) if attempts is None else np.asarray(attempts)
    parts = []
    for attempt in np.unique(attempts).tolist():
        own = attempts == attempt
        parts.append(
            Series(
                source="run.wandb",
                name="lr",
                written_as="train/learning_rate",
                attempt=attempt,
                rank=None,
                steps=np.asarray(steps, dtype=np.int64)[own],
                values=np.asarray(rates, dtype=np.float64)[own],
            )
        )
    log = LogFacts(format="x", path=Path("run.wandb"), series=tuple(parts), identity=identity)
    telemetry = Telemetry(segments=(), problems=(), logs=(log,))
    (found,) = declared_lr.run(replace(SyntheticRun().view(), telemetry=telemetry))
    return found


STEPS = range(10, 1101, 10)


@pytest.mark.parametrize("shift", [-1, 0, 1, 30])
def test_a_rate_that_follows_is_silent_whichever_step_a_log_means_and_after_skipped_ones(shift):
    rates = [linear(max(0, step - shift)) for step in STEPS]
    assert finding(HUGGING_FACE, STEPS, rates).outcome == "agrees"


def test_a_schedule_that_began_anew_is_named_with_both_rates_and_dates_the_onset():
    rates = [linear(step if step < 600 else step - 600) for step in STEPS]
    found = finding(HUGGING_FACE, STEPS, rates)
    assert (found.outcome, found.judged, found.where.step) == ("differs", True, 600)
    assert (float(found.seen), float(found.expected)) == (0.0, pytest.approx(1e-4))
    assert "warmup-linear to 0.0002, 100 steps of warm-up, 1100 in all" in found.summary
    assert found.summary.endswith("it had followed that until then")


def test_a_schedule_that_was_never_followed_is_context():
    found = finding(HUGGING_FACE, STEPS, [2e-3] * len(STEPS))
    assert (found.outcome, found.judged, found.where.step) == ("differs", False, 10)
    assert "it never followed that, or steps are counted otherwise" in found.summary


def test_a_line_or_two_that_are_garbled_are_no_fault():
    rates = [linear(step) for step in STEPS]
    rates[50] = rates[51] = 7.0
    assert finding(HUGGING_FACE, STEPS, rates).outcome == "agrees"


def test_settings_are_those_of_the_newest_attempt():
    rates = [3e-3] * 30 + [linear(step) for step in STEPS][30:]
    attempts = [0] * 30 + [1] * (len(STEPS) - 30)
    assert finding(HUGGING_FACE, STEPS, rates, attempts).outcome == "agrees"


@pytest.mark.parametrize("identity", [{}, {"config/lr_scheduler_type": "polynomial"}])
def test_what_is_not_declared_or_not_known_is_not_tested(identity):
    rates = [linear(step) for step in STEPS]
    assert finding(identity, STEPS, rates).outcome == "not testable"


def test_our_own_runs_have_a_manifest_for_that():
    assert declared_lr.run(SyntheticRun().view()) == ()


def megatron_log(folder, rate):
    lines = ["------------------------ arguments ------------------------"]
    lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in ARGUMENTS.items()]
    lines += [
        f" iteration {step:8d}/    1000 | consumed samples: {step * 8:12d} | learning rate: "
        f"{rate(step):.3E} | global batch size:     8 | lm loss: {3 - step / 1000:.6E} | "
        "loss scale: 1.0 | grad norm: 1.000 |"
        for step in range(10, 801, 10)
    ]
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    return replace(SyntheticRun().view(), telemetry=read_telemetry(folder))


def test_the_arguments_that_megatron_prints_declare_a_schedule(tmp_path):
    (found,) = declared_lr.run(megatron_log(tmp_path, cosine))
    assert found.outcome == "agrees"
    assert found.summary == "the learning rate of 80 rows is the declared one"


def test_a_megatron_scheduler_that_stands_still_is_named(tmp_path):
    (found,) = declared_lr.run(megatron_log(tmp_path, lambda step: cosine(min(step, 400))))
    assert (found.outcome, found.judged) == ("differs", True)
    assert 440 < found.where.step <= 520  # the rates of 40 skipped steps and more are no fault


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "config.json",
            '{"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "linear", '
            '"warmup_max_lr": 2e-4, "warmup_num_steps": 100, "total_num_steps": 1100}}}',
        ),
        (
            "train.toml",
            "[optimizer]\nlr = 2e-4\n[training]\nsteps = 1100\n"
            '[lr_scheduler]\nwarmup_steps = 100\ndecay_type = "linear"\n',
        ),
    ],
)
def test_a_frozen_configuration_declares_a_schedule(tmp_path, name, text):
    run = tmp_path / "run"
    run.mkdir()
    (run / name).write_text(text)
    (run / "spiketriage.toml").write_text(
        f'schema = 1\n[run]\nid = "x"\nconfig = "{name}"\ntelemetry = "train.jsonl"\n'
    )
    rows = []
    for step in range(1, 1001):
        rate = linear(step) if step < 700 else 2e-4
        rows.append(json.dumps({"step": step, "loss": 3 - step / 1000, "lr": rate}))
    (run / "train.jsonl").write_text("\n".join(rows) + "\n")
    frozen = freeze.run(run, incidents=None, incident=None, argv=())
    checked = check.run(run, incidents=None, incident=frozen.incident, argv=())
    found = next(item for item in checked.data["findings"] if item["name"] == "declared-lr")
    assert (found["outcome"], found["where"]["step"]) == ("differs", 700)
    assert float(found["expected"]) == pytest.approx(8e-5)


def expected(kind, peak, floor, warmup_steps, total_steps):
    return {
        "kind": kind,
        "peak": peak,
        "floor": floor,
        "warmup_steps": warmup_steps,
        "total_steps": total_steps,
    }


@pytest.mark.parametrize(
    ("settings", "schedule"),
    [
        (ARGUMENTS, expected("warmup-cosine", 3e-4, 3e-5, 100, 1000)),
        (HUGGING_FACE, expected("warmup-linear", 2e-4, 0.0, 100, 1100)),
        (
            {"lr_scheduler_type": "constant", "learning_rate": 1e-5, "max_steps": -1},
            expected("constant", 1e-5, 0.0, 0, 0),
        ),
        (
            {"lr_scheduler_type": "cosine", "learning_rate": 1e-5, "warmup_ratio": 0.03}
            | {"max_steps": 101},
            expected("warmup-cosine", 1e-5, 0.0, 4, 101),
        ),
        (
            {"decay_lr": True, "learning_rate": 6e-4, "min_lr": 6e-5, "warmup_iters": 2000}
            | {"lr_decay_iters": 600000},
            expected("warmup-cosine", 6e-4, 6e-5, 2000, 600000),
        ),
        # epochs, another formula, rates that the checkpoint decides, samples instead of steps
        (HUGGING_FACE | {"config/max_steps": "-1"}, None),
        (HUGGING_FACE | {"config/lr_scheduler_kwargs": "{'num_cycles': 3}"}, None),
        (ARGUMENTS | {"use_checkpoint_opt_param_scheduler": "True"}, None),
        (ARGUMENTS | {"train_samples": "100000"}, None),
        (ARGUMENTS | {"lr": "nan"}, None),
    ],
)
def test_what_settings_declare(settings, schedule):
    assert declared(settings) == schedule
