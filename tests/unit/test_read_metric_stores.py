"""MLflow, trackio and OLMo-core stores.

Every point of every run, read from a copy, whatever state the file is in.
"""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry_files import FIXTURES, LFS_POINTER, NUM_STEPS, loss, one, points

from spiketriage.errors import EvidenceError
from spiketriage.readers.look import look
from spiketriage.readers.telemetry.series.names import DEFAULT
from spiketriage.readers.telemetry.stores import mlflow_store, trackio_store
from spiketriage.readers.telemetry.tables import olmo_metrics

RUNS = FIXTURES / "mlflow" / "mlruns"
DATABASE = FIXTURES / "mlflow" / "mlflow.db"
TRACKIO = FIXTURES / "trackio.db"


def test_mlflow_file_store() -> None:
    facts = mlflow_store.read(RUNS, DEFAULT)
    found = one(facts, "loss/mean")
    assert found.values == pytest.approx([loss(step) for step in range(NUM_STEPS)], nan_ok=True)
    assert (found.source, found.written_as) == ("0a1b2c", "train/loss")
    assert found.times_s is not None
    assert found.times_s[2] == 1_700_000_002.0
    assert (facts.identity, facts.problems) == ({"param/seed": "17"}, ())


def test_mlflow_database_spells_nan_and_infinity_its_own_way() -> None:
    facts = mlflow_store.read(DATABASE, DEFAULT)
    found = one(facts, "loss/mean")
    assert points(found)[17:] == [(17, loss(17)), (18, None), (19, math.inf)]
    assert facts.identity == {"param/seed": "17"}


def test_mlflow_torn_lines_are_counted(tmp_path: Path) -> None:
    shutil.copytree(RUNS, tmp_path / "mlruns")
    metric = tmp_path / "mlruns" / "0" / "0a1b2c" / "metrics" / "train" / "loss"
    metric.write_text(metric.read_text() + "bad line here\n1700000021000 0.3")
    facts = mlflow_store.read(tmp_path / "mlruns", DEFAULT)
    assert len(one(facts, "loss/mean").steps) == NUM_STEPS
    assert "run 0a1b2c, metric train/loss: 2 lines are not" in facts.problems[0]


def test_trackio_prefers_the_logged_step_and_keeps_runs_apart() -> None:
    facts = trackio_store.read(TRACKIO, DEFAULT)
    assert {series.source for series in facts.series} == {"first", "second"}
    for found in facts.series:
        assert found.steps.tolist() == [10 * step for step in range(NUM_STEPS)]
        assert found.values == pytest.approx([loss(step) for step in range(NUM_STEPS)], nan_ok=True)
        assert found.reasons == {18: "written as the text 'NaN'"}
        assert found.times_s is not None
        assert found.times_s[0] == 1_787_368_440.0  # date -u -d 2026-08-22T03:14:00 +%s


def test_what_only_the_write_ahead_log_holds_is_read_and_the_store_left_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "project.db"
    shutil.copy(TRACKIO, path)
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    row = ("2026-08-22T04:00:00", "third", 0, json.dumps({"loss": 7.5}))
    writer.execute(
        "INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?)", row
    )
    writer.commit()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert len(before) == 3  # the writer is alive: -wal and -shm lie beside the store
    facts = trackio_store.read(path, DEFAULT)
    assert [points(series) for series in facts.series if series.source == "third"] == [[(0, 7.5)]]
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    writer.close()


def test_a_view_is_never_run(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as db:
        db.execute(
            "CREATE VIEW metrics AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + "
            "1 FROM n) "
            "SELECT x AS run_uuid, x AS key, x AS value, x AS timestamp, x AS step, 0 AS "
            "is_nan FROM n"
        )
    db.close()
    with pytest.raises(EvidenceError, match="no table metrics"):
        mlflow_store.read(path, DEFAULT)


def test_rows_of_wrong_types_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE metrics (run_uuid, key, value, timestamp, step, is_nan)")
        rows = [
            ("r", "loss", 1.5, 1000, 1, 0),
            ("r", "loss", "x", 2000, 2, 0),
            (None, b"\xff", 1, None, 3, 0),
        ]
        db.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
    db.close()
    facts = mlflow_store.read(path, DEFAULT)
    assert points(one(facts, "loss/mean")) == [(1, 1.5)]
    assert "2 rows of metrics hold no number, step or time" in facts.problems[0]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize(("source", "reader"), [(DATABASE, mlflow_store), (TRACKIO, trackio_store)])
def test_a_damaged_database_gives_facts_or_a_sentence(
    source: Path, reader: object, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(source.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[at:]
    else:
        content[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
    path = tmp_path_factory.mktemp("db") / source.name
    path.write_bytes(content)
    assert reader.claims(look(path)) >= 0  # type: ignore[attr-defined]
    try:
        facts = reader.read(path, DEFAULT)  # type: ignore[attr-defined]
    except EvidenceError:
        return
    assert all(len(series.steps) == len(series.values) <= len(content) for series in facts.series)


def test_olmo_metrics_by_the_steps_in_their_names(tmp_path: Path) -> None:
    for step, value in ((100, 2.5), (20, 3.5), (3, math.nan)):
        content = json.dumps({"train/CE loss": value, "optim/total grad norm": 1.0})
        (tmp_path / f"metrics_step{step}.json").write_text(content)
    (tmp_path / "metrics.json").write_text('{"train/CE loss": 2.0}')
    (tmp_path / "metrics_step7.json").write_bytes(LFS_POINTER)
    facts = olmo_metrics.read(tmp_path, DEFAULT)
    assert points(one(facts, "grad/norm")) == [(3, 1.0), (20, 1.0), (100, 1.0)]
    assert facts.identity == {"final/train/CE loss": "2.0"}
    assert "Git-LFS pointer" in facts.problems[0]
    assert points(olmo_metrics.read(tmp_path / "metrics_step20.json", DEFAULT).series[0]) == [
        (20, 3.5)
    ]


def test_claims(tmp_path: Path) -> None:
    assert mlflow_store.claims(look(RUNS)) > 0.9
    assert mlflow_store.claims(look(RUNS / "0" / "0a1b2c")) > 0.9
    assert mlflow_store.claims(look(DATABASE)) > 0.8 > trackio_store.claims(look(DATABASE))
    assert trackio_store.claims(look(TRACKIO)) > 0.8 > mlflow_store.claims(look(TRACKIO))
    (tmp_path / "metrics_step3.json").write_text("{}")
    assert olmo_metrics.claims(look(tmp_path)) > 0.8
    assert olmo_metrics.claims(look(Path(__file__))) == 0
