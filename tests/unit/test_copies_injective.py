"""One copy for each row that says so: any two files of a run, whatever their names, stay two."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spiketriage.evidence import collect, layout
from spiketriage.evidence.budget import Budget
from spiketriage.evidence.collectors import Collector, Item
from spiketriage.nouns.incident import RunSettings

# names of ours, names that some file system takes for one, and names that are hardly names
NAMES = st.sampled_from(
    [
        "x.log",
        "X.log",
        "x.log.",
        ".x.log.partial",
        "drafts",
        "copy",
        "incident.duckdb",
        "manifest-sha256.txt",
        "config.json",
        "@",
        "@run",
        "@outside",
        "@1",
        "caf\u00e9",
        "cafe\u0301",
        "a" * 255,
        os.fsdecode(b"\xff\xfe.log"),
        "line\nbreak",
    ]
)
PLACES = st.sampled_from(["run/logs", "run/more", "run", "elsewhere", "run/telemetry"])
PATHS = st.tuples(PLACES, st.lists(NAMES, min_size=1, max_size=2)).map(
    lambda drawn: "/".join([drawn[0], *drawn[1]])
)


def settings_of(run: Path, *logs: Path) -> RunSettings:
    return RunSettings(
        run=run,
        run_id="r",
        telemetry=run / "telemetry",
        checkpoints=run / "checkpoints",
        data_index=None,
        config=None,
        code=None,
        logs=logs,
        harness="",
        python_path=(),
        launch_kind="torchrun",
        num_processes=1,
        outside={f"logs/{log}": log for log in logs if not log.is_relative_to(run)},
    )


def written(root: Path, paths: list[str]) -> list[Path]:
    """The files of these names that can exist beside each other."""
    made = []
    for path in paths:
        try:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(path, encoding="utf-8", errors="surrogateescape")
        except OSError:
            continue  # a folder has that name, or a file that of its folder
        made.append(root / path)
    return made


def kind_of(path: Path, run: Path) -> str:
    return "telemetry" if path.is_relative_to(run / "telemetry") else "log"


@given(paths=st.lists(PATHS, min_size=2, max_size=8, unique=True))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_rows_that_say_copied_and_files_are_one_to_one(
    paths: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        run, payload = root / "run", root / "incident" / "evidence" / "data"
        files = written(root, paths)
        single = [path for path in files if path.parent == run]
        of_run = settings_of(run, run / "logs", run / "more", root / "elsewhere", *single)
        payload.parent.mkdir(parents=True)
        items = [Item(kind=kind_of(path, run), source=path) for path in files]
        capsys.readouterr()
        collect.Copies(of_run, payload, Budget(root)).collect(
            Collector(name="drawn", items=lambda _settings: iter(items))
        )
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        copied = {row["copy"]: row["artifact"] for row in rows if "copy" in row}
        assert len(copied) == len(rows) == len(items)
        kept = {
            path.relative_to(payload).as_posix(): xxhash.xxh3_128_hexdigest(path.read_bytes())
            for path in payload.rglob("*")
            if path.is_file()
        }
        assert kept == {name: artifact["digest"] for name, artifact in copied.items()}
        assert {artifact["path"] for artifact in copied.values()} == {
            layout.artifact_path(run, item.source) for item in items
        }


@given(st.lists(PATHS, min_size=2, max_size=8, unique=True))
def test_no_two_files_are_pinned_at_one_place(paths: list[str]) -> None:
    run, incident = Path("/a/run"), Path("/incident")
    places = {layout.pinned(incident, run, Path("/a", path)) for path in paths}
    assert len(places) == len(paths)
    assert all(place.is_relative_to("/incident/evidence/pinned") for place in places)


def test_a_name_that_climbs_out_is_pinned_inside() -> None:
    place = layout.pinned(
        Path("/incident"), Path("/a/run"), Path("/a/run/data/../../../etc/passwd")
    )
    assert place == Path("/incident/evidence/pinned/@outside/etc/passwd")
