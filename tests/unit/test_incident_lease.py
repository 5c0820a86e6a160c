"""A lease goes on to the next command when its holder is gone, and to nobody while the holder lives."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spiketriage.errors import BusyError
from spiketriage.incident.store import Incident, create

ARGV = ("spiketriage", "hash")


@pytest.fixture
def incident(tmp_path: Path) -> Incident:
    return create(tmp_path, incidents=None, step=7, at=datetime(2026, 11, 29, 3, 12, tzinfo=UTC))


def leased(incident: Incident, *, age_s: float = 0.0, **changes: Any) -> Path:
    """Leave a lease in the incident: this process's own, with some of it changed."""
    path = incident.folder / "lease.json"
    with incident.session(ARGV):
        holder = json.loads(path.read_text())
    path.write_text(json.dumps({**holder, **changes}))
    at = path.stat().st_mtime - age_s
    os.utime(path, (at, at))
    return path


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    return ended.pid


def test_the_lease_names_its_holder_and_is_gone_afterwards(incident: Incident) -> None:
    path = incident.folder / "lease.json"
    with incident.session(ARGV):
        holder = json.loads(path.read_text())
        assert (holder["pid"], holder["host"]) == (os.getpid(), socket.gethostname())
        assert holder["command"] == "spiketriage hash"
        with pytest.raises(BusyError, match=f"process {os.getpid()} "), incident.session(ARGV):
            pytest.fail("two sessions at once")
    assert not path.exists()


def test_a_dead_process_loses_the_lease_at_once(incident: Incident) -> None:
    leased(
        incident,
        pid=dead_pid(),
        since="2026-11-29T03:00:00+00:00",
        command="spiketriage freeze r",
        who="ann",
    )
    with incident.session(ARGV):
        pass
    rows = incident.dossier().journal[1:]
    assert [(row.argv, row.outcome) for row in rows] == [
        ("spiketriage freeze r", "ended without a record"),
        ("spiketriage hash", "done"),
    ]
    assert (rows[0].at, rows[0].who, rows[0].exit_code) == ("2026-11-29T03:00:00+00:00", "ann", -1)


def test_a_killed_process_that_nobody_has_reaped_is_dead(incident: Incident) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as killed:
        stat = Path(f"/proc/{killed.pid}/stat").read_text()
        started_ticks = int(stat.rpartition(")")[2].split()[19])
        path = leased(incident, pid=killed.pid, started_ticks=started_ticks)
        with pytest.raises(BusyError, match=f"process {killed.pid} "), incident.session(ARGV):
            pytest.fail("the holder lives")
        killed.kill()
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
        with incident.session(ARGV):
            assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_later_process_with_the_same_number_is_not_the_holder(incident: Incident) -> None:
    leased(incident, started_ticks=1)
    with incident.session(ARGV):
        pass


def test_a_command_that_was_killed_after_its_journal_row_is_not_recorded_twice(
    incident: Incident,
) -> None:
    leased(incident, pid=dead_pid())
    with incident.session(ARGV):
        pass
    assert [row.outcome for row in incident.dossier().journal] == ["done", "done"]


@pytest.mark.parametrize("age_s", [0.0, 50.0])
def test_a_holder_on_another_host_keeps_the_lease_while_its_heart_beats(
    incident: Incident, age_s: float
) -> None:
    leased(incident, host="node17", pid=1, age_s=age_s)
    with pytest.raises(BusyError, match="on host node17") as caught, incident.session(ARGV):
        pytest.fail("two sessions at once")
    assert caught.value.hint == "ssh node17 ps -p 1"


def test_a_holder_on_another_host_loses_the_lease_a_minute_after_its_last_beat(
    incident: Incident,
) -> None:
    leased(incident, host="node17", age_s=70.0)
    with incident.session(ARGV):
        pass


