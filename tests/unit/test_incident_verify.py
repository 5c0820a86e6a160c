"""`verify` names the file or the row that is not what it was.

Every damage is done to a real incident.
"""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
import xxhash
from run_folder import write_run

from spiketriage.evidence import bag
from spiketriage.incident import database
from spiketriage.incident.rows import chained
from spiketriage.incident.store import Incident, create, find
from spiketriage.nouns.incident import (
    Anchors,
    Artifact,
    Finding,
    Freeze,
    StepPoint,
    StepResult,
    TrialRow,
    Verdict,
    Where,
)
from spiketriage.runbook import freeze, hash
from spiketriage.tools import verify

FILES = {
    "data/config.json": b'{"lr": 1}',
    "data/logs/rank 0%.log": b"a line\n",
    "data/é\u2028\x0b.log": b"",
    "telemetry.parquet": b"PAR1",
}


def artifact(path: str, content: bytes, kept: str, mtime_ns: int) -> Artifact:
    return Artifact(
        path=path,
        kind="shard",
        size_bytes=len(content),
        mtime_ns=mtime_ns,
        digest=xxhash.xxh3_128_hexdigest(content),
        expected="",
        kept=kept,
        note="",
    )


@pytest.fixture
def incident(tmp_path: Path) -> Incident:
    made = create(tmp_path, incidents=None, step=7, at=datetime(2026, 11, 29, 3, 12, tzinfo=UTC))
    evidence = made.folder / "evidence"
    for name, content in FILES.items():
        path = evidence / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    sealed = bag.close(evidence, {})
    (tmp_path / "data").mkdir()
    for i in (0, 1):
        (tmp_path / "data" / f"shard-{i}.bin").write_bytes(bytes([i]) * 64)
    (evidence / "pinned" / "data").mkdir(parents=True)
    os.link(tmp_path / "data" / "shard-1.bin", evidence / "pinned" / "data" / "shard-1.bin")
    for command in ("freeze", "hash", "check"):
        with made.session(["spiketriage", command]) as session:
            session.fact("trigger", f"written by {command}")
            session.findings(
                [Finding(name=command, outcome="agrees", summary="s", magnitude=float("nan"))]
            )
            if command == "freeze":
                session.frozen(Freeze(is_whole=True))
                session.wrote({"evidence/tagmanifest-sha256.txt": sealed})
                session.artifacts(
                    artifact(
                        f"data/shard-{i}.bin",
                        bytes([i]) * 64,
                        kept,
                        mtime_ns(tmp_path / f"data/shard-{i}.bin"),
                    )
                    for i, kept in ((0, "referenced"), (1, "pinned"))
                )
                session.anchors(
                    Anchors(
                        onset=1, suspect=1, reason="", known_good=None, older_good=None, refused={}
                    )
                )
                session.steps(
                    StepPoint(
                        attempt=0,
                        step=i,
                        loss=1.0,
                        grad_norm=1.0,
                        update_norm=1.0,
                        lr=1.0,
                        alarm="",
                    )
                    for i in (1, 2, 3)
                )
                session.trials([trial()])
                session.verdict(verdict())
    return made


def mtime_ns(path: Path) -> int:
    return path.stat().st_mtime_ns


def trial() -> TrialRow:
    return TrialRow(
        key="k",
        kind="replay",
        purpose="control",
        factors={"code": "deployed", "batch": "recorded"},
        first_step=1,
        last_step=2,
        repeat=0,
        state="done",
        num_steps_executed=2,
        wall_s=1.5,
        summary="",
    )


def verdict() -> Verdict:
    return Verdict(
        kind="unresolved",
        cause=None,
        cause_class=None,
        candidates=("a", "b"),
        explanation="",
        where=Where(step=1),
        causes=(),
        not_tested=(),
        repair="",
        next_experiment=None,
        steps_executed=0,
    )


def verified(incident: Incident, *, deep: bool = False) -> StepResult:
    run = incident.folder.parents[2]
    return verify.run(run, incidents=None, incident=None, argv=["spiketriage", "verify"], deep=deep)


def broken(incident: Incident, *, deep: bool = False) -> list[str]:
    result = verified(incident, deep=deep)
    problems: list[str] = result.data["problems"]
    assert result.exit_code == (4 if problems else 0)
    assert [line for line in result.lines if line.startswith("broken")] == [
        f"broken  {text}" for text in problems
    ]
    return problems


def edit(incident: Incident, statement: str) -> None:
    with duckdb.connect(str(incident.folder / "incident.duckdb")) as connection:
        connection.execute(statement)


