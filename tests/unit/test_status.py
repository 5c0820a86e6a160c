"""`status` says where an incident stands and what to type next, beside a command in progress too."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from command_line import call, takes
from run_folder import write_run

from spiketriage.errors import EvidenceError, RefusedError
from spiketriage.incident import store
from spiketriage.nouns.incident import Anchors, Finding, Verdict, Where
from spiketriage.runbook import status

ANCHORS = Anchors(
    onset=100,
    suspect=100,
    reason="loss",
    known_good="step-000080",
    older_good="step-000040",
    refused={},
)
AT = datetime(2026, 11, 29, 3, 12, tzinfo=UTC)


@pytest.fixture
def incident(tmp_path: Path) -> store.Incident:
    run = write_run(tmp_path / "run", spike_at=100)
    return store.create(run, incidents=None, step=100, at=AT)


def did(
    incident: store.Incident, *words: str, exit_code: int = 0, verdict: Verdict | None = None
) -> None:
    """What the journal holds after this command."""
    with incident.session(["spiketriage", *words]) as session:
        session.exit_code = exit_code
        if words[0] == "freeze":
            session.anchors(ANCHORS)
        if verdict is not None:
            session.verdict(verdict)


def verdict(kind: str, cause: str | None, next_experiment: str | None = None) -> Verdict:
    return Verdict(
        kind=kind,  # type: ignore[arg-type]
        cause=cause,
        cause_class="data" if cause else None,
        candidates=(),
        explanation="because",
        where=Where(),
        causes=(),
        not_tested=(),
        repair="",
        next_experiment=next_experiment,
        steps_executed=0,
    )


def following(run: Path, incident: str | None = None) -> str:
    (command,) = status.run(
        run, incidents=None, incident=incident, argv=["spiketriage"]
    ).next_commands
    assert takes(command) == ""
    return command


def states(run: Path) -> Sequence[str]:
    data = status.run(run, incidents=None, incident=None, argv=["spiketriage"]).data
    return [step["state"] for step in data["steps"]]


def test_next_follows_the_runbook_to_its_end(tmp_path: Path, incident: store.Incident) -> None:
    run = tmp_path / "run"
    assert following(run) == f"spiketriage freeze {run}"
    for step, after in (
        ("freeze", "hash"),
        ("hash", "check"),
        ("check", "replay"),
        ("replay", "branch"),
    ):
        did(incident, step, str(run), exit_code=1)
        assert following(run) == f"spiketriage {after} {run}"
    did(incident, "branch", str(run), exit_code=5)
    assert states(run) == ["done"] * 5 + ["open"] * 2
    assert following(run) == f"spiketriage bisect {run}"
    did(incident, "bisect", str(run), verdict=verdict("established", "bad-document"))
    assert following(run) == f"spiketriage report {run}"
    (incident.folder / "report").mkdir(exist_ok=True)
    (incident.folder / "report" / "report.html").write_text("<html>")
    assert following(run) == f"spiketriage verify {run}"
    assert states(run) == ["done"] * 7


def test_a_step_that_stopped_is_the_next_one_again(
    tmp_path: Path, incident: store.Incident
) -> None:
    run = tmp_path / "run"
    did(incident, "freeze", str(run))
    did(incident, "hash", str(run), exit_code=130)
    assert states(run)[:3] == ["done", "stopped", "open"]
    assert following(run) == f"spiketriage hash {run}"
    did(incident, "triage", str(run), exit_code=143)
    assert following(run) == f"spiketriage triage {run}"


def test_what_hash_found_is_a_result_and_not_a_stop(
    tmp_path: Path, incident: store.Incident
) -> None:
    run = tmp_path / "run"
    did(incident, "freeze", str(run), exit_code=6)
    did(incident, "hash", str(run), exit_code=4)
    assert states(run)[:3] == ["done", "done", "open"]
    lines = status.run(run, incidents=None, incident=None, argv=[]).lines
    assert any(line.startswith("  hash    found something (exit 4)") for line in lines)
    assert following(run) == f"spiketriage check {run}"
    with pytest.raises(EvidenceError), incident.session(["spiketriage", "hash", str(run)]):
        raise EvidenceError("unreadable")
    assert states(run)[1] == "stopped"


def test_a_command_at_work_is_named(tmp_path: Path, incident: store.Incident) -> None:
    run = tmp_path / "run"
    with incident.session(["spiketriage", "replay", "run"]):
        lines = status.run(run, incidents=None, incident=None, argv=[]).lines
    assert any(
        line.startswith("at work since ") and line.endswith(": spiketriage replay run")
        for line in lines
    )
    assert f"process {os.getpid()} " in " ".join(lines)
    assert "at work" not in " ".join(status.run(run, incidents=None, incident=None, argv=[]).lines)


def test_an_unknown_incident_is_answered_with_the_known_ones(
    tmp_path: Path, incident: store.Incident
) -> None:
    with pytest.raises(RefusedError, match=incident.id) as caught:
        status.run(tmp_path / "run", incidents=None, incident="zzz", argv=[])
    assert takes(caught.value.hint) == ""
    with pytest.raises(RefusedError) as missing:
        store.find(tmp_path / "run", incidents=tmp_path / "else", wanted=None)
    assert (
        missing.value.hint
        == f"spiketriage freeze {tmp_path / 'run'} --incidents {tmp_path / 'else'}"
    )


def test_triage_covers_the_steps_that_it_always_takes(
    tmp_path: Path, incident: store.Incident
) -> None:
    run = tmp_path / "run"
    did(incident, "freeze", str(run))
    did(incident, "triage", str(run), exit_code=1, verdict=verdict("established", "shard-bitrot"))
    assert states(run) == ["done", "done", "done", "open", "open", "done", "open"]


def test_an_undecided_verdict_asks_for_its_experiment(
    tmp_path: Path, incident: store.Incident
) -> None:
    run = tmp_path / "run"
    did(incident, "freeze", str(run))
    proposal = f"spiketriage branch {run} --experiment skip --incident {incident.id}"
    did(incident, "bisect", str(run), exit_code=5, verdict=verdict("undetermined", None, proposal))
    assert following(run) == proposal


def test_what_speaks_against_the_run_and_the_verdict_are_shown(
    tmp_path: Path, incident: store.Incident
) -> None:
    run = tmp_path / "run"
    did(incident, "freeze", str(run))
    with incident.session(["spiketriage", "check"]) as session:
        session.findings([Finding(name="ids", outcome="agrees", summary="all")])
        session.findings(
            [
                Finding(
                    name="data-at-rest",
                    outcome="differs",
                    summary="shard 3 is not what the index says",
                )
            ]
        )
        session.findings([Finding(name="code", outcome="differs", summary="restart", judged=False)])
        session.verdict(verdict("established", "shard-bitrot"))
    with incident.session(["spiketriage", "replay"]):  # a command in progress
        shown = call("status", cwd=run)
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert "onset step 100, suspect step 100: loss" in lines
    assert "differs: data-at-rest: shard 3 is not what the index says" in lines
    assert "verdict: established shard-bitrot (data): because" in lines
    assert [line for line in lines if "agrees" in line or "restart" in line] == []


def test_json_and_a_wrong_name(tmp_path: Path, incident: store.Incident) -> None:
    run = tmp_path / "run"
    did(incident, "freeze", str(run))
    envelope = json.loads(call("status", str(run), "--json", cwd=tmp_path).stdout)
    assert envelope["schema"] == "spiketriage.status/1"
    assert envelope["incident"] == incident.id
    assert envelope["data"]["anchors"]["known_good"] == "step-000080"
    assert call("status", str(run), "-i", "1999", cwd=tmp_path).returncode == 3


def test_a_folder_that_is_no_run_is_not_called_untouched(tmp_path: Path) -> None:
    assert call("status", str(tmp_path / "absent"), cwd=tmp_path).returncode == 4
    (tmp_path / "empty").mkdir()
    done = call("status", str(tmp_path / "empty"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, "")
    assert "empty" in done.stderr


def test_looking_changes_nothing(tmp_path: Path, incident: store.Incident) -> None:
    did(incident, "freeze", str(tmp_path / "run"))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    assert call("status", str(tmp_path / "run"), cwd=tmp_path).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