def test_a_process_that_lost_its_lease_cannot_commit(incident: Incident) -> None:
    path = incident.folder / "lease.json"
    session = incident.session(ARGV)
    session.__enter__()
    session.fact("trigger", "yes")
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "node17"}))
    with pytest.raises(BusyError, match="on host node17"):
        session.commit()
    with pytest.raises(BusyError, match="on host node17"):
        session.__exit__(None, None, None)
    assert incident.dossier().facts == {}
    assert incident.dossier().journal == ()
    assert json.loads(path.read_text())["host"] == "node17"  # and it leaves the other's lease alone


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"pid": 1}', "[" * 100_000, '"' + "a" * (1 << 20) + '"', "NaN"]
)
def test_a_damaged_lease_blocks_for_a_minute_only(incident: Incident, text: str) -> None:
    path = incident.folder / "lease.json"
    path.write_text(text)
    with pytest.raises(BusyError, match="names no process") as caught, incident.session(ARGV):
        pytest.fail("a fresh lease that cannot be read may still be somebody's")
    assert caught.value.hint == f"mv {path} {path}-broken"
    at = path.stat().st_mtime - 70
    os.utime(path, (at, at))
    with incident.session(ARGV):
        pass


@pytest.mark.slow
def test_a_process_that_stands_still_within_its_look_at_the_lease_stops_nobody_for_good(
    incident: Incident,
) -> None:
    path = leased(incident, pid=1, started_ticks=1, host="elsewhere")
    handle = os.open(incident.folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match=r"process 1 of .* on host elsewhere"):
            incident.session(ARGV).__enter__()
    finally:
        os.close(handle)
    path.unlink()
    with incident.session(ARGV):
        assert path.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": str(os.getpid())},
        {"pid": [1]},
        {"pid": None},
        {"pid": 0},
        {"pid": -1},
        {"pid": 10**30},
        {"pid": 1.5},
        {"pid": True},
        {"started_ticks": "1"},
        {"host": 7},
        {"since": {}},
        {"journal": "yes"},
    ],
)
def test_a_lease_with_values_of_other_types_blocks_for_a_minute_only(
    incident: Incident, changes: dict[str, Any]
) -> None:
    path = leased(incident, **changes)
    with pytest.raises(BusyError, match="names no process"), incident.session(ARGV):
        pytest.fail("a fresh lease that cannot be read may still be somebody's")
    at = path.stat().st_mtime - 70
    os.utime(path, (at, at))
    with incident.session(ARGV):
        assert json.loads(path.read_text())["started_ticks"] > 1


def test_a_lease_from_a_clock_ahead_is_a_minute_old_after_a_minute(incident: Incident) -> None:
    path = leased(incident, age_s=-86_400.0, host="node17")
    with pytest.raises(BusyError, match=r"node17.*taken over when nothing has touched"):
        incident.session(ARGV).__enter__()
    # the look itself set it to the clock of the file system, from which its age is counted
    at = path.stat().st_mtime
    assert at < datetime.now(UTC).timestamp() + 5
    os.utime(path, (at - 70, at - 70))
    with incident.session(ARGV):
        pass


def test_a_dead_holder_of_this_host_is_displaced_whatever_the_clocks_say(
    incident: Incident,
) -> None:
    for age_s in (-86_400.0, 0.0, 86_400.0):
        leased(incident, age_s=age_s, pid=dead_pid())
        with incident.session(ARGV):
            pass


def test_a_living_holder_of_this_host_keeps_its_lease_whatever_the_clocks_say(
    incident: Incident,
) -> None:
    path = leased(incident)
    at = path.stat().st_mtime
    for age_s in (-86_400.0, 86_400.0):
        os.utime(path, (at - age_s, at - age_s))
        with pytest.raises(BusyError, match=f"process {os.getpid()} "), incident.session(ARGV):
            pytest.fail("two sessions at once")


def test_a_lease_that_is_no_plain_file_blocks_for_a_minute_only(
    incident: Incident, tmp_path: Path
) -> None:
    path = incident.folder / "lease.json"
    (tmp_path / "elsewhere").write_text("not ours")
    for make in (lambda: os.mkfifo(path), lambda: path.symlink_to(tmp_path / "elsewhere")):
        make()
        with pytest.raises(BusyError, match="names no process"), incident.session(ARGV):
            pytest.fail("a fresh lease that cannot be read may still be somebody's")
        at = path.lstat().st_mtime - 70
        os.utime(path, (at, at), follow_symlinks=False)
        with incident.session(ARGV):
            assert path.is_file()
    assert (tmp_path / "elsewhere").read_text() == "not ours"