@pytest.mark.parametrize("deep", [False, True])
def test_an_untouched_incident_is_intact(incident: Incident, deep: bool) -> None:
    before = (incident.folder / "incident.duckdb").read_bytes()
    result = verified(incident, deep=deep)
    assert (result.exit_code, result.verdict, result.data["problems"]) == (0, "intact", [])
    assert result.lines[-1] == f"{incident.id}: intact"
    assert (incident.folder / "incident.duckdb").read_bytes() == before


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    "change",
    [
        "who = 'eve'",
        "exit_code = 1",
        "outcome = 'nothing'",
        "duration_s = duration_s + 1e-9",
        "argv = argv || ' '",
        "digest = repeat('0', 64)",
    ],
)
def test_an_edited_journal_row_is_named(incident: Incident, number: int, change: str) -> None:
    edit(incident, f"UPDATE journal SET {change} WHERE number = {number}")
    [problem] = broken(incident)
    assert f"journal row {number}:" in problem


@pytest.mark.parametrize(
    ("table", "number", "change"),
    [
        ("facts", 2, "value = 'no'"),
        ("findings", 1, "outcome = 'differs'"),
        ("findings", 2, "magnitude = 1.0"),
        ("findings", 3, "nonfinite = MAP {}"),
        ("steps", 2, "loss = 1.0000000000000002"),
        ("steps", 2, "loss = 'NaN'"),
        ("anchors", 1, "suspect = NULL"),
        ("artifacts", 1, "digest_measured = ''"),
        ("trials", 1, "factors = MAP {'code': 'fixed'}"),
        ("verdicts", 1, "candidates = ['a']"),
    ],
)
def test_an_edited_result_is_named(
    incident: Incident, table: str, number: int, change: str
) -> None:
    edit(incident, f"UPDATE {table} SET {change} WHERE number = {number}")
    assert any(f"{table} row {number}:" in problem for problem in broken(incident))


def test_a_removed_row_is_named(incident: Incident) -> None:
    edit(incident, "DELETE FROM journal WHERE number = 2")
    edit(incident, "DELETE FROM steps WHERE number = 1")
    problems = broken(incident)
    assert ["journal row 2:" in problems[0], "steps row 1:" in problems[1], len(problems)] == [
        True,
        True,
        2,
    ]


def test_a_changed_file_is_named(incident: Incident) -> None:
    path = incident.folder / "evidence" / "data" / "config.json"
    path.write_bytes(b'{"lr": 2}')
    [problem] = broken(incident)
    assert problem.startswith(f"{path}: changed")
    assert hashlib.sha256(b'{"lr": 2}').hexdigest() in problem


