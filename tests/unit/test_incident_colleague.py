"""A colleague's own DuckDB client, in read-write mode, working or killed, blocks nobody.

Real clients in processes of their own; what such a client wrote is kept, and is never taken for ours.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest

from spiketriage.incident.audit import audit
from spiketriage.incident.store import Incident, create
from spiketriage.tools import verify

ARGV = ("spiketriage", "hash")
CLIENT = """
import duckdb, sys
connection = duckdb.connect(sys.argv[1])
for statement in map(str.strip, sys.stdin):
    if statement:
        connection.execute(statement)
    print("done", flush=True)
"""


class Client:
    """A DuckDB client that has the record open for writing."""

    def __init__(self, database: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(database)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ask("")

    def ask(self, statement: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{statement}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def client(incident: Incident) -> Iterator[Client]:
    started = Client(incident.folder / "incident.duckdb")
    with started.process:
        yield started


@pytest.fixture
def incident(tmp_path: Path) -> Incident:
    made = create(tmp_path, incidents=None, step=7, at=datetime(2026, 11, 29, 3, 12, tzinfo=UTC))
    record(made, "before")
    return made


def record(incident: Incident, value: str) -> None:
    with incident.session(ARGV) as session:
        session.fact("run_id", value)


def check_goes_on(incident: Incident, value: str) -> None:
    """Whoever reads and whoever writes goes on, and the record is what our commands wrote."""
    record(incident, value)
    assert incident.dossier().facts == {"run_id": value}
    assert audit(incident) == ()


def set_aside(incident: Incident) -> list[str]:
    return [row.argv for row in incident.dossier().journal if "set aside" in row.argv]


def test_a_client_that_has_the_record_open_stops_neither_readers_nor_writers(
    incident: Incident,
) -> None:
    with client(incident) as colleague:
        assert incident.dossier().facts == {"run_id": "before"}
        check_goes_on(incident, "during")
        colleague.ask("CREATE TABLE scratch (a INT)")
        check_goes_on(incident, "later")
    check_goes_on(incident, "after")


@pytest.mark.parametrize("is_killed", [True, False])
def test_what_a_client_wrote_is_kept_aside_and_can_be_opened_again(
    incident: Incident, is_killed: bool
) -> None:
    with client(incident) as colleague:
        colleague.ask("CREATE TABLE scratch (a INT)")
        colleague.ask("INSERT INTO scratch VALUES (41)")
        assert incident.dossier().facts == {"run_id": "before"}
        check_goes_on(incident, "during")
        colleague.ask("INSERT INTO scratch VALUES (42)")
        check_goes_on(incident, "later")
        if is_killed:
            colleague.kill()
    check_goes_on(incident, "after")
    assert not (incident.folder / "incident.duckdb.wal").exists()
    [row] = set_aside(incident)
    [kept] = (incident.folder / "set-aside").iterdir()
    assert kept.name in row
    with duckdb.connect(str(kept / "incident.duckdb")) as connection:
        assert connection.execute("SELECT a FROM scratch ORDER BY a").fetchall() == [(41,), (42,)]


def test_a_log_that_does_not_fit_is_set_aside_and_journalled(incident: Incident) -> None:
    log = incident.folder / "incident.duckdb.wal"
    log.write_bytes(b"left by a client of last week")
    assert incident.dossier().facts == {"run_id": "before"}
    assert verify_problems(incident) == []
    check_goes_on(incident, "after")
    [kept] = (incident.folder / "set-aside").iterdir()
    assert (kept / log.name).read_bytes() == b"left by a client of last week"
    assert not log.exists()
    assert [kept.name in row for row in set_aside(incident)] == [True]


def verify_problems(incident: Incident) -> list[str]:
    run = incident.folder.parents[2]
    result = verify.run(run, incidents=None, incident=None, argv=["spiketriage", "verify"])
    return [text for text in result.data["problems"] if "manifest-sha256.txt" not in text]


def test_rows_that_a_client_committed_into_the_record_are_found(incident: Incident) -> None:
    with client(incident) as colleague:
        colleague.ask("UPDATE facts SET value = 'theirs'")
    # a clean end writes its log into the file
    assert any("facts row 1: edited" in text for text in audit(incident))
