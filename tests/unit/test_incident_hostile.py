"""An incident of a stranger, whose views read other files or never end, is read like any other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
from command_line import PROGRAM, environment

from spiketriage.errors import EvidenceError, UsageError
from spiketriage.incident.audit import audit
from spiketriage.incident.query import query
from spiketriage.incident.store import Incident, create

ARGV = ("spiketriage", "hash")
ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t"
CPU_S = 2  # by then the query runs: starting and opening the incident take half of it


@pytest.fixture
def incident(tmp_path: Path) -> Incident:
    made = create(tmp_path, incidents=None, step=7, at=datetime(2026, 11, 29, 3, 12, tzinfo=UTC))
    with made.session(ARGV) as session:
        session.fact("run_id", "ours")
    (tmp_path / "secret.txt").write_text("a secret")
    return made


def edit(incident: Incident, *statements: str) -> None:
    with duckdb.connect(str(incident.folder / "incident.duckdb")) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize("body", ["SELECT content FROM read_text('{secret}')", ENDLESS])
def test_no_command_of_ours_reads_a_view_and_verify_names_it(
    incident: Incident, tmp_path: Path, body: str
) -> None:
    body = body.format(secret=tmp_path / "secret.txt")
    edit(incident, f"CREATE OR REPLACE VIEW latest_facts AS {body}")
    with incident.session(ARGV) as session:
        session.fact("first_step", "1")
    assert incident.dossier().facts == {"run_id": "ours", "first_step": "1"}
    [problem] = audit(incident)
    assert "view latest_facts: edited" in problem


def test_a_table_that_became_a_view_is_refused_by_name(incident: Incident) -> None:
    edit(incident, "ALTER TABLE facts RENAME TO old", f"CREATE VIEW facts AS {ENDLESS}")
    with pytest.raises(EvidenceError, match="table facts: is missing or no table"):
        incident.dossier()
    with pytest.raises(EvidenceError, match="table facts"), incident.session(ARGV) as session:
        session.fact("first_step", "1")


def test_macros_that_take_the_names_of_functions_change_nothing_and_are_named(
    incident: Incident,
) -> None:
    edit(
        incident,
        "CREATE MACRO duckdb_tables() AS TABLE SELECT 'x' AS schema_name",
        "CREATE MACRO min(x) AS 42",
    )
    assert incident.dossier().facts == {"run_id": "ours"}
    seen = [problem.partition(": ")[2] for problem in audit(incident)]
    assert [text.partition(":")[0] for text in seen] == ["macro duckdb_tables", "macro min"]


@pytest.mark.parametrize(
    "statement",
    [
        "FROM latest_facts",
        "SELECT * FROM read_text('{secret}')",
        "FROM read_csv('{secret}')",
        "FROM glob('{secret}')",
    ],
)
def test_a_question_reaches_no_other_file_through_a_view_or_without(
    incident: Incident, tmp_path: Path, statement: str
) -> None:
    secret = tmp_path / "secret.txt"
    edit(
        incident,
        f"CREATE OR REPLACE VIEW latest_facts AS SELECT content FROM read_text('{secret}')",
    )
    with pytest.raises(UsageError, match="disabled by configuration"):
        query(incident, statement.format(secret=secret))


@pytest.mark.slow
@pytest.mark.parametrize("statement", ["FROM latest_facts", "FROM range(4000000000)"])
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_question_that_has_no_end(
    incident: Incident, statement: str, sent: signal.Signals, code: int
) -> None:
    edit(incident, f"CREATE OR REPLACE VIEW latest_facts AS {ENDLESS}")
    run = incident.folder.parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "sql", statement, str(run)],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as asking:
        wait_for_cpu(asking.pid)
        assert asking.poll() is None
        asking.send_signal(sent)
        assert asking.wait(timeout=30) == code


def wait_for_cpu(pid: int) -> None:
    """Return when the process has worked for a while."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if int(fields[11]) + int(fields[12]) > CPU_S * os.sysconf("SC_CLK_TCK"):
            return
        time.sleep(0.05)
    pytest.fail("the process never worked")
