"""What goes into an incident comes out of it, newest rows only.

These tests never look at its tables.
"""

from __future__ import annotations

import hashlib
import math
import resource
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spiketriage.diagnosis.role import AGAINST_THE_RUN, TESTS_CAUSES, TESTS_MENTIONED
from spiketriage.errors import EvidenceError, PartialError, RefusedError, UsageError
from spiketriage.incident.query import query
from spiketriage.incident.store import Incident, create, find
from spiketriage.nouns.checkpoint import MeasuredGeneration
from spiketriage.nouns.incident import (
    Anchors,
    Artifact,
    CauseView,
    Dossier,
    Finding,
    Freeze,
    Spike,
    StepPoint,
    TrialRow,
    Verdict,
    Where,
)

AT = datetime(2026, 11, 29, 3, 12, 40, tzinfo=UTC)
ARGV = ("spiketriage", "check", "a run")
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(
    max_size=12
)  # every character that UTF-8 can hold: NUL, quotes, other scripts, emoji
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
NAMED = st.dictionaries(TEXT, TEXT, max_size=3)
NUMBER = st.floats(allow_nan=True, allow_infinity=True)
WHERE = st.builds(
    Where,
    step=st.none() | INT64,
    stage=st.none() | TEXT,
    key=st.none() | TEXT,
    rank=st.none() | INT64,
    path=st.none() | TEXT,
    field=st.none() | TEXT,
)
FINDING = st.builds(
    Finding,
    name=TEXT,
    outcome=st.sampled_from(["agrees", "differs", "nonfinite", "not testable"]),
    summary=TEXT,
    source=st.sampled_from(["check", "experiment"]),
    where=WHERE,
    expected=TEXT,
    seen=TEXT,
    magnitude=st.none() | NUMBER,
    judged=st.booleans(),
    role=st.sampled_from([TESTS_CAUSES, TESTS_MENTIONED, AGAINST_THE_RUN]),
    dates_onset=st.booleans(),
    trials=TEXTS,
)
ANCHORS = st.builds(
    Anchors,
    onset=st.none() | INT64,
    suspect=st.none() | INT64,
    reason=TEXT,
    known_good=st.none() | TEXT,
    older_good=st.none() | TEXT,
    refused=NAMED,
)
CAUSE = st.builds(
    CauseView,
    name=TEXT,
    cause_class=TEXT,
    status=st.sampled_from(["decided", "open", "contradicted"]),
    supporting=TEXTS,
    contradicting=TEXTS,
    untested=TEXTS,
)
VERDICT = st.builds(
    Verdict,
    kind=st.sampled_from(["established", "undetermined", "nothing-found"]),
    cause=st.none() | TEXT,
    cause_class=st.none() | TEXT,
    candidates=TEXTS,
    explanation=TEXT,
    where=WHERE,
    causes=st.lists(CAUSE, max_size=3).map(tuple),
    not_tested=TEXTS,
    repair=TEXT,
    next_experiment=st.none() | TEXT,
    steps_executed=INT64,
)
TRIAL = st.builds(
    TrialRow,
    key=TEXT,
    kind=TEXT,
    purpose=TEXT,
    factors=NAMED,
    first_step=INT64,
    last_step=INT64,
    repeat=INT64,
    state=st.sampled_from(["planned", "done", "failed", "interrupted"]),
    num_steps_executed=INT64,
    wall_s=NUMBER,
    summary=TEXT,
)
STEP = st.builds(
    StepPoint,
    attempt=INT64,
    step=INT64,
    loss=NUMBER,
    grad_norm=NUMBER,
    update_norm=NUMBER,
    lr=NUMBER,
    alarm=TEXT,
)
GENERATION = st.builds(
    MeasuredGeneration,
    name=TEXT,
    step=st.none() | INT64,
    layout=TEXT,
    complete=st.booleans(),
    world_size=st.none() | INT64,
    nonfinite=TEXTS,
    problems=TEXTS,
    odd=TEXTS,
    interrupted=TEXT,
    notes=TEXTS,
    stated_steps=st.dictionaries(TEXT, INT64, max_size=3),
    file_digests=NAMED,
)
ARTIFACT = st.builds(
    Artifact,
    path=TEXT,
    kind=TEXT,
    size_bytes=INT64,
    mtime_ns=INT64,
    digest=TEXT,
    expected=TEXT,
    kept=TEXT,
    note=TEXT,
)


@contextmanager
def new_incident() -> Iterator[Incident]:
    """A fresh incident in a folder of its own; hypothesis needs one for each example."""
    with tempfile.TemporaryDirectory() as folder:
        yield create(Path(folder), incidents=None, step=7, at=AT)


def finding(name: str, **more: Any) -> Finding:
    return Finding(name=name, outcome="agrees", summary="s", **more)


