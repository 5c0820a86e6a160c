"""Any command, killed outright at any moment.

The incident can be read, the same command finishes, no worker is left.

Real commands and real SIGKILL; the small run takes the many kill points, the rehearsed one those of
training workers.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from killing import MARK, Child
from rehearsed import Rehearsed, command_of, gone, start
from run_folder import write_run

from spiketriage.incident import store
from spiketriage.incident.audit import audit
from spiketriage.nouns.incident import Dossier
from spiketriage.runbook import status
from spiketriage.tools import verify

STEPS = ("freeze", "hash", "check", "bisect", "report")
NUM_EVENTS, NUM_MOMENTS = 3, 2


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    started = Child(tmp_path_factory.mktemp("child"))
    yield started
    started.close()


def marked(mark: str) -> set[int]:
    """Every process that carries the mark, children of killed ones too."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                if wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.add(int(entry))
            except OSError:
                continue
    return found


def check_readable(run: Path, incidents: Path | None = None) -> None:
    """Whoever comes next can see where the incident stands, and no recorded row is broken."""
    told = status.run(run, incidents=incidents, incident=None, argv=["spiketriage", "status"])
    assert told.exit_code == 0
    assert told.next_commands
    if told.incident:
        assert audit(store.find(run, incidents=incidents, wanted=None)) == ()
        examined = verify.run(
            run, incidents=incidents, incident=None, argv=["spiketriage", "verify"]
        )
        assert examined.verdict in ("intact", "interrupted"), examined.lines


def kill_points(step: str, whole: dict[str, Any]) -> list[dict[str, Any]]:
    """Random file operations and random moments of a command that went like `whole` when nobody killed it."""
    chooser = random.Random(f"kill {step}")
    events = chooser.sample(range(1, whole["num_events"] + 1), NUM_EVENTS)
    moments = [chooser.uniform(0, 0.8 * whole["wall_s"]) for _ in range(NUM_MOMENTS)]
    return [*({"event": event} for event in events), *({"after_s": after_s} for after_s in moments)]


def test_each_command_killed_anywhere_leaves_a_readable_incident_and_is_finished_by_itself(
    child: Child, tmp_path: Path
) -> None:
    run, whole = (
        write_run(tmp_path / name, spike_at=110, rotten_document="doc-3")
        for name in ("run", "whole")
    )
    for step in STEPS:
        normal = child.run(step, str(whole))
        assert normal["code"] in (0, 1, 4, 5), child.log.read_text()[-2000:]
        num_killed = 0
        for how in kill_points(step, normal):
            num_killed += child.run(step, str(run), **how)["killed"]
            check_readable(run)
        assert num_killed, (
            step
        )  # a moment may come too late when the work was done by a command killed before
        finished = child.run(step, str(run))
        assert (finished["killed"], finished["code"]) == (False, normal["code"]), (
            child.log.read_text()[-2000:]
        )
        examined = verify.run(run, incidents=None, incident=None, argv=["spiketriage", "verify"])
        assert (step, examined.data["problems"]) == (step, [])
        assert len(list((run / ".spiketriage" / "incidents").iterdir())) == 1
    assert gone(marked(child.mark) - {child.process.pid}, within_s=10)
    known, expected = (
        store.find(folder, incidents=None, wanted=None).dossier() for folder in (run, whole)
    )
    assert {f.name: f.outcome for f in known.findings} == {
        f.name: f.outcome for f in expected.findings
    }
    assert known.anchors == expected.anchors
    assert known.verdict is not None
    assert (
        expected.verdict is not None
    )  # the next command in it names the folder, so the two are not equal
    assert (known.verdict.kind, known.verdict.causes) == (
        expected.verdict.kind,
        expected.verdict.causes,
    )
    assert kept(known) == kept(expected)
    finished_steps = [
        row.argv.split()[1] for row in known.journal if row.outcome != "ended without a record"
    ]
    assert list(dict.fromkeys(finished_steps)) == list(STEPS)
    assert len(known.journal) > len(STEPS)  # the killed ones are told too


