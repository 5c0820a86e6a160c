"""A command that is killed, or that meets another one, leaves an incident that can be read and worked on.

Real processes, real SIGKILL; these tests never replace a part of the program.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spiketriage.errors import BusyError, RefusedError
from spiketriage.incident.audit import audit
from spiketriage.incident.store import Incident, create, find

ROOT = Path(__file__).parents[2]
AT = datetime(2026, 11, 29, 3, 12, tzinfo=UTC)
ARGV = ("spiketriage", "hash")


class Child:
    """The process of `tests/incident_child.py`."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "incident_child.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def ask(self, **order: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    started = Child()
    yield started
    started.close()


@pytest.fixture
def incident(tmp_path: Path) -> Incident:
    return create(tmp_path, incidents=None, step=7, at=AT)


def check_whole(incident: Incident, said: list[str]) -> None:
    """Nothing that was reported as committed is lost, and no commit shows in part."""
    seen = incident.dossier()
    if said:
        assert int(seen.facts["num_alarms"]) >= int(said[-1])
    if "num_alarms" in seen.facts:
        part = seen.facts["num_alarms"]
        assert [row.seen for row in seen.findings] == [part]
        assert [row.loss for row in seen.steps] == [float(part)] * 50
    assert audit(incident) == ()


def work_on(incident: Incident) -> None:
    """What the next command does; afterwards nothing of the killed one lies about."""
    with incident.session(ARGV) as session:
        session.fact("trigger", "works")
    assert incident.dossier().facts["trigger"] == "works"
    assert sorted(path.name for path in incident.folder.iterdir()) == ["incident.duckdb"]


def test_kill_at_random_moments_of_a_loop_of_sessions(child: Child, incident: Incident) -> None:
    moments = random.Random(3)
    for _ in range(8):
        count = int(incident.dossier().facts.get("num_alarms", "-1")) // 2 + 1
        answer = child.ask(
            do="loop", incident=str(incident.folder), after_s=moments.uniform(0, 0.15), count=count
        )
        assert answer["killed"]
        check_whole(incident, answer["said"])
    work_on(incident)
    check_whole(incident, [])
    outcomes = [row.outcome for row in incident.dossier().journal]
    assert set(outcomes) == {"done", "ended without a record"}


def test_kill_at_every_file_operation_of_a_session(child: Child, incident: Incident) -> None:
    num_points = 0
    while True:
        answer = child.ask(
            do="event", incident=str(incident.folder), event=num_points + 1, count=num_points
        )
        check_whole(incident, answer["said"])
        if not answer["killed"]:
            break
        num_points += 1
    assert num_points >= 20  # lease, copies, swaps and clean-up of two commits and the journal row
    work_on(incident)


def test_kill_at_every_file_operation_of_making_an_incident(child: Child, tmp_path: Path) -> None:
    for event in range(1, 100):
        run = tmp_path / str(event)
        run.mkdir()
        answer = child.ask(do="create", incident=str(run), event=event)
        try:
            assert find(run, incidents=None, wanted=None).dossier().journal == ()
        except RefusedError:
            assert answer["killed"]
        assert create(run, incidents=None, step=1, at=AT).dossier().facts == {}
        assert not list((run / ".spiketriage" / "incidents").glob(".new-*"))
        if not answer["killed"]:
            break
    assert event > 3


def test_the_second_command_is_told_who_holds_the_incident(incident: Incident) -> None:
    holder = Child()
    try:
        pid = holder.ask(do="hold", incident=str(incident.folder))["pid"]
        with pytest.raises(BusyError) as caught, incident.session(ARGV):
            pytest.fail("two sessions at once")
        assert caught.value.exit_code == 8
        assert f"process {pid} " in caught.value.message
        assert "spiketriage check" in caught.value.message
        assert caught.value.hint == f"ps -p {pid}"
        assert incident.dossier().journal == ()  # reading needs no lease
        assert holder.ask(do="let go")["killed"]
        work_on(incident)
        assert [row.outcome for row in incident.dossier().journal] == [
            "ended without a record",
            "done",
        ]
        assert incident.dossier().journal[0].argv == "spiketriage check"
    finally:
        holder.close()


def test_an_open_reader_blocks_nobody_and_keeps_its_rows(incident: Incident) -> None:
    with incident.session(ARGV) as session:
        session.fact("frozen_at", "before")
    code = (
        "import duckdb, sys\n"
        f"connection = duckdb.connect({str(incident.folder / 'incident.duckdb')!r}, "
        "read_only=True)\n"
        "for _ in range(2):\n"
        "    print(connection.execute('SELECT max_by(value, number) FROM "
        "facts').fetchone()[0], flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "before\n"
        for value in ("during", "after"):
            with incident.session(ARGV) as session:
                session.fact("frozen_at", value)
        assert incident.dossier().facts["frozen_at"] == "after"
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == "before\n"