def stored(incident: Incident) -> Dossier:
    return incident.dossier()


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    findings=st.lists(FINDING, max_size=4, unique_by=lambda row: row.name),
    anchors=ANCHORS,
    verdict=VERDICT,
    trials=st.lists(TRIAL, max_size=3, unique_by=lambda row: row.key),
    steps=st.lists(STEP, max_size=5, unique_by=lambda row: (row.attempt, row.step)),
    artifacts=st.lists(ARTIFACT, max_size=3, unique_by=lambda row: row.path),
    facts=NAMED,
    generations=st.lists(GENERATION, max_size=3, unique_by=lambda row: row.name),
    spike=st.builds(Spike, onset=st.none() | INT64, suspect=st.none() | INT64),
    freeze=st.builds(
        Freeze,
        is_whole=st.booleans(),
        gaps=TEXTS,
        telemetry_problems=TEXTS,
        telemetry_notes=TEXTS,
    ),
)
def test_every_record_comes_back_as_it_went_in(
    findings: list[Finding],
    anchors: Anchors,
    verdict: Verdict,
    trials: list[TrialRow],
    steps: list[StepPoint],
    artifacts: list[Artifact],
    facts: dict[str, str],
    generations: list[MeasuredGeneration],
    spike: Spike,
    freeze: Freeze,
) -> None:
    with new_incident() as incident:
        with incident.session(ARGV) as session:
            session.findings(findings)
            session.anchors(anchors)
            session.verdict(verdict)
            session.trials(trials)
            session.steps(steps)
            session.artifacts(artifacts)
            session.generations(generations)
            session.spike(spike)
            session.frozen(freeze)
            for key, value in facts.items():
                session.fact(key, value)
        seen = stored(incident)
    # repr tells NaN from a number, -0.0 from 0.0, None from NaN, and a tuple from a list; equality
    # does not
    assert list(map(repr, seen.findings)) == list(map(repr, findings))
    assert seen.anchors == anchors
    assert seen.verdict == verdict
    assert list(map(_with_sorted_factors, seen.trials)) == list(map(_with_sorted_factors, trials))
    in_order = sorted(steps, key=lambda row: (row.attempt, row.step))
    assert list(map(repr, seen.steps)) == list(map(repr, in_order))
    assert list(seen.artifacts) == artifacts
    assert seen.facts == facts
    by_name = {row.name: row for row in generations}
    assert {row.name: row for row in seen.generations} == by_name
    assert (seen.spike, seen.freeze) == (spike, freeze)
    assert seen.incident == "2026-11-29T0312Z-step7"


def _with_sorted_factors(row: TrialRow) -> str:
    return repr(replace(row, factors=dict(sorted(row.factors.items()))))


def test_nan_infinities_and_unknown_are_four_different_magnitudes() -> None:
    magnitudes = (math.nan, math.inf, -math.inf, None)
    with new_incident() as incident:
        with incident.session(ARGV) as session:
            session.findings(
                finding(f"f{i}", magnitude=value) for i, value in enumerate(magnitudes)
            )
        assert [repr(row.magnitude) for row in stored(incident).findings] == [
            "nan",
            "inf",
            "-inf",
            "None",
        ]


def test_a_path_that_is_not_utf8_comes_back_as_it_was_and_reads_as_escapes() -> None:
    name = b"shard-\xff.bin".decode("utf-8", "surrogateescape")
    with new_incident() as incident:
        with incident.session(ARGV) as session:
            session.fact("run_id", name)
        assert stored(incident).facts == {"run_id": name}
        (row,) = query(incident, "SELECT value FROM facts").rows
        assert row == ("shard-\\udcff.bin",)


def test_newer_rows_supersede_and_keep_the_place_of_the_first() -> None:
    with new_incident() as incident:
        with incident.session(ARGV) as session:
            session.findings([finding("a", seen="1"), finding("b", seen="1")])
            session.fact("trigger", "old")
        with incident.session(ARGV) as session:
            session.findings(
                [finding("a", seen="2"), finding("c", seen="1"), finding("a", seen="3")]
            )
            session.fact("trigger", "new")
        seen = stored(incident)
    assert [(row.name, row.seen) for row in seen.findings] == [("a", "3"), ("b", "1"), ("c", "1")]
    assert seen.facts == {"trigger": "new"}


def test_rows_show_only_after_a_commit() -> None:
    with new_incident() as incident:
        with incident.session(ARGV) as session:
            session.fact("first_step", "1")
            assert stored(incident).facts == {}
            session.commit()
            session.fact("last_step", "2")
            assert stored(incident).facts == {"first_step": "1"}
        assert stored(incident).facts == {"first_step": "1", "last_step": "2"}


def fail_halfway(incident: Incident) -> None:
    with incident.session(ARGV) as session:
        session.fact("run", "1")
        session.commit()
        session.fact("run_id", "1")
        raise UsageError("three wheels")


