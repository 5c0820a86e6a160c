"""A run is called healthy only where something was judged, and what that was is said.

The commands are the real ones; what is pasted is run by a shell.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from spiketriage.evidence.frozen import load_view
from spiketriage.evidence.judged import candidates
from spiketriage.evidence.onset import find_onset
from spiketriage.incident import store
from spiketriage.readers.settings import read_settings
from spiketriage.readers.telemetry.run.sources import read_telemetry
from spiketriage.report import write as report
from spiketriage.runbook import check, freeze, status


def run_of(folder: Path, records: Iterable[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record) for record in records]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def frozen(run: Path, **options: Any) -> Any:
    return freeze.run(run, incidents=None, incident=None, argv=["spiketriage", "freeze"], **options)


def healthy(key: str, num: int = 300, spike: int | None = None) -> list[dict[str, Any]]:
    return [{"step": n, key: 90.0 if n == spike else 3 - n / 1000} for n in range(1, num + 1)]


def test_a_run_of_which_nothing_is_known_as_its_loss_is_not_called_healthy(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a run", healthy("my_loss_of_tokens", spike=150))
    result = frozen(run)
    text = "\n".join(result.lines)
    assert (result.exit_code, result.verdict, result.data["onset"]) == (5, "not judged", None)
    assert "no series was judged; candidates: my_loss_of_tokens" in text
    assert "nothing spiked" not in text
    shown = status.run(run, incidents=None, incident=None, argv=["spiketriage", "status"])
    assert "nothing spiked" not in "\n".join(shown.lines)
    assert frozen(run).incident == result.incident  # the same question, the same incident
    mapping, again, _ = result.next_commands
    subprocess.run(["bash", "-c", mapping], check=True)
    assert again.startswith("spiketriage freeze ")
    assert frozen(run).data["onset"] == 150


def test_a_quiet_gradient_norm_does_not_stand_for_a_loss_that_nobody_knows(tmp_path: Path) -> None:
    rows = [{**row, "grad_norm": 1.0} for row in healthy("my_loss_of_tokens", spike=150)]
    run = run_of(tmp_path / "run", rows)
    result = frozen(run)
    text = "\n".join(result.lines)
    assert (result.exit_code, result.verdict, result.data["onset"]) == (5, "not judged", None)
    assert "no series was judged as the loss; candidates: my_loss_of_tokens" in text
    assert "judged: gradient norm (300 rows, full rules); no loss on any line" in result.lines
    subprocess.run(["bash", "-c", result.next_commands[0]], check=True)
    assert frozen(run).data["onset"] == 150


def test_later_steps_say_what_was_judged_and_call_nothing_quiet_unseen(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [{**row, "grad_norm": 1.0} for row in healthy("my_loss")])
    frozen(run)
    argv = ["spiketriage"]
    shown = status.run(run, incidents=None, incident=None, argv=argv)
    checked = check.run(run, incidents=None, incident=None, argv=argv)
    report.run(run, incidents=None, incident=None, argv=argv)
    (page,) = run.glob(".spiketriage/incidents/*/report/report.md")
    judged = "gradient norm (300 rows, full rules); no loss on any line"
    assert f"judged: {judged}" in shown.lines
    assert shown.data["judged"] == judged
    assert checked.lines[0].startswith("no series was judged as the loss; candidates: my_loss")
    assert f"judged: {judged}" in checked.lines
    assert checked.exit_code == 5
    assert f"Judged: {judged}." in page.read_text(encoding="utf-8")


def test_checks_of_a_run_without_telemetry_never_say_that_nothing_spiked(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    torch.save({"model": {"w": torch.ones(4, 4)}, "step": 5}, run / "step_5.pt")
    frozen(run)
    for _ in range(2):  # the second time sees the anchors that the first left
        checked = check.run(run, incidents=None, incident=None, argv=["spiketriage", "check"])
        assert checked.exit_code == 5
        assert checked.lines[0].startswith("no telemetry: nothing could be scanned")
        assert not any("nothing spiked" in line for line in checked.lines)


def test_checks_of_a_run_whose_loss_was_judged_end_with_zero_and_say_what_was(
    tmp_path: Path,
) -> None:
    run = run_of(tmp_path / "run", healthy("loss"))
    frozen(run)
    checked = check.run(run, incidents=None, incident=None, argv=["spiketriage", "check"])
    assert checked.exit_code == 0
    assert checked.lines[0] == "nothing spiked; this is an audit of the whole history"
    assert "judged: loss (300 rows, full rules); no gradient norm on any line" in checked.lines


@pytest.mark.parametrize(("num", "rules"), [(20, "start-up rule only"), (300, "full rules")])
def test_what_was_judged_is_said_with_its_rows_and_rules(
    num: int, rules: str, tmp_path: Path
) -> None:
    result = frozen(run_of(tmp_path / "run", healthy("loss", num)))
    judged = f"loss ({num} rows, {rules}); no gradient norm on any line"
    assert result.data["judged"] == judged
    assert f"judged: {judged}" in result.lines


def test_keys_of_evaluation_are_no_candidates(tmp_path: Path) -> None:
    keys = ("eval_loss_x", "val/loss_x", "loss_scale_x", "aux_loss", "my_xent")
    rows = [{"step": n, **dict.fromkeys(keys, 1.0 + n)} for n in range(30)]
    assert candidates(read_telemetry(run_of(tmp_path / "run", rows)).logs) == ("my_xent",)


@pytest.mark.parametrize(
    "key",
    [
        *("reduced_train_loss", "train/lm_loss", "learning/loss", "train/loss_step"),
        *("loss/average", "Loss/train", "lm-loss-training/lm loss", "train_inner/loss"),
    ],
)
def test_trainers_names_of_the_loss_are_known(key: str, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", healthy(key, spike=150))
    assert find_onset(read_telemetry(run)).step == 150


@pytest.mark.parametrize(
    "key",
    ["actor/grad_norm", "grad/norm/total", "gnorm", "train_inner/gnorm", "learning/raw_grad_norm"],
)
def test_trainers_names_of_the_gradient_norm_are_known(key: str, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [{"loss": 1.0, **row} for row in healthy(key, spike=150)])
    assert find_onset(read_telemetry(run)).step == 150


def test_of_two_keys_for_the_loss_the_one_to_be_believed_counts_and_both_are_named(
    tmp_path: Path,
) -> None:
    rows = [{**row, "loss": float("nan")} for row in healthy("reduced_train_loss")]
    telemetry = read_telemetry(run_of(tmp_path / "run", rows))
    assert find_onset(telemetry).step is None
    (note,) = telemetry.notes
    assert "loss/mean is written under loss, reduced_train_loss" in note


def rolled_back(spike: int | None) -> list[dict[str, Any]]:
    """To 10,000, back to 8,000, on to 9,000, every fiftieth step; the abandoned tail may spike."""
    first = [{"step": n, "loss": 9.0 if n == spike else 2.0} for n in range(50, 10001, 50)]
    return [*first, *({"step": n, "loss": 1.99} for n in range(8050, 9001, 50))]


def test_what_was_rolled_back_is_no_production_and_its_spike_is_still_said(tmp_path: Path) -> None:
    telemetry = read_telemetry(run_of(tmp_path / "run", rolled_back(8550)))
    assert telemetry.steps[-1] == 9000
    onset = find_onset(telemetry)
    assert (onset.step, onset.attempt) == (8550, 0)
    assert onset.reason.endswith("(rolled back since)")
    assert onset.history[0].startswith("attempt 0: steps 8050 to 10000 were rolled back; step 8550")
    assert onset.points[-1].step == 10000  # as the run was then


def test_a_seam_is_no_onset(tmp_path: Path) -> None:
    onset = find_onset(read_telemetry(run_of(tmp_path / "run", rolled_back(None))))
    assert onset.step is None
    assert onset.history == (
        "attempt 0: steps 8050 to 10000 were rolled back; nothing spiked there",
    )


def test_a_run_that_starts_over_is_not_mixed_with_the_one_before(tmp_path: Path) -> None:
    first = [{"step": n, "loss": 2.0} for n in range(50, 20001, 50)]
    second = [{"step": n, "loss": 3.0} for n in range(50, 6001, 50)]
    telemetry = read_telemetry(run_of(tmp_path / "run", [*first, *second]))
    onset = find_onset(telemetry)
    assert (onset.step, telemetry.steps[-1]) == (None, 6000)
    assert {point.loss for point in onset.points} == {3.0}
    assert "are another run" in onset.history[0]


def test_an_onset_first_says_how_far_behind_a_restart_it_lies(tmp_path: Path) -> None:
    first = [{"step": n, "loss": 3.0} for n in range(10, 1001, 10)]
    second = [{"step": n, "loss": 60.0 if n == 540 else 3.0} for n in range(510, 901, 10)]
    onset = find_onset(read_telemetry(run_of(tmp_path / "run", [*first, *second])))
    assert onset.reason.startswith("step 540: 40 steps after a restart from 500, loss 60 ")


def test_later_commands_see_the_run_as_it_was_when_its_rolled_back_steps_spiked(
    tmp_path: Path,
) -> None:

    run = run_of(tmp_path / "run", rolled_back(8550))
    frozen(run)
    view = load_view(store.find(run, incidents=None, wanted=None), read_settings(run))
    record = view.telemetry.at(0, 8550)
    assert record is not None
    assert record.metrics["loss/mean"] == 9.0
