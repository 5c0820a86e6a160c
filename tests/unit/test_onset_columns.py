"""Columns and records are two ways to the same onset, alarms and points."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.detect import detector
from spiketriage.evidence.onset import find_onset, rows_at
from spiketriage.nouns.telemetry import Identity, StepRecord
from spiketriage.readers.telemetry.run.foreign import choose
from spiketriage.readers.telemetry.run.lineage import Telemetry
from spiketriage.readers.telemetry.run.sources import read_telemetry

KEYS = {
    "loss": "loss/mean",
    "grad_norm": "grad/norm",
    "lr": "lr",
    "update/norm": "update/norm",
    "loss_scale": "loss_scale",
}
VALUES = st.sampled_from([0.0, 1.0, 1.01, 2.0, 50.0, -1.0, math.nan, math.inf, -math.inf])
LINES = st.fixed_dictionaries(
    {"loss": VALUES},
    optional={name: VALUES for name in KEYS if name != "loss"} | {"eval_loss": VALUES},
)
JUMPS = st.sampled_from([1, 1, 1, 1, 2, 0, -1, -3])  # a step may be skipped, repeated, gone back to
IDENTITY = Identity(
    world_size=2,
    host="h",
    device="cpu",
    num_threads=1,
    precision="float32",
    kernel="math",
    deterministic=True,
    code_path="code",
    code_digest="",
    config_digest="",
)


@st.composite
def logs(draw: st.DrawFn) -> list[str]:
    """The lines of a small log with missing keys, nonfinite values, ranks and rollbacks."""
    num_ranks = draw(st.integers(1, 3))
    step, lines = 5, []
    for record in draw(st.lists(LINES, min_size=1, max_size=30)):
        step = max(0, step + draw(JUMPS))
        row = {"step": step, **record}
        if num_ranks > 1:
            row["rank"] = draw(st.integers(0, num_ranks - 1))
        if draw(st.booleans()):
            row.pop("loss")
        lines.append(json.dumps(row))
    lines.append(json.dumps({"step": step + 1, "loss": 1.0}))
    return lines


def telemetry_of(lines: list[str], folder: Path) -> Telemetry:
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_telemetry(folder)


def from_records(telemetry: Telemetry, identity: Identity | None = None) -> Telemetry:
    """The same run, of which only records are known."""
    segments = []
    for segment in telemetry.segments:
        records = tuple(segment.steps)
        segments.append(replace(segment, steps=records, columns=None, identity=identity))
    return Telemetry(segments=tuple(segments), problems=())


def value_by_hand(telemetry: Telemetry, step: int, metric: str) -> float | None:
    """The lowest rank's value, unless some rank's is nonfinite; read off the records."""
    values = []
    for rank in telemetry.ranks:
        record = telemetry.at(rank, step)
        if record is not None and metric in record.metrics:
            values.append(record.metrics[metric])
    for value in values:
        if not math.isfinite(value):
            return value
    return values[0] if values else None


def as_text(value: object) -> str:
    """NaN is NaN."""
    return repr(value)


@given(lines=logs())
@settings(deadline=None, max_examples=150)
def test_columns_and_records_give_the_same_onset(lines: list[str], tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    by_column = telemetry_of(lines, tmp_path_factory.mktemp("run"))
    by_record = from_records(by_column)
    assert by_record.steps == by_column.steps
    assert as_text(find_onset(by_column)) == as_text(find_onset(by_record))
    onset = find_onset(by_column)
    if onset.attempt is not None:  # its points are those of the run as it was then
        by_record = by_record.until(onset.attempt)
    for point in onset.points:
        shown = (point.loss, point.grad_norm, point.update_norm, point.lr)
        metrics = ("loss/mean", "grad/norm", "update/norm", "lr")
        expected = tuple(value_by_hand(by_record, point.step, metric) for metric in metrics)
        assert as_text(shown) == as_text(tuple(math.nan if e is None else e for e in expected))
        assert point.attempt == by_record.attempt_of(point.step)


@given(lines=logs())
@settings(deadline=None, max_examples=100)
def test_rows_by_hand_raise_the_same_alarms(lines: list[str], tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    telemetry = telemetry_of(lines, tmp_path_factory.mktemp("run"))
    rows = list(rows_at(telemetry, telemetry.steps))
    for row in rows:
        for field, metric in (("loss", "loss/mean"), ("grad_norm", "grad/norm"), ("lr", "lr")):
            expected = value_by_hand(telemetry, row.step, metric)
            assert as_text(getattr(row, field)) == as_text(expected)
    judge = detector.Detector(logs_at_will=True)
    by_row = {(alarm.step, alarm.signal) for row in rows for alarm in judge.feed(row).alarms}
    for signal in ("loss", "grad_norm"):
        values = [getattr(row, signal) for row in rows]
        if any(value is not None for value in values):
            onset = find_onset(telemetry)
            alarms = onset.alarms if onset.attempt is None else ()
            by_array = {alarm.step for alarm in alarms if alarm.signal == signal}
            assert by_array == {step for step, name in by_row if name == signal}


@given(lines=logs())
@settings(deadline=None, max_examples=50)
def test_records_are_made_when_asked_for_and_hold_what_the_columns_hold(
    lines: list[str],
    tmp_path_factory,  # type: ignore[no-untyped-def]
) -> None:
    telemetry = telemetry_of(lines, tmp_path_factory.mktemp("run"))
    for rank in telemetry.ranks:
        for metric in KEYS.values():
            column = telemetry.metric(rank, metric)
            for at, step in enumerate(telemetry.steps):
                record = telemetry.at(rank, step)
                is_logged = record is not None and metric in record.metrics
                assert bool(column.is_logged[at]) == is_logged
                if record is not None and is_logged:
                    assert as_text(float(column.values[at])) == as_text(record.metrics[metric])


def test_the_largest_attention_logit_is_taken_over_ranks_and_layers(tmp_path: Path) -> None:
    lines = [json.dumps({"step": n, "rank": r, "loss": 1.0}) for n in (1, 2, 3) for r in (0, 1)]
    telemetry = from_records(telemetry_of(lines, tmp_path), IDENTITY)
    layers = {
        (0, 1): (3.0, 7.0),
        (1, 1): (9.0, 2.0),
        (0, 2): (3.0, math.inf),
        (1, 2): (math.nan, 1.0),
        (1, 3): (),
    }

    def with_layers(record: StepRecord) -> StepRecord:
        values = layers.get((record.rank, record.step), ())
        return replace(record, series={"attention/logit_max": values})

    segments = tuple(
        replace(segment, steps=tuple(map(with_layers, segment.steps)))
        for segment in telemetry.segments
    )
    rows = list(rows_at(Telemetry(segments=segments, problems=()), (1, 2, 3)))
    assert [row.attention_max for row in rows] == [9.0, math.inf, None]


def test_a_log_makes_no_record_before_one_is_asked_for(tmp_path: Path) -> None:
    lines = [json.dumps({"step": n, "loss": 1.0 + (n == 80) * 50}) for n in range(100)]
    telemetry = telemetry_of(lines, tmp_path)
    assert find_onset(telemetry).step == 80
    (segment,) = choose(telemetry.logs).segments
    assert segment.columns is not None
    assert len(segment.steps) == 100
    assert segment.steps[80] is segment.steps[80]
    assert [record.step for record in segment.steps[78:81]] == [78, 79, 80]


@pytest.mark.parametrize("key", ["loss", "grad_norm"])
def test_a_run_that_is_nan_from_its_first_row_has_its_onset_there(key: str, tmp_path: Path) -> None:
    lines = [json.dumps({"step": n, "lr": 0.1, key: math.nan}) for n in range(3, 30)]
    onset = find_onset(telemetry_of(lines, tmp_path))
    assert (onset.step, "is not a finite number" in onset.reason) == (3, True)
