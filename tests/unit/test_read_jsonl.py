"""JSON lines: the fast path and the careful one agree, and no line of any kind is lost without a word."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from telemetry_files import LFS_POINTER, one, points

from spiketriage.errors import EvidenceError
from spiketriage.nouns.series import LogFacts, Rollback
from spiketriage.readers.look import look
from spiketriage.readers.telemetry.series.names import DEFAULT, Names
from spiketriage.readers.telemetry.series.rows import Rows
from spiketriage.readers.telemetry.tables import jsonl, jsonl_blocks


def write(path: Path, records: Sequence[object], tail: str = "") -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + tail)
    return path


def read(path: Path, names: Names = DEFAULT) -> LogFacts:
    return jsonl.read(path, names)


def told(rows: Rows) -> list[object]:
    traced = rows.trace()
    series = sorted(
        (s.name, -1 if s.rank is None else s.rank, s.attempt, repr(points(s)), repr(s.times_s))
        for s in traced.series
    )
    return [*series, *traced.rollbacks]


def test_numbers_by_step_with_one_level_of_nesting(tmp_path: Path) -> None:
    rows = [
        {"step": k, "loss": k / 2, "opt": {"lr": 0.1, "name": "adam", "deep": {"x": 1}}, "ok": True}
        for k in range(9)
    ]
    facts = read(write(tmp_path / "a.jsonl", rows))
    assert {series.name for series in facts.series} == {"loss/mean", "opt/lr"}
    assert one(facts, "loss/mean").values.tolist() == [k / 2 for k in range(9)]
    assert (facts.num_lines, facts.num_matched, facts.problems) == (9, 9, ())


def test_a_mapping_of_the_run_wins(tmp_path: Path) -> None:
    rows = [{"tick": 10 * k, "step": 0, "objective": 1.5} for k in range(5)]
    facts = read(
        write(tmp_path / "a.jsonl", rows), Names(columns={"tick": "step", "objective": "loss/mean"})
    )
    assert points(one(facts, "loss/mean")) == [(10 * k, 1.5) for k in range(5)]


def test_a_metric_that_first_appears_late_is_kept(tmp_path: Path) -> None:
    rows = [{"step": k, "loss": 1.0} for k in range(500)]
    rows[450]["eval"] = 0.25
    assert points(one(read(write(tmp_path / "a.jsonl", rows)), "eval")) == [(450, 0.25)]


@pytest.mark.parametrize("spelled", [math.nan, "nan", "NaN"])
def test_nan_by_token_and_by_text(spelled: object, tmp_path: Path) -> None:
    rows = [
        {"step": k, "loss": spelled if k in (3, 7) else 1.0, "text": "it said: NaN, twice"}
        for k in range(300)
    ]
    found = one(read(write(tmp_path / "a.jsonl", rows)), "loss/mean")
    assert [k for k, value in points(found) if value is None] == [3, 7]
    assert len(found.steps) == 300
    assert set(found.reasons) == ({3, 7} if isinstance(spelled, str) else set())


def test_infinities_keep_their_sign(tmp_path: Path) -> None:
    rows = [
        {"step": k, "a": value}
        for k, value in enumerate([math.inf, -math.inf, 1.7976931348623157e308])
    ]
    found = one(read(write(tmp_path / "a.jsonl", rows)), "a")
    assert found.values.tolist() == [math.inf, -math.inf, 1.7976931348623157e308]


def test_numbers_that_a_trainer_quotes_are_read_for_known_metrics_only(tmp_path: Path) -> None:
    rows = [{"step": k, "loss": "4.845", "run": "20260822"} for k in range(5)]
    facts = read(write(tmp_path / "a.jsonl", rows))
    assert [series.name for series in facts.series] == ["loss/mean"]
    assert one(facts, "loss/mean").values.tolist() == [4.845] * 5


def test_a_torn_last_line_is_named_and_all_else_kept(tmp_path: Path) -> None:
    facts = read(
        write(tmp_path / "a.jsonl", [{"step": k, "loss": 1.0} for k in range(7)], '{"step": 7, "lo')
    )
    assert one(facts, "loss/mean").steps.tolist() == list(range(7))
    assert facts.num_near_misses == 1
    assert facts.problems[0].startswith("line 8 is torn")


def test_foreign_lines_are_counted(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        [{"step": 1, "loss": 1.0}],
        'warning: x\n[1]\n{"config": 1}\n{"step": 2, "loss": 2}\n',
    )
    facts = read(path)
    assert one(facts, "loss/mean").steps.tolist() == [1, 2]
    assert facts.num_near_misses == 2
    assert any("1 of 3 records have no step key" in note for note in facts.notes)


def test_a_restart_in_one_file_is_a_rollback(tmp_path: Path) -> None:
    steps = [*range(10), *range(6, 15)]
    facts = read(write(tmp_path / "a.jsonl", [{"step": k, "loss": 1.0} for k in steps]))
    assert facts.rollbacks == (Rollback(attempt=1, last_step=9, first_step=6),)
    assert one(facts, "loss/mean", 1).steps.tolist() == list(range(6, 15))


def test_an_evaluation_that_is_logged_late_is_no_restart(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"step": k, "loss": 1.0} for k in range(10)]
    rows.insert(8, {"step": 5, "eval": 0.5})
    facts = read(write(tmp_path / "a.jsonl", rows))
    assert facts.rollbacks == ()
    assert points(one(facts, "eval")) == [(5, 0.5)]


def test_ranks_and_attempts_that_columns_name(tmp_path: Path) -> None:
    rows = [
        {"step": step, "rank": rank, "attempt": attempt, "loss": float(rank)}
        for attempt, steps in ((0, range(6)), (1, range(4, 9)))
        for step in steps
        for rank in (0, 1)
    ]
    facts = read(write(tmp_path / "a.jsonl", rows))
    assert one(facts, "loss/mean", 1, 1).steps.tolist() == list(range(4, 9))
    assert one(facts, "loss/mean", 0, 1).values.tolist() == [1.0] * 6
    assert facts.rollbacks == (Rollback(attempt=1, last_step=5, first_step=4),)


def test_ranks_by_file_name(tmp_path: Path) -> None:
    for rank in range(3):
        write(
            tmp_path / f"metrics-rank{rank}.jsonl",
            [{"step": k, "loss": float(rank)} for k in range(4)],
        )
    facts = read(tmp_path)
    assert [one(facts, "loss/mean", rank=rank).values[0] for rank in range(3)] == [0.0, 1.0, 2.0]


def test_processes_that_write_into_one_file_are_told(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 1.0} for k in range(2000) for step in (k + 1, k)]
    facts = read(write(tmp_path / "a.jsonl", rows))
    assert facts.rollbacks == ()
    assert any("several processes" in note for note in facts.notes)


finite = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=True, allow_infinity=True))
odd = st.sampled_from(
    ["nan", "-Infinity", "x", "3.5", None, True, [1], {"a": 1}, {"a": {"b": 2}}, 10**400, ": NaN,"]
)
mostly_finite = st.one_of(finite, finite, finite, finite, finite, finite, odd)
records = st.lists(
    st.fixed_dictionaries(
        {"step": st.integers(0, 50)},
        optional={
            "loss": mostly_finite,
            "a": st.one_of(finite, st.none()),
            "b": st.fixed_dictionaries({"c": finite}, optional={"d": mostly_finite}),
            "rank": st.integers(0, 2),
            "attempt": st.integers(0, 1),
            "timestamp": st.floats(0, 2e9),
        },
    ),
    min_size=1,
    max_size=8,
)


def test_nan_and_infinity_stay_apart_beside_a_key_that_holds_nothing(tmp_path: Path) -> None:
    values = [math.nan, math.inf, -math.inf, 1.0]
    rows = [{"step": step, "loss": value, "a": None} for step, value in enumerate(values)]
    series = one(read(write(tmp_path / "a.jsonl", rows)), "loss/mean")
    assert series.values.tolist() == pytest.approx(values, nan_ok=True)


@settings(max_examples=200, deadline=None)
@example(rows=[{"step": 0, "loss": math.nan, "a": None}], is_whole=False)
@given(rows=records, is_whole=st.booleans())
def test_a_block_read_at_once_is_what_its_lines_are(
    rows: list[dict[str, object]], is_whole: bool
) -> None:
    if is_whole:  # a table without gaps, as nearly all logs are
        rows = [{**rows[0], **row} for row in rows]
    lines = [json.dumps(row).encode() for row in rows]
    at_once, by_line = Rows(source="a", names=DEFAULT), Rows(source="a", names=DEFAULT)
    taken = jsonl_blocks.Blocks(rows=at_once).take(b"\n".join(lines) + b"\n")
    if taken is None:
        assert not at_once.num_objects
        return
    for number, line in enumerate(lines):
        by_line.take_line(line, number)
    assert taken == len(lines)
    assert told(at_once) == told(by_line)
    assert (at_once.num_matched, at_once.num_no_step) == (by_line.num_matched, by_line.num_no_step)


def test_an_ordinary_block_is_read_at_once() -> None:
    rows = [
        {"step": k, "rank": 0, "loss": math.nan if k % 3 else k / 7, "opt": {"lr": 1e-4}}
        for k in range(100)
    ]
    rows[50]["eval"] = 1
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    assert jsonl_blocks.Blocks(rows=Rows(source="a", names=DEFAULT)).take(data) == 100


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(1, 900), junk=st.binary(max_size=12))
def test_any_damage_gives_facts_or_a_sentence(
    cut: int, junk: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(
        tmp_path_factory.mktemp("cut") / "a.jsonl", [{"step": k, "loss": k / 4} for k in range(40)]
    )
    data = path.read_bytes()
    path.write_bytes(data[:cut] + junk)
    try:
        facts = read(path)
    except EvidenceError:
        return
    found = [
        pair for series in facts.series if series.name == "loss/mean" for pair in points(series)
    ]
    num_whole = data[:cut].count(b"\n")
    assert found[:num_whole] == [(k, k / 4) for k in range(num_whole)]


def test_files_that_hold_nothing(tmp_path: Path) -> None:
    for content in (LFS_POINTER, b"no json\n" * 3, b"[1]\n"):
        (tmp_path / "a.jsonl").write_bytes(content)
        with pytest.raises(EvidenceError):
            read(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").write_bytes(b"")
    assert read(tmp_path / "a.jsonl").problems == ("is empty",)


def test_claims(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"step": 1, "loss": 1.0}])
    assert jsonl.claims(look(path)) > 0.7
    assert jsonl.claims(look(tmp_path)) > 0.5
    assert jsonl.claims(look(write(tmp_path / "b.jsonl", [{"text": "a document"}]))) < 0.5
    assert jsonl.claims(look(Path(__file__))) == 0
