"""A colleague's SQL reads everything in an incident and can change or reach nothing else."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spiketriage.errors import EvidenceError, UsageError
from spiketriage.incident.query import QueryResult, query
from spiketriage.incident.store import Incident, create
from spiketriage.nouns.incident import Finding, StepPoint, TrialRow
from spiketriage.tools import sql


@pytest.fixture
def incident(tmp_path: Path) -> Incident:
    made = create(tmp_path, incidents=None, step=7, at=datetime(2026, 11, 29, 3, 12, tzinfo=UTC))
    with made.session(["spiketriage", "check"]) as session:
        session.findings(
            Finding(name=name, outcome="differs", summary="s", magnitude=value)
            for name, value in (("lr", 0.5), ("lr", 2.0), ("ids", math.nan))
        )
        session.trials(
            trial(f"t{i}", state) for i, state in enumerate(("done", "done", "failed", "planned"))
        )
        session.trials([trial("t3", "done")])
        session.steps(step(i, loss) for i, loss in enumerate((1.0, math.nan, 3.0, math.inf)))
    return made


def trial(key: str, state: str) -> TrialRow:
    return TrialRow(
        key=key,
        kind="replay",
        purpose="control",
        factors={"code": "deployed"},
        first_step=1,
        last_step=2,
        repeat=0,
        state=state,  # type: ignore[arg-type]
        num_steps_executed=2,
        wall_s=1.5,
        summary="",
    )


def step(number: int, loss: float) -> StepPoint:
    return StepPoint(
        attempt=0, step=number, loss=loss, grad_norm=1.0, update_norm=1.0, lr=1.0, alarm=""
    )


def test_a_nonfinite_number_does_not_spoil_an_aggregate(incident: Incident) -> None:
    result = query(
        incident, "SELECT max(loss) AS top, avg(loss) AS mean, count(*) AS num FROM latest_steps"
    )
    assert result.columns == ("top", "mean", "num")
    assert result.rows == ((3.0, 2.0, 4),)
    spelled = (
        "SELECT step, nonfinite['loss'] FROM steps WHERE nonfinite['loss'] IS NOT NULL ORDER BY 1"
    )
    assert query(incident, spelled).rows == ((1, "NaN"), (3, "Infinity"))


def test_the_views_say_what_a_colleague_asks(incident: Incident) -> None:
    assert query(incident, "SELECT name, magnitude FROM latest_findings").rows == (
        ("lr", 2.0),
        ("ids", None),
    )
    summary = (
        "SELECT purpose, num_trials, num_done, num_failed, num_steps_executed, wall_s FROM "
        "trial_summary"
    )
    assert query(incident, summary).rows == (("control", 4, 3, 1, 8, 6.0),)
    timeline = "SELECT number, argv, outcome, num_findings, num_trials, verdict FROM timeline"
    assert query(incident, timeline).rows == ((1, "spiketriage check", "done", 3, 5, None),)


@pytest.mark.parametrize(
    "statement",
    [
        "",
        "SELEC 1",
        "SELECT * FROM nowhere",
        "SELECT 1; SELECT 2",
        "DELETE FROM journal",
        "UPDATE journal SET who = 'x'",
        "CREATE TABLE t (a INT)",
        "COPY journal TO 'out.csv'",
        "EXPLAIN ANALYZE COPY journal TO 'out.csv'",
        "ATTACH 'other.duckdb'",
        "SET enable_external_access = true",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM '/etc/hostname.csv'",
        "INSTALL httpfs",
        "SELECT CAST('x' AS INT)",
    ],
)
def test_a_statement_that_is_wrong_or_does_more_than_read_is_a_usage_error(
    incident: Incident, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = (incident.folder / "incident.duckdb").read_bytes()
    with pytest.raises(UsageError, match=r"^sql: ") as caught:
        query(incident, statement)
    assert caught.value.exit_code == 2
    assert (incident.folder / "incident.duckdb").read_bytes() == before
    assert not list(tmp_path.rglob("out.csv"))


def test_the_frozen_telemetry_is_a_view(incident: Incident) -> None:
    evidence = incident.folder / "evidence"
    evidence.mkdir()
    pq.write_table(
        pa.table({"step": [1, 2], "loss_sum": [4.0, 5.0]}), evidence / "telemetry.parquet"
    )
    assert query(incident, "SELECT loss_sum FROM telemetry WHERE step = 2").rows == ((5.0,),)


def test_damaged_telemetry_does_not_close_the_tables(incident: Incident) -> None:
    (incident.folder / "evidence").mkdir()
    (incident.folder / "evidence" / "telemetry.parquet").write_bytes(b"PAR1 not quite")
    assert query(incident, "SELECT count(*) FROM trials").rows == ((5,),)


def test_the_step_shows_a_table_and_carries_json(incident: Incident, tmp_path: Path) -> None:
    odd = "'nan'::DOUBLE AS bad, 'a' || chr(27) || 'b' AS t"
    statement = f"SELECT name, magnitude, {odd} FROM latest_findings"
    result = sql.run(
        tmp_path,
        incidents=None,
        incident=None,
        argv=["spiketriage", "sql"],
        statement=statement,
    )
    assert (result.exit_code, result.incident) == (0, incident.id)
    assert result.data["columns"] == ["name", "magnitude", "bad", "t"]
    assert result.data["rows"] == [["lr", 2.0, "NaN", "a\x1bb"], ["ids", None, "NaN", "a\x1bb"]]
    json.dumps(result.data, allow_nan=False)
    assert result.lines == (
        "name  magnitude  bad  t",
        "────  ─────────  ───  ──────",
        "lr    2.0        NaN  a\\x1bb",
        "ids   ∅          NaN  a\\x1bb",
        "(2 rows)",
    )


def test_a_long_answer_is_cut_on_paper_and_whole_in_json(
    incident: Incident, tmp_path: Path
) -> None:
    statement = "SELECT range AS n FROM range(1000)"
    result = sql.run(tmp_path, incidents=None, incident=None, argv=[], statement=statement)
    assert len(result.data["rows"]) == 1000
    assert result.lines[1 + sql.MAX_ROWS :] == (
        "199",
        "… 800 more rows; --json has them all",
        "(1000 rows)",
    )


def test_a_table_fits_the_terminal_and_the_widest_column_gives_way() -> None:
    asked = QueryResult(columns=("name", "summary"), rows=(("ids", "x" * 500), ("lr", "short")))
    lines = sql.table(asked, asked.rows, 40)
    assert max(map(len, lines)) == 40
    assert lines[2] == "ids   " + "x" * 33 + "…"
    assert lines[3] == "lr    short"
    many = QueryResult(columns=("a", "b", "c"), rows=(("x" * 30, "y" * 30, "z" * 30),))
    assert sql.table(many, many.rows, 18) == (
        "a         b",
        "────────  ────────",
        "xxxxxxx…  yyyyyyy…",
        "… not shown for want of room: c",
        "(1 row)",
    )


def test_the_hint_of_a_wrong_statement_names_the_run(incident: Incident, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        sql.run(tmp_path, incidents=None, incident=incident.id, argv=[], statement="SELECT nothing")
    assert caught.value.hint == f"spiketriage sql 'SHOW TABLES' {tmp_path} --incident {incident.id}"


def test_the_step_of_a_statement_without_rows(incident: Incident, tmp_path: Path) -> None:
    statement = "SELECT name FROM findings WHERE false"
    result = sql.run(tmp_path, incidents=None, incident=None, argv=[], statement=statement)
    assert result.lines == ("name", "────", "(0 rows)")


def test_an_unreadable_database_is_not_the_askers_fault(incident: Incident) -> None:
    (incident.folder / "incident.duckdb").write_bytes(b"x" * 5000)
    with pytest.raises(EvidenceError, match=r"incident\.duckdb"):
        query(incident, "SELECT 1")
