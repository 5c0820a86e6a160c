"""Logs that no row knows: steps, losses and gradient norms as a person reads them off the lines.

The lines are typed as these trainers print them; what is expected is read off by eye.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiketriage.errors import EvidenceError
from spiketriage.evidence.onset import find_onset
from spiketriage.readers.telemetry.consoles.general_text import parse
from spiketriage.readers.telemetry.consoles.text_lines import peel
from spiketriage.readers.telemetry.run.sources import read_telemetry
from spiketriage.readers.telemetry.series.names import Names

NAN = math.nan
VERL = (
    "(TaskRunner pid=83401) step:151 - actor/entropy_loss:0.312 - actor/pg_loss:-0.013 - "
    "actor/grad_norm:nan - perf/mfu/actor:0.312 - timing_s/step:61.2 - training/epoch:2.000"
)
FAIRSEQ = (
    "2020-08-01 12:38:52 | INFO | train_inner | epoch 001:   3415 / 6547 loss=0.441, "
    "nll_loss=0.001, wps=82410, num_updates=3400, lr=8.5e-06, gnorm=3.91, loss_scale=2048"
)
OLD_FAIRSEQ = (
    "| epoch 001:    100 / 4000 loss=14.5, nll_loss=14.2, ppl=19000, num_updates=101, "
    "lr=1.2e-05, gnorm=5.123, clip=0.0"
)
OPEN_CLIP = (
    "2023-06-29,15:44:40 | INFO | Train Epoch: 2 [  6464/109468 (3%)] Loss: 0.97884 (1.023) "
    "Data (t): 0.158 Batch (t): 0.559, 36.0876/s LR: 0.000001 Logit Scale: 99.995 - V4"
)
MAXTEXT = (
    "I0811 21:54:47.531340 1383 metric_logger.py:226] completed step: 7, seconds: 10.228, "
    "TFLOP/s/device: 350.869, total_weights: 1572864, loss: nan, perplexity: 433463.719"
)
NANOCHAT = (
    "step 00010/21400 (0.05%) | loss: 10.890000 | grad norm: 0.310 | lrm: 1.00 | "
    "dt: 512.11ms | tok/sec: 1,023,999 | mfu: 47.11"
)
DIFFUSERS = (
    "Steps:   2%|▍        | 92679/5900000 [19:15:43<1185:20:02,  1.36it/s, data=0.00789, "
    "loss=nan, lr=4.99e-5, vae=0.0144]"
)
LIGHTNING = "Epoch 1:  12%|#2| 120/1000 [00:12<01:28, 9.9it/s, v_num=3, train_loss=2.5]"
MLX = "Iter 10: Train loss 2.345, Learning Rate 1.000e-05, It/sec 0.512, Trained Tokens 3320"
MMENGINE = (
    "2023/01/01 00:00:00 - mmengine - INFO - Iter(train) [   100/160000]  base_lr: 1e-02 "
    "lr: 1.0000e-02  eta: 1 day, 0:30:00  time: 0.12  memory: 3000  grad_norm: 3.21  loss: 2.3012"
)
METRIC_LOGGER = (
    "Epoch: [3]  [  10/1251]  eta: 0:10:01  lr: 0.000001  loss: 6.9321 (6.9400)  time: 0.5"
)
MS_SWIFT = (
    "{'loss': 2.1, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'memory(GiB)': 30.1, "
    "'global_step/max_steps': '10/1000', 'percentage': '1.00%', 'elapsed_time': '10s'}"
)
KOHYA = "steps:   5%|5         | 50/1000 [00:12<04:00,  4.00it/s, avr_loss=0.123]"
IMAGENET = "Epoch: [3][  10/5005]\tTime  0.105 ( 1.2)\tLoss 6.9950e+00 (7.01e+00)\tAcc@1   0.00"
SWIFT = "{'loss': 2.1, 'grad_norm': 1.5, 'learning_rate': 9e-05, 'global_step/max_steps': '5/100'}"

LINES = (
    (MS_SWIFT, 10, {"loss": 2.1, "grad_norm": 1.5, "learning_rate": 1e-5}),
    (KOHYA, 50, {"avr_loss": 0.123}),
    (VERL, 151, {"actor/grad_norm": NAN, "actor/pg_loss": -0.013}),
    (FAIRSEQ, 3400, {"loss": 0.441, "gnorm": 3.91, "lr": 8.5e-06, "loss_scale": 2048.0}),
    (OLD_FAIRSEQ, 101, {"loss": 14.5, "gnorm": 5.123}),
    (OPEN_CLIP, 2 * 109468 + 6464, {"Loss": 0.97884, "LR": 1e-06}),
    (MAXTEXT, 7, {"loss": NAN}),
    (NANOCHAT, 10, {"loss": 10.89, "grad norm": 0.31, "tok/sec": 1023999.0}),
    (DIFFUSERS, 92679, {"loss": NAN, "lr": 4.99e-05}),
    (LIGHTNING, 1120, {"train_loss": 2.5}),
    (MLX, 10, {"Train loss": 2.345, "Learning Rate": 1e-05}),
    (MMENGINE, 100, {"loss": 2.3012, "grad_norm": 3.21, "lr": 0.01}),
    (METRIC_LOGGER, 3 * 1251 + 10, {"loss": 6.9321, "lr": 1e-06}),
    (IMAGENET, 3 * 5005 + 10, {"Loss": 6.995}),
    ("step=100 loss=-Infinity lr=3e-4", 100, {"loss": -math.inf, "lr": 3e-4}),
    ("{'loss': 2.1, 'step': 3}", 3, {"loss": 2.1}),
    ("step 3: loss nan", 3, {"loss": NAN}),
)


@pytest.mark.parametrize(("line", "step", "cells"), LINES, ids=[line[:30] for line, _, _ in LINES])
def test_a_line_is_read_as_a_person_reads_it(line: str, step: int, cells: dict[str, float]) -> None:
    parsed = parse(peel(line).text)
    assert parsed is not None
    assert parsed.step == step
    for key, value in cells.items():
        assert parsed.cells[key] == pytest.approx(value, nan_ok=True), key


@pytest.mark.parametrize(
    "line",
    [
        "Iter 200: Val loss 2.1, Val took 3.2s",
        "Validation: 100%|##| 10/10 [00:01<00:00, loss=1.23]",
        "epoch: 3, loss: 2.3",
        "loss scale: 65536 step 3",
        "step 3 begins",
        "loss: 3.2",
        "see https://example.org/loss=3/step=4",
        "",
    ],
)
def test_a_line_without_a_training_step_and_a_loss_is_left_alone(line: str) -> None:
    assert parse(line) is None


@given(st.text(st.sampled_from("loss=: step[]|/,0123456789.eE+-naif(%)\t'"), max_size=300))
def test_any_line_is_read_or_left_alone(line: str) -> None:
    parsed = parse(f"{line} step 3 loss: 1.5")
    assert parsed is None or parsed.step >= 0


def log_of(folder: Path, lines: list[str], end: str = "\n") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "train.log").write_text(end.join(lines) + end, encoding="utf-8")
    return folder


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_a_progress_bar_has_its_onset_at_the_step_that_it_shows(end: str, tmp_path: Path) -> None:
    lines = [
        f"Steps:  {n}%| | {n}/1000 [00:12<01:28, 9.9it/s, loss={'nan' if n >= 80 else 1.5}, lr=1e-4]"
        for n in range(1, 100)
        for _ in range(2)  # a bar is drawn again and again
    ]
    assert find_onset(read_telemetry(log_of(tmp_path / "run", lines, end))).step == 80


def test_own_columns_say_what_is_the_loss_and_the_step(tmp_path: Path) -> None:
    lines = [f"tick={n} objective_loss_x={9.0 if n == 150 else 2.0}" for n in range(300)]
    names = Names(columns={"objective_loss_x": "loss/mean", "tick": "step"})
    run = log_of(tmp_path / "run", lines)
    assert find_onset(read_telemetry(run, names)).step == 150


def test_what_a_surer_format_cannot_read_is_read_by_the_next(tmp_path: Path) -> None:
    run = log_of(tmp_path / "run", [VERL.replace("step:151", f"step:{n}") for n in range(140, 160)])
    telemetry = read_telemetry(run)
    assert [log.format for log in telemetry.logs] == ["text-log"]
    assert find_onset(telemetry).step == 140


def test_deepspeeds_pipeline_engine_prints_a_loss(tmp_path: Path) -> None:
    lines = []
    for n in range(14, 24):
        loss = "nan" if n >= 18 else f"{0.7 + n / 1000:.4f}"
        lines += [
            f"[2026-07-30 09:16:24,681] [INFO] [logging.py:123:log_dist] [Rank 0] step={n}, "
            "skipped=0, lr=[1e-06], mom=[0.0]",
            f"steps: {n} loss: {loss} iter time (s): 3.162 samples/sec: 0.316",
        ]
    telemetry = read_telemetry(log_of(tmp_path / "run", lines))
    assert [log.format for log in telemetry.logs] == ["deepspeed-stdout"]
    assert find_onset(telemetry).step == 18


def test_a_plain_metrics_table_keeps_its_own_steps(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    rows = [f"{n},{9.0 if n == 80 else 3 - n / 1000},0.0003" for n in range(1, 101)]
    (run / "metrics.csv").write_text("\n".join(["step,loss,lr", *rows]) + "\n", encoding="utf-8")
    assert find_onset(read_telemetry(run)).step == 80


def test_prose_is_no_log(tmp_path: Path) -> None:
    run = log_of(tmp_path / "run", ["The loss went up.", "We looked at step 4.", "Nothing else."])
    with pytest.raises(EvidenceError, match="found none"):
        read_telemetry(run)


def test_a_dict_that_states_its_step_is_not_numbered(tmp_path: Path) -> None:
    losses = [2.1, 2.1, "nan", "nan"]
    lines = [
        MS_SWIFT.replace("2.1", str(loss)).replace("10/1000", f"{num}0/1000")
        for num, loss in enumerate(losses, 1)
    ]
    assert find_onset(read_telemetry(log_of(tmp_path / "run", lines))).step == 30