def test_an_error_drops_the_rows_since_the_last_commit_and_is_journaled() -> None:
    with new_incident() as incident:
        with pytest.raises(UsageError, match="three wheels"):
            fail_halfway(incident)
        seen = stored(incident)
    assert seen.facts == {"run": "1"}
    assert [(row.outcome, row.exit_code) for row in seen.journal] == [
        ("UsageError: three wheels", 2)
    ]


def test_the_journal_holds_a_row_a_command_with_its_exit_code() -> None:
    with new_incident() as incident:
        with incident.session(ARGV) as session:
            session.exit_code = 1
        with incident.session(ARGV, journal=False) as session:
            session.fact("trigger", "yes")
        with incident.session(ARGV):
            pass
        seen = stored(incident)
    assert [(row.number, row.argv, row.exit_code) for row in seen.journal] == [
        (1, "spiketriage check 'a run'", 1),
        (2, "spiketriage check 'a run'", 0),
    ]
    assert seen.facts == {"trigger": "yes"}


def test_incidents_are_named_by_utc_minute_and_step_and_never_collide(tmp_path: Path) -> None:
    local = AT.astimezone(timezone(timedelta(hours=5)))
    names = [create(tmp_path, incidents=None, step=48211, at=local).id for _ in range(3)]
    names.append(create(tmp_path, incidents=None, step=None, at=AT).id)
    stem = "2026-11-29T0312Z"
    assert names == [
        f"{stem}-step48211",
        f"{stem}-step48211-2",
        f"{stem}-step48211-3",
        f"{stem}-audit",
    ]


def test_find_takes_the_latest_made_or_a_unique_prefix(tmp_path: Path) -> None:
    late = create(tmp_path, incidents=None, step=9, at=AT + timedelta(minutes=1))
    early = [create(tmp_path, incidents=None, step=step, at=AT) for step in (300, 4)]
    assert find(tmp_path, incidents=None, wanted=None).id == late.id
    assert find(tmp_path, incidents=None, wanted="2026-11-29T0312Z-step3").id == early[0].id
    with pytest.raises(UsageError, match="fits 2 incidents"):
        find(tmp_path, incidents=None, wanted="2026-11-29T0312Z")


def test_of_two_incidents_of_one_minute_the_one_made_last_is_the_latest(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    made = [create(tmp_path, incidents=elsewhere, step=step, at=AT) for step in (300, 4, 4)]
    assert made[-1].id.endswith("-step4-2")
    assert find(tmp_path, incidents=elsewhere, wanted=None).id == made[-1].id
    assert find(tmp_path, incidents=elsewhere, wanted="2026-11-29T0312Z-step4").id == made[1].id


def test_no_incident_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    with pytest.raises(RefusedError) as caught:
        find(run, incidents=None, wanted=None)
    assert caught.value.hint == f"spiketriage freeze '{run}'"


@pytest.mark.parametrize("room_bytes", [0, 300_000])
def test_a_full_disk_is_the_same_error_whoever_meets_it(tmp_path: Path, room_bytes: int) -> None:
    made = create(tmp_path, incidents=None, step=7, at=AT)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(
        signal.SIGXFSZ, signal.SIG_IGN
    )  # as Python itself has it; a write then fails with EFBIG
    many = [fact(number) for number in range(3000)]
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, hard))
        with pytest.raises(
            PartialError,
            match=r"is full: .* could not be written: .* MB are needed, .* MB are free",
        ) as caught:
            record(made, many)
        with pytest.raises(PartialError):
            create(tmp_path / "other", incidents=None, step=7, at=AT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (caught.value.exit_code, caught.value.hint) == (6, f"df -h {made.folder}")
    assert made.dossier().facts == {}


def record(incident: Incident, facts: list[tuple[str, str]]) -> None:
    with incident.session(ARGV) as session:
        for key, value in facts:
            session.fact(key, value)


def fact(number: int) -> tuple[str, str]:
    return f"key {number}", hashlib.sha256(b"%d" % number).hexdigest() * 8


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".spiketriage").write_text("a file where a folder should be")
    with pytest.raises(RefusedError, match="an incident cannot be made"):
        create(tmp_path, incidents=None, step=1, at=AT)


@pytest.mark.parametrize("damage", ["missing", "garbage", "truncated", "empty"])
def test_a_damaged_database_is_an_evidence_error(tmp_path: Path, damage: str) -> None:
    incident = create(tmp_path, incidents=None, step=1, at=AT)
    database = incident.folder / "incident.duckdb"
    whole = database.read_bytes()
    if damage == "missing":
        database.unlink()
    else:
        database.write_bytes(
            {"garbage": b"x" * 9000, "truncated": whole[: len(whole) // 3], "empty": b""}[damage]
        )
    with pytest.raises(EvidenceError, match=r"incident\.duckdb"):
        incident.dossier()