@pytest.mark.parametrize("copied", ["data/config.json", "telemetry.parquet"])
def test_a_byte_of_a_real_freeze_that_was_changed_with_every_line_about_it_is_found(
    tmp_path: Path, copied: str
) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    given = {"incidents": None, "incident": None}
    freeze.run(run, **given, argv=["spiketriage", "freeze", str(run)])
    frozen = find(run, incidents=None, wanted=None)
    assert broken(frozen) == []
    evidence = frozen.folder / "evidence"
    content = bytearray((evidence / copied).read_bytes())
    content[len(content) // 2] ^= 1
    _rewritten(evidence, copied, bytes(content))
    [problem] = broken(frozen)
    assert problem.startswith(f"{evidence}/tagmanifest-sha256.txt: changed: expected")
    # a later command works on what lies there, but does not vouch for it
    hash.run(run, **given, argv=["spiketriage", "hash", str(run)])
    assert problem in broken(frozen)


def _rewritten(evidence: Path, name: str, content: bytes) -> None:
    """Change a file, and make every manifest agree with it."""
    digests = {}
    for changed, data in ((name, content), ("manifest-sha256.txt", None)):
        path = evidence / changed
        before = path.read_bytes()
        path.write_bytes(data if data is not None else _replaced(before, digests))
        digests[_sha256(before)] = _sha256(path.read_bytes())
    tags = evidence / "tagmanifest-sha256.txt"
    tags.write_bytes(_replaced(tags.read_bytes(), digests))


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _replaced(content: bytes, digests: dict[bytes, bytes]) -> bytes:
    for old, new in digests.items():
        content = content.replace(old, new)
    return content


def test_an_incident_killed_before_its_freeze_was_journaled_is_not_intact(tmp_path: Path) -> None:
    made = create(tmp_path, incidents=None, step=7, at=datetime(2026, 11, 29, 3, 12, tzinfo=UTC))
    (made.folder / "evidence" / "data").mkdir(parents=True)
    (made.folder / "evidence" / "data" / "config.json").write_bytes(b"{}")
    bag.close(made.folder / "evidence", {})
    [problem] = broken(made)
    assert problem.endswith("tagmanifest-sha256.txt: no command wrote it")


def test_an_incident_whose_freeze_was_killed_before_it_kept_anything_is_interrupted(
    tmp_path: Path,
) -> None:
    made = create(tmp_path, incidents=None, step=7, at=datetime(2026, 11, 29, 3, 12, tzinfo=UTC))
    result = verified(made)
    assert (result.verdict, result.exit_code) == ("interrupted", 6)
    assert result.data["interrupted"] == [f"{made.id}: its freeze ended before it kept anything"]
    # Evidence that lies there although no command says that it began is nobody's.
    (made.folder / "evidence").mkdir()
    [problem] = broken(made)
    assert "manifest-sha256.txt: missing" in problem


@pytest.mark.parametrize(("table", "number"), [("steps", 3), ("findings", 3), ("verdicts", 1)])
def test_rows_cut_off_the_end_of_a_table_are_named(
    incident: Incident, table: str, number: int
) -> None:
    edit(incident, f"DELETE FROM {table} WHERE number = {number}")
    [problem] = broken(incident)
    assert f"{table} row {number}:" in problem


def test_a_row_that_was_edited_and_chained_again_is_named(incident: Incident) -> None:
    edit(incident, "UPDATE findings SET summary = 'another' WHERE number = 3")
    with database.reading(incident.folder) as connection:
        rows = database.select(connection, "SELECT * FROM findings ORDER BY number")
    row = {name: value for name, value in rows[2].items() if name != "digest"}
    [again] = chained([row], last_number=2, previous=rows[1]["digest"], command=row["command"])
    edit(incident, f"UPDATE findings SET digest = '{again['digest']}' WHERE number = 3")
    [problem] = broken(incident)
    assert "findings row 3:" in problem


def test_a_missing_and_an_added_file_are_named(incident: Incident) -> None:
    evidence = incident.folder / "evidence"
    (evidence / "data" / "logs" / "rank 0%.log").unlink()
    (evidence / "data" / "planted.log").write_text("x")
    assert broken(incident) == [
        f"{evidence}/data/logs/rank 0%.log: missing",
        f"{evidence}/data/planted.log: not in manifest-sha256.txt",
    ]


def test_a_manifest_cannot_lead_out_of_the_evidence(incident: Incident, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (incident.folder / "evidence" / "link").symlink_to(tmp_path / "secret")
    digest = hashlib.sha256(b"s").hexdigest()
    with (incident.folder / "evidence" / "manifest-sha256.txt").open("a") as stream:
        stream.write(f"{digest}  ../../../../secret\n{digest}  link\n{digest}  {tmp_path}/secret\n")
    changed, *problems, planted = broken(incident)
    assert "manifest-sha256.txt: changed" in changed
    assert len(problems) == 3
    assert all("leads out of evidence/" in problem for problem in problems)
    assert planted.endswith("evidence/link: no command wrote it")


def test_a_missing_or_damaged_manifest_is_named(incident: Incident) -> None:
    manifest = incident.folder / "evidence" / "manifest-sha256.txt"
    manifest.write_text("not a digest\n")
    [problem] = broken(incident)
    assert problem.startswith(f"{manifest}: line 1: expected '<sha256>  <path>'")
    manifest.write_bytes(b"\xff\xfe")
    [problem] = broken(incident)
    assert problem.startswith(f"{manifest}: ")
    manifest.unlink()
    assert broken(incident) == [f"{manifest}: missing, so the freeze did not finish"]


def test_a_shard_that_changed_its_size_or_is_gone_is_named(
    incident: Incident, tmp_path: Path
) -> None:
    shard = tmp_path / "data" / "shard-0.bin"
    shard.write_bytes(b"short")
    assert broken(incident) == [f"{shard}: changed: expected 64 bytes, found 5"]
    shard.unlink()
    assert broken(incident) == [f"{shard}: missing, and not pinned"]


def test_a_pinned_shard_outlives_the_trainers_rotation(incident: Incident, tmp_path: Path) -> None:
    (tmp_path / "data" / "shard-1.bin").unlink()
    assert broken(incident, deep=True) == []


def test_only_deep_sees_a_flip_that_kept_size_and_time(incident: Incident, tmp_path: Path) -> None:
    shard = tmp_path / "data" / "shard-0.bin"
    before = shard.stat()
    shard.write_bytes(b"\1" + bytes(63))
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert broken(incident) == []
    [problem] = broken(incident, deep=True)
    assert problem.startswith(f"{shard}: changed: expected xxh3-128 ")


def test_a_touched_shard_is_doubted_until_its_digest_is_compared(
    incident: Incident, tmp_path: Path
) -> None:
    shard = tmp_path / "data" / "shard-0.bin"
    os.utime(shard, ns=(1, 1))
    [problem] = broken(incident)
    assert problem.startswith(f"{shard}: written since the freeze")
    assert broken(incident, deep=True) == []


def test_an_unreadable_database_still_lets_the_files_be_examined(incident: Incident) -> None:
    (incident.folder / "incident.duckdb").write_bytes(b"x" * 5000)
    (incident.folder / "evidence" / "telemetry.parquet").write_bytes(b"PAR2")
    first, second = broken(incident)
    assert "incident.duckdb" in first
    assert "telemetry.parquet: changed" in second
