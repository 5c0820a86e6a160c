"""Freeze on real run folders: what it keeps, what it refuses, and what it survives."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rehearsed import command_of
from run_folder import flip_byte, write_run

from spiketriage.errors import BusyError, EvidenceError, PartialError, UsageError
from spiketriage.evidence import layout
from spiketriage.evidence.frozen import load_view
from spiketriage.evidence.gather import COPIERS, gather
from spiketriage.incident import store
from spiketriage.incident.query import query
from spiketriage.readers.settings import read_settings
from spiketriage.readers.telemetry.stores.native import read_segment
from spiketriage.runbook import check, freeze

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("SPIKETRIAGE_QUIET", "1")


def frozen(run, **options):
    return freeze.run(
        run, incidents=None, incident=None, argv=["spiketriage", "freeze", str(run)], **options
    )


def dossier(run):
    return store.find(run, incidents=None, wanted=None).dossier()


def evidence(run):
    return store.find(run, incidents=None, wanted=None).folder / "evidence"


def snapshot(run):
    """Every path of the run with its bytes and time, apart from the incidents."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(run.rglob("*"))
        if path.is_file() and ".spiketriage" not in path.parts
    }


def test_a_spike_gets_onset_known_good_and_a_bag(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    before = snapshot(run)
    result = frozen(run)
    assert result.exit_code == 0
    assert result.incident.endswith("-step110")
    assert result.next_commands == (f"spiketriage hash {run}",)
    found = dossier(run)
    assert (found.anchors.onset, found.anchors.suspect) == (110, 110)
    assert (found.anchors.known_good, found.anchors.older_good) == ("step-000080", "step-000040")
    assert found.anchors.refused == {"step-000120": "not older than the onset at step 110"}
    assert "above the running median" in found.anchors.reason
    assert [point.step for point in found.steps] == list(range(1, 121))
    assert [point.step for point in found.steps if point.alarm] == [110]
    assert found.facts["run"] == str(run)
    assert found.facts["num_ranks"] == "2"
    assert found.facts["last_step"] == "120"
    assert snapshot(run) == before


def test_what_was_measured_of_the_generations_can_be_asked_in_sql(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    frozen(run)
    place = store.find(run, incidents=None, wanted=None)
    asked = query(place, "SELECT name, step, nonfinite FROM latest_generations WHERE complete")
    assert asked.columns == ("name", "step", "nonfinite")
    assert asked.rows == (
        ("step-000040", 40, []),
        ("step-000080", 80, []),
        ("step-000120", 120, []),
    )
    digests = query(
        place,
        "SELECT name, cardinality(file_digests) > 0 AS was_read FROM latest_generations",
    )
    # what is not older than the onset is no candidate, so that a freeze does not read it
    assert digests.rows == (("step-000040", True), ("step-000080", True), ("step-000120", False))
    spike = query(place, "SELECT onset, suspect FROM latest_spikes")
    assert spike.rows == ((110, 110),)
    ended = query(place, "SELECT is_whole, gaps FROM latest_freezes")
    assert ended.rows == ((True, []),)


def test_the_bag_holds_exactly_the_copied_files_with_their_digests(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    (run / "logs" / "50% done\n\udcff.log").write_text("x")
    frozen(run)
    bag = evidence(run)
    assert (bag / "bagit.txt").read_text().startswith("BagIt-Version: 1.0")
    from urllib.parse import unquote

    listed = {}
    for line in (bag / "manifest-sha256.txt").read_text().splitlines():
        digest, name = line.split("  ", 1)
        listed[unquote(name, errors="surrogateescape")] = digest
    held = {
        path.relative_to(bag).as_posix(): path
        for path in (bag / "data").rglob("*")
        if path.is_file()
    }
    assert listed == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in held.items()
    }
    for name, source in {
        "data/telemetry/rank-00001.attempt-001.seg": "telemetry/rank-00001.attempt-001.seg",
        "data/generations/step-000080/MANIFEST.json": "checkpoints/step-000080/MANIFEST.json",
        "data/index.json": "data/index.json",
        "data/config.json": "config.json",
        "data/spiketriage.toml": "spiketriage.toml",
        "data/code/r2/trainer.py": "code/r2/trainer.py",
        "data/logs/rank-00000.log": "logs/rank-00000.log",
    }.items():
        assert held[name].read_bytes() == (run / source).read_bytes()


def test_the_parquet_holds_every_attempt_in_bucket_and_rank_order(tmp_path):
    import pyarrow.parquet as pq

    run = write_run(tmp_path / "run")
    frozen(run)
    table = pq.read_table(evidence(run) / "telemetry.parquet").to_pydict()
    keys = list(zip(table["rank"], table["step"], table["attempt"], strict=True))
    assert keys == sorted(keys)
    assert len(keys) == 2 * (90 + 40)
    assert sum(table["production"]) == 2 * 120
    assert table["loss/mean"][0] == pytest.approx(2.995, abs=0.02)


def test_without_a_spike_it_is_an_audit_from_the_newest_sound_generation(tmp_path):
    run = write_run(tmp_path / "run")
    result = frozen(run)
    anchors = dossier(run).anchors
    assert result.incident.endswith("-audit")
    assert (anchors.onset, anchors.suspect, anchors.known_good) == (None, None, "step-000120")
    assert anchors.reason == "nothing spiked: audit"
    assert "onset: none (nothing spiked; this is an audit)" in result.lines


def test_a_nan_is_the_onset(tmp_path):
    run = write_run(tmp_path / "run", nan_at=115)
    frozen(run)
    assert dossier(run).anchors.onset == 115


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        ({"missing_complete": "step-000080"}, "COMPLETE: is missing"),
        (
            {"flipped_byte": "step-000080/tensors/__0_0.distcp"},
            "tensors/__0_0.distcp: digest",
        ),
        ({"flipped_byte": "step-000080/rank-00000.json"}, "rank-00000.json: digest"),
        ({"nan_tensor": "step-000080"}, "not finite: model.block.0.weight"),
        ({"disagreeing": "step-000080"}, "ranks disagree"),
    ],
)
def test_an_unsound_generation_is_refused_with_the_reason(tmp_path, plant, words):
    run = write_run(tmp_path / "run", spike_at=110, **plant)
    result = frozen(run)
    anchors = dossier(run).anchors
    assert (anchors.known_good, anchors.older_good) == ("step-000040", None)
    assert words in anchors.refused["step-000080"]
    assert any(line.startswith("refused step-000080: ") for line in result.lines)


