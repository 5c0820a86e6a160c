"""What is copied out of a run: whole, under a name of its own, never more than there is room for.

Small disks are file systems in memory, where this machine may mount one.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from run_folder import write_run
from small_disk import filled, free_bytes, small_disk

from spiketriage.errors import NoRoomError, RefusedError
from spiketriage.evidence import budget, layout, stream_copy
from spiketriage.incident import store
from spiketriage.nouns.incident import StepResult
from spiketriage.readers.telemetry.stores import sqlite_copy
from spiketriage.runbook import check, freeze, hash


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted


def frozen(run: Path) -> StepResult:
    return freeze.run(run, incidents=None, incident=None, argv=["spiketriage", "freeze"])


def payload_of(run: Path) -> Path:
    return layout.payload(store.find(run, incidents=None, wanted=None).folder)


def test_a_sparse_log_of_two_terabytes_costs_no_disk(disk: Path) -> None:
    run = write_run(disk / "run", spike_at=110)
    (run / "logs").mkdir(exist_ok=True)
    with (run / "logs" / "core.4711").open("wb") as log:
        log.truncate(1 << 41)
    (run / "logs" / "out.log").write_text("the words of the job\n", encoding="utf-8")
    result = frozen(run)
    assert result.exit_code == 6
    (gap,) = [gap for gap in result.data["gaps"] if gap["path"] == "logs/core.4711"]
    assert "not copied: 2199023255552 bytes, of which 0 are on the disk" in gap["note"]
    assert (payload_of(run) / "logs" / "out.log").read_text() == "the words of the job\n"
    assert free_bytes(disk) > 20 << 20
    assert not list(run.rglob("*.partial"))
    assert not (payload_of(run).parent / layout.DRAFTS).exists()


def test_a_log_that_leaves_no_reserve_is_told_and_the_rest_is_kept(disk: Path) -> None:
    run = write_run(disk / "run", spike_at=110)
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs" / "a.log").write_bytes(b"x" * (34 << 20))
    (run / "logs" / "b.log").write_text("short\n", encoding="utf-8")
    result = frozen(run)
    assert result.exit_code == 6
    (gap,) = [gap for gap in result.data["gaps"] if gap["path"] == "logs/a.log"]
    assert gap["note"].startswith(f"not copied: {34 << 20} bytes, and the disk of ")
    assert (payload_of(run) / "logs" / "b.log").read_text() == "short\n"


def test_holes_stay_holes_and_the_copy_is_the_same_bytes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    (run / "logs").mkdir(exist_ok=True)
    source = run / "logs" / "sparse.log"
    with source.open("wb") as log:
        log.write(b"begin\n")
        log.seek(64 << 20)
        log.write(b"end\n")
    frozen(run)
    copy = payload_of(run) / "logs" / "sparse.log"
    assert copy.stat().st_blocks * 512 < 16 << 20
    assert copy.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("name", [".x.log.partial", ".download.partial", "drafts", "copy"])
def test_no_name_of_the_run_is_taken_for_one_of_ours(name: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs" / name).write_text("half written evidence\n", encoding="utf-8")
    (run / "logs" / "x.log").write_text("whole\n", encoding="utf-8")
    frozen(run)
    kept = payload_of(run) / "logs"
    assert (kept / name).read_text(encoding="utf-8") == "half written evidence\n"
    assert (kept / "x.log").read_text(encoding="utf-8") == "whole\n"


def test_logs_of_two_folders_are_both_kept(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    for folder, text in (("logs/1", "first"), ("more", "second")):
        (run / folder).mkdir(parents=True, exist_ok=True)
        (run / folder / "x.log").write_text(text, encoding="utf-8")
    settings = run / "spiketriage.toml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace("[run]", '[run]\nlogs = ["logs", "more"]'), encoding="utf-8")
    frozen(run)
    kept = {path.read_text() for path in (payload_of(run) / "logs").rglob("x.log")}
    assert kept == {"first", "second"}


def test_a_log_and_a_folder_of_the_same_name_are_both_kept(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    (run / "more" / "x.log").mkdir(parents=True)
    (run / "more" / "x.log" / "y.log").write_text("of the folder", encoding="utf-8")
    (run / "x.log").write_text("of the run", encoding="utf-8")
    settings = run / "spiketriage.toml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace("[run]", '[run]\nlogs = ["more", "x.log"]'), encoding="utf-8")
    assert frozen(run).exit_code == 0
    kept = payload_of(run) / "logs"
    assert (kept / "x.log" / "y.log").read_text() == "of the folder"
    assert (kept / "@run" / "x.log").read_text() == "of the run"


def test_a_link_out_of_the_run_is_told_and_not_followed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    (run / "logs").mkdir(exist_ok=True)
    (tmp_path / "secret").write_text("of somebody else", encoding="utf-8")
    (run / "logs" / "out.log").symlink_to(tmp_path / "secret")
    (run / "logs" / "environ.log").symlink_to("/proc/self/environ")
    (run / "logs" / "real.log").write_text("ours", encoding="utf-8")
    (run / "logs" / "inside.log").symlink_to(run / "logs" / "real.log")
    result = frozen(run)
    assert result.exit_code == 6
    assert {gap["path"] for gap in result.data["gaps"]} == {"logs/out.log", "logs/environ.log"}
    assert all("leads out of the run" in gap["note"] for gap in result.data["gaps"])
    assert (payload_of(run) / "logs" / "inside.log").read_text() == "ours"
    assert not (payload_of(run) / "logs" / "out.log").exists()


@pytest.mark.parametrize(
    "name", ["config.json", "code/r1/trainer.py", "telemetry/rank-00000.attempt-000.seg"]
)
def test_no_link_out_of_the_run_is_followed(name: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    (run / name).replace(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    result = frozen(run)
    assert result.exit_code == 6
    (gap,) = [gap for gap in result.data["gaps"] if gap["path"] == name]
    assert gap["note"] == f"not copied: leads out of the run, to {tmp_path / 'elsewhere'}"
    kept = (path.read_bytes() for path in payload_of(run).rglob("*") if path.is_file())
    assert (tmp_path / "elsewhere").read_bytes() not in set(kept)


def test_a_generation_that_is_a_link_out_of_the_run_is_told_and_neither_read_nor_pinned(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    generation = run / "checkpoints" / "step-000080"
    generation.rename(tmp_path / "elsewhere")
    generation.symlink_to(tmp_path / "elsewhere")
    result = frozen(run)
    assert result.exit_code == 6
    assert result.data["known_good"] == "step-000040"
    notes = {gap["path"]: gap["note"] for gap in result.data["gaps"]}
    assert notes["checkpoints/step-000080"].startswith("not measured: leads out of the run")
    pinned = payload_of(run).parent / layout.PINNED / "checkpoints"
    assert [path.name for path in pinned.iterdir()] == ["step-000040"]


@pytest.mark.parametrize("key", ["telemetry", "checkpoints", "code", "config", "logs"])
@pytest.mark.parametrize("is_link", [False, True])
def test_settings_that_name_a_place_outside_the_run_are_refused_until_somebody_allows_it(
    key: str, is_link: bool, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    usual = run / ("config.json" if key == "config" else key)
    place = tmp_path / "elsewhere"
    usual.rename(place)
    stated = "linked" if is_link else "../elsewhere"
    if is_link:
        (run / stated).symlink_to(place)
    settings = run / "spiketriage.toml"
    value = f'["{stated}"]' if key == "logs" else f'"{stated}"'
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace("[run]", f"[run]\n{key} = {value}"), encoding="utf-8")

    with pytest.raises(RefusedError, match=f"names {place}, outside the run") as refused:
        frozen(run)
    assert refused.value.hint == f"spiketriage freeze {run} --allow-outside"
    assert not (run / ".spiketriage").exists()

    argv = ["spiketriage", "freeze", "--allow-outside"]
    allowed = freeze.run(run, incidents=None, incident=None, argv=argv, allow_outside=True)
    assert allowed.exit_code == 0
    dossier = store.find(run, incidents=None, wanted=None).dossier()
    assert dossier.allowed_outside == (str(place),)
    assert dossier.journal[-1].argv == "spiketriage freeze --allow-outside"
    assert frozen(run).lines[0].endswith("already frozen, nothing to do")
    checked = check.run(run, incidents=None, incident=None, argv=["spiketriage", "check"])
    assert checked.exit_code in (0, 1)


def test_what_settings_name_outside_since_the_freeze_is_refused_by_what_follows(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    frozen(run)
    settings = run / "spiketriage.toml"
    text = settings.read_text(encoding="utf-8")
    place = tmp_path / "elsewhere"
    (run / "checkpoints").rename(place)
    named = f'[run]\ncheckpoints = "{place}"'
    settings.write_text(text.replace("[run]", named), encoding="utf-8")
    for step in (hash.run, check.run):
        with pytest.raises(RefusedError, match=f"checkpoints names {place}, outside the run"):
            step(run, incidents=None, incident=None, argv=["spiketriage"])
    argv = ["spiketriage", "freeze", "--allow-outside"]
    freeze.run(run, incidents=None, incident=None, argv=argv, allow_outside=True)
    for step in (hash.run, check.run):
        step(run, incidents=None, incident=None, argv=["spiketriage"])


def test_a_secret_stays_one(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs" / "a.log").write_text("mine", encoding="utf-8")
    (run / "logs" / "a.log").chmod(0o600)
    before = os.umask(0o022)
    try:
        frozen(run)
    finally:
        os.umask(before)
    copy = payload_of(run) / "logs" / "a.log"
    assert copy.stat().st_mode & 0o777 == 0o600
    assert store.find(run, incidents=None, wanted=None).folder.stat().st_mode & 0o777 == 0o700


def test_many_small_logs_take_no_more_than_their_share_of_a_small_disk(disk: Path) -> None:
    run = write_run(disk / "run", spike_at=110)
    (run / "logs").mkdir(exist_ok=True)
    for number in range(300):
        (run / "logs" / f"rank-{number:03}.log").write_bytes(os.urandom(100_000))
    before = free_bytes(disk)
    result = frozen(run)
    assert result.exit_code == 6
    kept = payload_of(run) / "logs"
    num_kept = len(list(kept.iterdir()))
    num_logs = len(list((run / "logs").iterdir()))
    assert 0 < num_kept < num_logs
    assert (payload_of(run) / "telemetry").is_dir()
    assert not (kept.parent.parent / layout.DRAFTS).exists()
    assert free_bytes(disk) > 3 << 20  # a twentieth of it is the run's
    named = [gap["path"] for gap in result.data["gaps"] if gap["path"].startswith("logs/")]
    (others,) = [gap for gap in result.data["gaps"] if "more file" in gap["path"]]
    assert others["path"] == f"logs: {num_logs - num_kept - len(named)} more files"
    assert "the last of them logs/rank-299.log" in others["note"]
    assert before - free_bytes(disk) < before / 2


def test_any_number_of_modules_leaves_room_for_the_manifests(disk: Path) -> None:
    run = write_run(disk / "run", spike_at=110)
    for number in range(300):
        (run / "code" / "r1" / f"module_{number}.py").write_bytes(b"#" * 100_000)
    result = frozen(run)
    assert result.exit_code == 6
    assert all(gap["path"].startswith(("code/", "identity: ")) for gap in result.data["gaps"])
    assert len(list((payload_of(run) / "generations").iterdir())) == 3
    hashed = hash.run(run, incidents=None, incident=None, argv=["spiketriage", "hash"])
    assert not any("is not the code" in line for line in hashed.lines)


@pytest.mark.parametrize(("left_mb", "is_kept"), [(20, True), (10, False)])
def test_a_disk_that_is_nearly_full_takes_what_leaves_room_for_the_record(
    disk: Path, left_mb: int, is_kept: bool
) -> None:
    run = write_run(disk / "run", spike_at=110)
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs" / "a.log").write_text("short\n", encoding="utf-8")
    with filled(disk, left_bytes=left_mb << 20):
        result = frozen(run)
        assert result.exit_code == (0 if is_kept else 6)
        assert (payload_of(run) / "logs" / "a.log").exists() == is_kept
        assert not list(run.rglob(layout.DRAFTS))
        verify = [sys.executable, "-m", "spiketriage", "verify", str(run)]
        assert subprocess.run(verify, check=False, capture_output=True).returncode == 0


def test_no_more_files_are_kept_than_anybody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "MAX_NUM_FILES", 10)
    allowed = budget.Budget(tmp_path)
    allowed.begin(0.5)
    status = tmp_path.stat()
    for _ in range(5):
        allowed.require(status)
        allowed.take(0)
    with pytest.raises(NoRoomError, match="5 files were kept already, of 10"):
        allowed.require(status)
    allowed.begin(1.0)
    allowed.require(status)


def test_all_files_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").write_bytes(bytes(60))
    monkeypatch.setattr(budget, "MAX_TOTAL_BYTES", 100)
    allowed = budget.Budget(tmp_path)
    allowed.require((tmp_path / "log").stat())
    allowed.take(60)
    with pytest.raises(NoRoomError, match="60 bytes; 60 were kept already, of 100"):
        allowed.require((tmp_path / "log").stat())


def test_a_file_of_small_islands_takes_no_more_than_its_source(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    (run / "logs").mkdir(exist_ok=True)
    source = run / "logs" / "islands.log"
    with source.open("wb") as log:
        for number in range(64):
            log.seek(number << 20)
            log.write(b"an island\n")
    frozen(run)
    copy = payload_of(run) / "logs" / "islands.log"
    assert copy.stat().st_blocks <= source.stat().st_blocks + 64
    assert copy.read_bytes() == source.read_bytes()


def test_a_clone_is_digested_as_it_was_when_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file system shares blocks; here a stand-in for its call, which then writes on."""
    source, target = tmp_path / "a.log", tmp_path / "kept" / "a.log"
    source.write_bytes(b"as it was\n")

    def clone(written: int, _request: int, read: int) -> None:
        os.write(written, os.pread(read, 1 << 20, 0))
        with source.open("ab") as log:
            log.write(b"written since\n")

    monkeypatch.setattr(stream_copy.fcntl, "ioctl", clone)
    copied = stream_copy.stream_copy(
        source,
        target,
        rule=None,
        drafts=tmp_path / "drafts",
        budget=budget.Budget(tmp_path),
        alive=lambda _source: None,
    )
    assert target.read_bytes() == b"as it was\n"
    assert copied.sha256 == hashlib.sha256(b"as it was\n").hexdigest()


def test_a_database_is_read_from_a_copy_only_where_there_is_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE metrics (step)")
    with sqlite_copy.open_copy(path) as copied:
        assert copied.columns("metrics") == ("step",)
    monkeypatch.setattr(sqlite_copy, "room_bytes", lambda _folder: 1000)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(NoRoomError, match="has 1000 to spare"), sqlite_copy.open_copy(path):
        pass
    assert list(tmp_path.iterdir()) == [path]
