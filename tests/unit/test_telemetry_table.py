"""The Parquet of all telemetry.

Every point is in it once, in bucket order, and nonfinite ones can be asked for.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import call
from hypothesis import given
from hypothesis import strategies as st

from spiketriage.evidence import telemetry_table
from spiketriage.evidence.series_table import tables
from spiketriage.evidence.telemetry_table import write_parquet
from spiketriage.incident.store import Incident, create
from spiketriage.nouns.series import Series
from spiketriage.nouns.telemetry import Segment, StepRecord
from spiketriage.readers.telemetry.run.lineage import Telemetry

NAN, INF = math.nan, math.inf


def series(name: str, points: dict[int, float] | list[tuple[int, float]], **given: Any) -> Series:
    pairs = list(points.items()) if isinstance(points, dict) else points
    return Series(
        **{"source": "log.jsonl", "written_as": name, "attempt": 0, "rank": 0, **given},
        name=name,
        steps=np.array([step for step, _ in pairs], np.int64),
        values=np.array([value for _, value in pairs], np.float64),
    )


def written(path: Path, rows: Any) -> list[dict[str, Any]]:
    write_parquet(rows, path)
    return pq.read_table(path).to_pylist()


def keys(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["step"] // 2000, row["rank"], row["step"], row["attempt"]) for row in rows]


def bucket(number: int, ranks: int, num_steps: int = 2000) -> pa.Table:
    steps = np.tile(np.arange(number * 2000, number * 2000 + num_steps), ranks)
    rank = np.repeat(np.arange(ranks), num_steps)
    return pa.table(
        {"attempt": np.zeros_like(steps), "rank": rank, "step": steps, "loss": steps + rank / 100.0}
    )


def test_series_side_by_side_make_a_row_a_step(tmp_path: Path) -> None:
    rows = written(
        tmp_path / "t.parquet",
        tables(
            [
                series("loss/mean", {1: 3.5, 2: NAN, 3: INF}, times_s=np.array([10.0, NAN, 12.0])),
                series("lr", {1: 0.1, 3: 0.3}),
                series("loss/mean", {2: 4.5}, rank=1),
                series("loss/mean", {2: 9.0}, rank=None, source="other.csv"),
            ]
        ),
    )
    fixed = {
        "attempt": 0,
        "production": True,
        "source": "log.jsonl",
        "wall_time_s": None,
        "lr": None,
    }
    other = {**fixed, "source": "other.csv", "rank": None, "step": 2, "loss/mean": 9.0}
    first = {**fixed, "rank": 0, "step": 1, "loss/mean": 3.5, "lr": 0.1, "wall_time_s": 10.0}
    third = {**fixed, "rank": 0, "step": 3, "loss/mean": INF, "lr": 0.3, "wall_time_s": 12.0}
    assert [row for row in rows if row["step"] != 2 or row["rank"] != 0] == [
        other,
        first,
        third,
        {**fixed, "rank": 1, "step": 2, "loss/mean": 4.5},
    ]
    (hidden,) = [row for row in rows if row["step"] == 2 and row["rank"] == 0]
    assert math.isnan(hidden["loss/mean"])
    assert hidden["lr"] is None


def test_a_rollback_keeps_both_values_and_marks_the_later_attempt(tmp_path: Path) -> None:
    rows = written(
        tmp_path / "t.parquet",
        tables(
            [
                series("loss", {1: 1.0, 2: 2.0, 3: 3.0}),
                series("loss", {2: 20.0, 3: 30.0}, attempt=1, rank=1),
                series("loss", {3: 300.0}, attempt=2, source="other.csv"),
            ]
        ),
    )
    told = {(row["source"], row["attempt"], row["step"]): row["production"] for row in rows}
    assert told == {
        ("log.jsonl", 0, 1): True,
        ("log.jsonl", 0, 2): False,
        ("log.jsonl", 0, 3): False,
        ("log.jsonl", 1, 2): True,
        ("log.jsonl", 1, 3): True,
        ("other.csv", 2, 3): True,
    }


def test_a_step_that_a_source_gives_twice_has_two_rows(tmp_path: Path) -> None:
    rows = written(
        tmp_path / "t.parquet",
        tables(
            [
                series("loss", [(5, 1.0), (4, 0.5), (5, 2.0)]),
                series("lr", {5: 0.1}),
                series("loss", {5: 3.0}),
            ]
        ),
    )
    assert [(row["step"], row["loss"], row["lr"]) for row in rows] == [
        (4, 0.5, None),
        (5, 1.0, 0.1),
        (5, 2.0, None),
        (5, 3.0, None),
    ]


_STEPS = st.one_of(st.integers(-4100, 4100), st.integers(-(2**63), 2**63 - 1))
_VALUES = st.floats(width=64)


@given(
    given_series=st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]),
            st.sampled_from(["loss", "Rank", "step"]),
            st.integers(0, 2),
            st.sampled_from([None, 0, 1]),
            st.lists(st.tuples(_STEPS, _VALUES), max_size=6),
        ),
        max_size=6,
    )
)
def test_every_point_is_in_the_table_once(
    tmp_path_factory: pytest.TempPathFactory, given_series: list[tuple[Any, ...]]
) -> None:
    made = [
        series(name, points, source=source, attempt=attempt, rank=rank)
        for source, name, attempt, rank, points in given_series
    ]
    rows = written(tmp_path_factory.mktemp("table") / "t.parquet", tables(made))
    expected = Counter(
        (source, name, attempt, rank, step, np.float64(value).tobytes())
        for source, name, attempt, rank, points in given_series
        for step, value in points
    )
    column_of = {"loss": "loss", "Rank": "metric/Rank", "step": "metric/step"}
    seen = Counter(
        (
            row["source"],
            name,
            row["attempt"],
            row["rank"],
            row["step"],
            np.float64(row[column]).tobytes(),
        )
        for row in rows
        for name, column in column_of.items()
        if row.get(column) is not None
    )
    assert seen == expected
    ordered = [
        (row["step"] // 2000, -1 if row["rank"] is None else row["rank"], row["step"])
        for row in rows
    ]
    assert ordered == sorted(ordered)


def test_a_large_bucket_has_row_groups_of_whole_ranks_and_small_ones_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_table, "ROW_GROUP_ROWS", 5000)
    monkeypatch.setattr(telemetry_table, "FEW_ROWS", 3000)
    small = [bucket(number, ranks=1, num_steps=1000) for number in (3, 4, 7, 9)]
    write_parquet((*(bucket(number, ranks=5) for number in (0, 1)), *small), tmp_path / "t.parquet")
    file = pq.ParquetFile(tmp_path / "t.parquet")
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    spans = []
    for group in groups:
        found = {
            group.column(i).path_in_schema: group.column(i).statistics
            for i in range(group.num_columns)
        }
        spans.append(
            [group.num_rows, *(f(found[key]) for key in ("rank", "step") for f in (_low, _high))]
        )
        assert found["loss"] is None
    assert spans == [
        [4000, 0, 1, 0, 1999],
        [4000, 2, 3, 0, 1999],
        [2000, 4, 4, 0, 1999],
        [4000, 0, 1, 2000, 3999],
        [4000, 2, 3, 2000, 3999],
        [2000, 4, 4, 2000, 3999],
        [3000, 0, 0, 6000, 14999],
        [1000, 0, 0, 18000, 18999],
    ]
    whole = [bucket(number, ranks=5) for number in (0, 1)]
    assert file.read().equals(pa.concat_tables([*whole, *small]))


def _low(statistics: Any) -> int:
    return statistics.min


def _high(statistics: Any) -> int:
    return statistics.max


def test_rows_of_a_table_may_come_in_any_order(tmp_path: Path) -> None:
    table = bucket(0, ranks=3, num_steps=50)
    shuffled = table.take(np.random.default_rng(5).permutation(table.num_rows))
    assert written(tmp_path / "t.parquet", [shuffled]) == table.to_pylist()


def test_a_source_that_fails_midway_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    before = written(path, [bucket(0, ranks=1, num_steps=3)])

    def torn() -> Iterator[pa.Table]:
        for number in range(80):
            yield bucket(number, ranks=1)
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="went away"):
        write_parquet(torn(), path)
    assert pq.read_table(path).to_pylist() == before
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_recorded_is_an_empty_table(tmp_path: Path) -> None:
    for rows in (tables([]), Telemetry(segments=(), problems=())):
        assert written(tmp_path / "t.parquet", rows) == []
    assert pq.read_schema(tmp_path / "t.parquet").names == ["attempt", "rank", "step"]


def test_a_metric_called_like_a_key_does_not_replace_it(tmp_path: Path) -> None:
    record = StepRecord(
        attempt=0,
        rank=3,
        step=7,
        metrics={"step": 1.5, "metric/step": 2.5, "Attempt": 9.0, "loss": NAN},
        digests={},
        nonfinite=(),
        ids=None,
        content={},
        series={},
        wall_time_s=1.0,
    )
    segment = Segment(
        path=Path("s"),
        attempt=0,
        rank=3,
        identity=None,
        loads=(),
        steps=(record,),
        torn_bytes=0,
        problem="",
    )
    (row,) = written(tmp_path / "t.parquet", Telemetry(segments=(segment,), problems=()))
    assert (row["rank"], row["step"], row["attempt"], row["production"]) == (3, 7, 0, True)
    assert sorted(
        row[name] for name in ("metric/step", "metric/metric/step", "metric/Attempt")
    ) == [1.5, 2.5, 9.0]
    assert math.isnan(row["loss"])


@pytest.fixture
def incident(tmp_path: Path) -> Incident:
    """An incident whose run's name reads like a pattern that a sibling's telemetry matches."""
    made = [_incident(tmp_path / name) for name in ("it's run1", "it's run[1]")]
    write_parquet([bucket(0, ranks=1)], made[0].folder / "evidence" / "telemetry.parquet")
    return made[1]


def _incident(run: Path) -> Incident:
    run.mkdir()
    (run / "spiketriage.toml").write_text('schema = 1\n[run]\nid = "r"\n')
    return create(run, incidents=None, step=7, at=datetime(2026, 11, 29, 3, 12, tzinfo=UTC))


def ask(incident: Incident, statement: str) -> Any:
    done = call("sql", statement, "--json", cwd=incident.folder.parents[2])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["data"]["rows"]


def test_the_command_finds_the_nonfinite_steps(incident: Incident) -> None:
    points = {**dict.fromkeys(range(6000), 3.0), 77: NAN, 4001: -INF, 5000: 400.0}
    made = tables([series("loss/mean", points, rank=rank) for rank in range(3)])
    write_parquet(made, incident.folder / "evidence" / "telemetry.parquet")
    bad = 'step, "loss/mean" FROM telemetry WHERE rank = 2 AND'
    found = ask(
        incident,
        f"""SELECT 1, {bad} NOT isfinite("loss/mean") UNION ALL
                              SELECT 2, {bad} "loss/mean" > 100 ORDER BY ALL""",
    )
    assert found == [[1, 77, "NaN"], [1, 4001, "-Infinity"], [2, 77, "NaN"], [2, 5000, 400.0]]


def test_minima_and_maxima_of_an_older_file_do_not_hide_a_nan(incident: Incident) -> None:
    (incident.folder / "evidence").mkdir()
    older = pa.table({"step": [1, 2, 3], "loss/mean": [3.0, NAN, 3.1]})
    pq.write_table(older, incident.folder / "evidence" / "telemetry.parquet")
    assert ask(incident, 'SELECT step FROM telemetry WHERE isnan("loss/mean")') == [[2]]


def test_without_the_file_there_is_no_view(incident: Incident) -> None:
    done = call("sql", "FROM telemetry", cwd=incident.folder.parents[2])
    assert (done.returncode, done.stdout) == (2, "")
    assert "telemetry does not exist" in done.stderr