def test_a_given_step_is_the_onset(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    result = frozen(run, step=75)
    anchors = dossier(run).anchors
    assert result.incident.endswith("-step75")
    assert (anchors.onset, anchors.known_good) == (75, "step-000040")
    with pytest.raises(UsageError, match="1 to 120"):
        frozen(run, step=999)


def test_a_missing_rank_is_a_gap_and_nothing_else_is_lost(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110, missing_rank=1)
    result = frozen(run)
    assert result.exit_code == 6
    assert any(line.startswith("gap: telemetry/rank-00001: ") for line in result.lines)
    assert dossier(run).anchors.known_good == "step-000080"
    assert dossier(run).facts["num_ranks"] == "2"


def test_a_torn_tail_is_told_and_costs_nothing_else(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110, torn_bytes=100)
    result = frozen(run)
    assert result.exit_code == 0
    assert any(
        "rank-00001.attempt-001.seg" in line and "bytes lost" in line for line in result.lines
    )


def test_damage_inside_a_segment_is_a_gap_that_names_the_lost_steps(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    path = run / "telemetry" / "rank-00001.attempt-001.seg"
    flip_byte(path, path.stat().st_size // 2)
    lost = [record.step for record in read_segment(path).steps][-1] + 1
    assert 90 < lost < 115
    result = frozen(run)
    assert result.exit_code == 6
    name = (
        f"gap: telemetry/rank-00001.attempt-001: steps {lost}–120 unreadable: unreadable from byte "
    )
    assert [line.startswith(name) for line in result.lines if line.startswith("gap: ")] == [True]
    noted = check.run(run, incidents=None, incident=None, argv=["spiketriage", "check"]).lines
    assert f"note: rank 1: steps {lost}–120 unreadable, not compared" in noted


def test_a_whole_attempt_that_cannot_be_read_is_a_gap(tmp_path):
    run = write_run(tmp_path / "run")
    for rank in (0, 1):
        (run / "telemetry" / f"rank-0000{rank}.attempt-001.seg").write_bytes(b"not a segment")
    gaps = {gap["path"] for gap in frozen(run).data["gaps"]}
    assert gaps == {"telemetry/rank-00000.attempt-001", "telemetry/rank-00001.attempt-001"}


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing", "COMPLETE", "MANIFEST.json"])
def test_a_damaged_generation_is_a_gap_and_an_unfinished_one_is_not(tmp_path, damage):
    run = write_run(tmp_path / "run", spike_at=110)
    folder = run / "checkpoints" / "step-000080"
    path = folder / "tensors" / "__0_0.distcp"
    if damage == "flipped":
        flip_byte(path, path.stat().st_size - 3)
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-5])
    elif damage == "missing":
        path.unlink()
    elif damage == "COMPLETE":
        (folder / damage).write_text("0" * 32)
    else:
        (folder / damage).unlink()
    result = frozen(run)
    assert result.exit_code == 6
    assert any(
        line.startswith("gap: checkpoints/step-000080: is damaged: ") for line in result.lines
    )
    assert dossier(run).anchors.known_good == "step-000040"
    other = write_run(tmp_path / "other", spike_at=110, missing_complete="step-000080")
    assert frozen(other).exit_code == 0


def test_a_data_folder_that_cannot_be_looked_at_is_a_gap(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    shutil.rmtree(run / "data")
    (run / "data").symlink_to(
        "x" * 300
    )  # no user, root included, can look behind a name that is too long
    result = frozen(run)
    assert result.exit_code == 6
    assert "gap: data/index.json: cannot be read: File name too long" in result.lines
    assert dossier(run).anchors.known_good == "step-000080"


def test_a_repaired_gap_is_no_gap_any_more(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    path = run / "checkpoints" / "step-000080" / "tensors" / "__0_0.distcp"
    flip_byte(path, path.stat().st_size - 3)
    assert frozen(run).exit_code == 6
    flip_byte(path, path.stat().st_size - 3)
    again = frozen(run)
    assert (again.exit_code, again.data["gaps"]) == (0, [])
    assert dossier(run).anchors.known_good == "step-000080"


def test_without_any_telemetry_the_rest_is_kept(tmp_path):
    run = write_run(tmp_path / "run")
    shutil.rmtree(run / "telemetry")
    result = frozen(run)
    assert result.exit_code == 6
    assert any(line.startswith("gap: telemetry: ") for line in result.lines)
    assert any(
        line.startswith("onset: unknown (no telemetry: nothing could be scanned: ")
        for line in result.lines
    )
    assert result.incident.endswith("-unknown")
    assert frozen(run).incident == result.incident
    assert (evidence(run) / "data" / "config.json").is_file()
    assert dossier(run).anchors.known_good == "step-000120"


@pytest.mark.parametrize(
    "damage", ["missing file", "missing folder", "lying index", "missing shard"]
)
def test_damage_elsewhere_is_a_gap(tmp_path, damage):
    run = write_run(tmp_path / "run", spike_at=110)
    if damage == "missing file":
        (run / "checkpoints" / "step-000080" / "rank-00001.json").unlink()
    elif damage == "missing folder":
        shutil.rmtree(run / "checkpoints")
    elif damage == "lying index":
        (run / "data" / "index.json").write_text('{"schema": "other"}')
    else:
        (run / "data" / "shard-00001.bin").unlink()
    result = frozen(run)
    assert result.exit_code == 6
    words = {
        "missing file": "checkpoints/step-000080/rank-00001.json: is missing",
        "missing folder": "checkpoints: cannot be listed",
        "lying index": "the index cannot be believed",
        "missing shard": "data/shard-00001.bin: is missing",
    }[damage]
    assert any(line.startswith("gap: ") and words in line for line in result.lines)
    assert (evidence(run) / "manifest-sha256.txt").is_file()


def test_what_is_no_file_is_a_gap_and_never_opened(tmp_path):
    run = write_run(tmp_path / "run")
    os.mkfifo(run / "logs" / "pipe")  # opening it would wait for ever
    (run / "logs" / "loop").symlink_to("loop")
    (run / "logs" / "up").symlink_to(run)
    result = frozen(run)
    assert result.exit_code == 6
    gaps = {gap["path"]: gap["note"] for gap in result.data["gaps"]}
    assert gaps["logs/pipe"] == "is not a regular file"
    assert "symbolic links" in gaps["logs/loop"]
    assert set(gaps) == {"logs/pipe", "logs/loop"}


@pytest.mark.parametrize("kind", ["missing", "empty"])
def test_what_is_no_run_is_refused_and_nothing_is_made(tmp_path, kind):
    run = tmp_path / "run"
    if kind == "empty":
        run.mkdir()
    with pytest.raises(EvidenceError, match="run"):
        frozen(run)
    assert not (run / ".spiketriage").exists()


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    before = sorted(run.rglob("*"))
    result = frozen(run, dry_run=True)
    assert sorted(run.rglob("*")) == before
    assert result.data["onset"] == 110
    assert result.data["num_files"]["telemetry"] == 4
    assert any(line == "would copy telemetry: 4 files" for line in result.lines)


def test_freezing_twice_makes_one_incident(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    first = frozen(run)
    again = frozen(run)
    assert again.incident == first.incident
    assert again.exit_code == 0
    assert "already frozen" in again.lines[0]
    assert len(list((run / ".spiketriage" / "incidents").iterdir())) == 1


def test_another_onset_and_a_longer_audit_make_new_incidents(tmp_path):
    run = write_run(tmp_path / "run")
    first = frozen(run)
    longer = write_run(tmp_path / "longer", spike_at=110)
    for path in (run / "telemetry").iterdir():
        shutil.copy(longer / "telemetry" / path.name, path)
    second = frozen(run)
    assert first.incident != second.incident
    assert second.incident.endswith("-step110")


def test_one_incidents_folder_may_serve_several_runs(tmp_path):
    runs = [write_run(tmp_path / name, spike_at=110) for name in ("a", "b")]
    ids = [
        freeze.run(
            run, incidents=tmp_path / "shared", incident=None, argv=["spiketriage", "freeze"]
        ).incident
        for run in (*runs, *runs)
    ]
    assert ids[:2] == ids[2:]
    assert ids[0] != ids[1]
    assert not (runs[0] / ".spiketriage").exists()


def test_known_good_outlives_the_trainers_rotation(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    frozen(run)
    shutil.rmtree(run / "checkpoints" / "step-000080")
    shutil.rmtree(run / "data")
    found = store.find(run, incidents=None, wanted=None)
    view = load_view(found, read_settings(run))
    good = next(one for one in view.generations if one.name == "step-000080")
    assert good.path == found.folder / "evidence" / "pinned" / "checkpoints" / "step-000080"
    assert sorted(path.name for path in good.path.iterdir()) == [
        "COMPLETE",
        "MANIFEST.json",
        "rank-00000.json",
        "rank-00001.json",
        "tensors",
    ]
    assert sorted(path.name for path in (good.path / "tensors").iterdir()) == [
        ".metadata",
        "__0_0.distcp",
    ]
    assert (found.folder / "evidence" / "pinned" / "data" / "shard-00001.bin").is_file()


def test_the_view_is_that_of_the_frozen_evidence(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    frozen(run)
    shutil.rmtree(run / "telemetry")
    view = load_view(store.find(run, incidents=None, wanted=None), read_settings(run))
    assert view.telemetry.steps == tuple(range(1, 121))
    assert view.anchors.suspect == 110
    assert [one.step for one in view.generations] == [40, 80, 120]
    assert view.generations[1].manifest.world_size == 2
    assert view.index.path == run / "data" / "index.json"


def test_where_no_link_is_possible_the_files_are_referenced_with_a_warning(tmp_path):
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has no second file system to test with")
    run = write_run(tmp_path / "run", spike_at=110)
    incidents = other / f"spiketriage-test-{os.getpid()}"
    try:
        result = freeze.run(run, incidents=incidents, incident=None, argv=["spiketriage", "freeze"])
        assert result.exit_code == 0
        assert any(
            line.startswith("warning: ") and "another file system" in line for line in result.lines
        )
        rows = store.find(run, incidents=incidents, wanted=None).dossier().artifacts
        assert {row.kept for row in rows if row.kind in ("checkpoint", "shard")} == {"referenced"}
    finally:
        shutil.rmtree(incidents, ignore_errors=True)


def start(run):
    code = (
        "import sys; from pathlib import Path; from spiketriage.runbook import freeze;"
        "freeze.run(Path(sys.argv[1]), incidents=None, incident=None, argv=['spiketriage', "
        "'freeze']);"
        "assert 'torch' not in sys.modules"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code, str(run)], env=env, start_new_session=True)


def test_freeze_never_loads_torch(tmp_path):
    assert start(write_run(tmp_path / "run", spike_at=110)).wait() == 0


def wait_for(condition, timeout_s=30.0):
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.002)
    raise AssertionError("waited in vain")


@pytest.mark.parametrize(
    "reached",
    [
        "incident.duckdb",
        "lease.json",
        "evidence/data/logs/rank-00000.log",
        "evidence/data/telemetry/rank-00000.attempt-001.seg",
        "evidence/data/generations/step-000120/MANIFEST.json",
        "evidence/pinned/data/shard-00000.bin",
        "evidence/telemetry.parquet",
        "evidence/manifest-sha256.txt",
    ],
)
def test_a_killed_freeze_leaves_a_readable_incident_and_the_same_command_finishes_it(
    tmp_path, reached
):
    run = write_run(tmp_path / "run", spike_at=110)
    incidents = run / ".spiketriage" / "incidents"
    process = start(run)
    wait_for(lambda: list(incidents.glob(f"2*/{reached}")) or process.poll() is not None)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    store.find(run, incidents=None, wanted=None).dossier()
    result = frozen(run)
    assert result.exit_code == 0
    (folder,) = incidents.iterdir()
    assert folder.name == result.incident
    assert dossier(run).anchors.known_good == "step-000080"
    assert not list(folder.rglob("*.partial"))
    assert "already frozen" in frozen(run).lines[0]


def test_a_second_freeze_beside_the_first_is_told_who_is_busy(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    process = start(run)
    try:
        wait_for(lambda: list((run / ".spiketriage" / "incidents").glob("2*/lease.json")))
        os.killpg(process.pid, signal.SIGSTOP)
        with pytest.raises(BusyError, match=str(process.pid)) as caught:
            frozen(run)
        assert caught.value.exit_code == 8
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def children_of(parent):
    """Those that run a program of their own.

    One that is stopped between vfork and exec would stop its parent with it.
    """
    pids = set()
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        pids.update(map(int, path.read_text().split()))
    return {pid for pid in pids if command_of(pid) not in (b"", command_of(parent))}


def the_collector(before):
    """The process that a guardian started, which was not yet among those `before`."""
    (guardian,) = wait_for(lambda: children_of(os.getpid()) - before)
    (collector,) = wait_for(lambda: children_of(guardian))
    return collector


def test_a_collector_that_hangs_costs_only_itself(tmp_path):
    run = write_run(tmp_path / "run")
    before = children_of(os.getpid())
    gathered = []
    thread = threading.Thread(
        target=lambda: gathered.append(gather(run, tmp_path / "payload", COPIERS, timeout_s=3.0))
    )
    thread.start()
    os.kill(
        the_collector(before), signal.SIGSTOP
    )  # what a dead network mount looks like from outside
    thread.join()
    gaps = [one for one in gathered[0].artifacts if one.kept == "missing"]
    assert len(gaps) == 1
    assert gaps[0].path in COPIERS
    assert "no sign of life for 3 s" in gaps[0].note
    assert set(gathered[0].done) == set(COPIERS) - {gaps[0].path}


def test_a_collector_that_dies_costs_only_itself(tmp_path):
    run = write_run(tmp_path / "run")
    before = children_of(os.getpid())
    gathered = []
    thread = threading.Thread(
        target=lambda: gathered.append(gather(run, tmp_path / "payload", COPIERS))
    )
    thread.start()
    os.kill(the_collector(before), signal.SIGKILL)
    thread.join()
    gaps = [one for one in gathered[0].artifacts if one.kept == "missing"]
    assert len(gaps) == 1
    assert "ended with 137" in gaps[0].note


def test_a_full_disk_is_one_clear_error_and_the_same_command_finishes(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    (run / "logs" / "z-large.log").write_bytes(b"x" * 40_000_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(
        signal.SIGXFSZ, signal.SIG_IGN
    )  # as Python itself has it; a write then fails with EFBIG
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000_000, hard))
        with pytest.raises(
            PartialError,
            match=r"z-large\.log could not be written.*what was recorded before stands",
        ) as caught:
            frozen(run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.exit_code == 6
    assert dossier(run).journal[-1].exit_code == 6
    assert (evidence(run) / "data" / "logs" / "rank-00000.log").is_file()
    assert frozen(run).exit_code == 0
    assert (evidence(run) / "data" / "logs" / "z-large.log").stat().st_size == 40_000_000


def test_an_interrupted_copy_is_taken_again_when_its_source_has_grown(tmp_path):
    run = write_run(tmp_path / "run")
    payload = tmp_path / "payload"
    gather(run, payload, COPIERS)
    with (run / "logs" / "rank-00000.log").open("a") as stream:
        stream.write("step 3\n")
    gathered = gather(run, payload, COPIERS)
    assert (payload / "logs" / "rank-00000.log").read_text().endswith("step 3\n")
    digest = hashlib.sha256((payload / "logs" / "rank-00000.log").read_bytes()).hexdigest()
    assert gathered.sha256["logs/rank-00000.log"] == digest


def test_log_folders_of_the_same_file_names_are_kept_apart(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "more").mkdir()
    (run / "more" / "rank-00000.log").write_text("other\n")
    toml = (run / "spiketriage.toml").read_text()
    (run / "spiketriage.toml").write_text(
        toml.replace('id = "tiny"', 'id = "tiny"\nlogs = ["logs", "more"]')
    )
    frozen(run)
    data = evidence(run) / "data" / layout.LOGS
    assert (data / "rank-00000.log").read_text() == "step 1\nstep 2\n"
    assert (data / "@run" / "more" / "rank-00000.log").read_text() == "other\n"


def test_host_facts_hold_no_environment_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    run = write_run(tmp_path / "run")
    frozen(run)
    text = (evidence(run) / "data" / "host.json").read_text()
    assert "hunter2" not in text
    assert json.loads(text)["host"]