def kept(dossier: Dossier) -> set[tuple[str, str, str]]:
    """Every artifact and how it was secured, but for the facts of this moment's machine."""
    return {(one.path, one.kept, one.digest) for one in dossier.artifacts if one.kind != "host"}


def test_an_open_reader_blocks_no_command(child: Child, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    assert child.run("freeze", str(run))["code"] == 0
    database = store.find(run, incidents=None, wanted=None).folder / "incident.duckdb"
    code = (
        "import duckdb, sys\n"
        f"connection = duckdb.connect({str(database)!r}, read_only=True)\n"
        "for _ in range(2):\n"
        "    print(connection.execute('SELECT count(*) FROM journal').fetchone()[0], flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "1\n"
        codes = [
            child.run(step, str(run))["code"] for step in ("hash", "check", "bisect", "report")
        ]
        assert codes == [0, 0, 5, 0], child.log.read_text()[-2000:]
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == "1\n"
    assert len(store.find(run, incidents=None, wanted=None).dossier().journal) == 5


def _is_rank(command: bytes) -> bool:
    """Whether it is a rank that trains, and neither its launcher nor its guardian, which name it."""
    is_above = b"torch.distributed.run" in command or b"guardian.py" in command
    return b"spiketriage.train.worker" in command and not is_above


class Started:
    """A real command that was started and not waited for, with every process that came of it."""

    def __init__(self, *words: str, log: Path) -> None:
        self.mark = f"{log}-{time.monotonic_ns()}"
        os.environ[MARK] = self.mark  # `start` hands this environment on
        self.log = log
        self.process = start(*words, log=log)
        del os.environ[MARK]

    def wait_for_workers(self) -> None:
        """Return when both ranks train; they are stopped, so that no load lets them end first."""
        until_s = time.monotonic() + 120
        while time.monotonic() < until_s:
            ranks = [pid for pid in marked(self.mark) if _is_rank(command_of(pid))]
            if len(ranks) == 2:
                for pid in ranks:
                    os.kill(pid, signal.SIGSTOP)
                return
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        pytest.fail("no worker was seen")

    def kill(self) -> None:
        """Kill the command alone; everything that it started must end by itself."""
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait(timeout=30) == -signal.SIGKILL
        assert gone(marked(self.mark), within_s=15), "a worker outlived the command"


@pytest.mark.slow
def test_replay_branch_and_triage_killed_while_ranks_train_are_finished_by_the_same_command(
    bitrot_run: Rehearsed, tmp_path: Path
) -> None:
    run, incidents, log = bitrot_run.folder, tmp_path / "incidents", tmp_path / "log"
    place = (str(run), "--incidents", str(incidents))
    chooser = random.Random(8)

    triage = Started("triage", *place, log=log)
    triage.wait_for_workers()
    second = call("check", *place, cwd=tmp_path)
    assert second.returncode == 8
    assert f"held by process {triage.process.pid} " in second.stderr
    assert call("status", *place, cwd=tmp_path).returncode == 0  # reading needs no lease
    triage.kill()
    check_readable(run, incidents)

    for step in ("replay", "branch"):
        command = Started(step, *place, log=log)
        command.wait_for_workers()
        time.sleep(chooser.uniform(0, 2))
        command.kill()
        check_readable(run, incidents)
        finished = call(step, *place, cwd=tmp_path)
        assert finished.returncode == 0, finished.stderr
        outcomes = [(row.argv.split()[1], row.outcome) for row in journal(run, incidents)]
        assert outcomes[-2:] == [(step, "ended without a record"), (step, "done")]

    done = call("triage", *place, "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert "error" not in said, said["error"]
    assert (done.returncode, said["verdict"], said["data"]["cause"]) == (
        0,
        "established",
        bitrot_run.fault,
    )
    assert call("verify", *place, cwd=tmp_path).returncode == 0
    assert len(list(incidents.iterdir())) == 1


def journal(run: Path, incidents: Path) -> Any:
    return store.find(run, incidents=incidents, wanted=None).dossier().journal
