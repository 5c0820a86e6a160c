"""Runs with loss scaling, as their trainers count skips: none has an onset while the scale backs off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spiketriage.evidence.onset import find_onset, rows_at
from spiketriage.readers.telemetry.run.sources import read_telemetry

SAMPLE = Path(__file__).resolve().parents[3] / "shared/cases/07-megatron-fp16-start-interval10"


def skipped(lines: list[dict[str, object]], folder: Path) -> list[float | None]:
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "log.jsonl").write_text(text, encoding="utf-8")
    telemetry = read_telemetry(folder)
    assert find_onset(telemetry).step is None
    return [row.skipped for row in rows_at(telemetry, telemetry.steps)]


@pytest.mark.parametrize("key", ["skipped", "number of skipped iterations", "found_inf"])
def test_a_counter_by_row_is_read_as_it_stands(key: str, tmp_path: Path) -> None:
    lines = [{"step": step, "loss": 3.0, "grad_norm": 1.0, key: 0} for step in range(1, 5)]
    lines[0] |= {"grad_norm": "inf", key: 1}
    assert skipped(lines, tmp_path) == [1.0, 0.0, 0.0, 0.0]


def test_a_flag_counts_as_one(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": 3.0, "skipped": False} for step in range(1, 5)]
    lines[1] |= {"grad_norm": "inf", "skipped": True}
    assert skipped(lines, tmp_path) == [0.0, 1.0, 0.0, 0.0]


def test_a_total_is_read_by_its_differences_and_may_begin_anew(tmp_path: Path) -> None:
    totals = [2, 2, 3, 0, 1]
    lines = [{"step": 10 * at, "loss": 3.0, "skipped_steps": n} for at, n in enumerate(totals)]
    lines[2] |= {"grad_norm": "inf"}
    assert skipped(lines, tmp_path) == [2.0, 0.0, 1.0, 0.0, 1.0]


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="no sample cases beside the checkout")
def test_the_start_of_a_megatron_run_in_fp16_is_healthy() -> None:
    assert find_onset(read_telemetry(SAMPLE)).step is None
