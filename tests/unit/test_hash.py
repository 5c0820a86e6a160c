"""Hash on real run folders: which bytes differ, who is accused, and who must not be."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from run_folder import flip_byte, write_run

from spiketriage import digests
from spiketriage.errors import RefusedError
from spiketriage.evidence.frozen import load_view
from spiketriage.incident import store
from spiketriage.readers.data.native_index import read_index
from spiketriage.readers.settings import read_settings
from spiketriage.runbook import check, freeze
from spiketriage.runbook import hash as hash_step
from spiketriage.tools import verify


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("SPIKETRIAGE_QUIET", "1")


def frozen(run):
    freeze.run(run, incidents=None, incident=None, argv=["spiketriage", "freeze", str(run)])
    return run


def hashed(run):
    return hash_step.run(run, incidents=None, incident=None, argv=["spiketriage", "hash", str(run)])


def incident(run):
    return store.find(run, incidents=None, wanted=None)


def findings(run):
    return {finding.name: finding for finding in incident(run).dossier().findings}


def test_a_healthy_run_is_clean_and_every_artifact_has_its_digest(tmp_path):
    run = frozen(write_run(tmp_path / "run", spike_at=110))
    result = hashed(run)
    assert (result.exit_code, result.verdict) == (0, "clean")
    assert result.next_commands == (f"spiketriage check {run}",)
    assert {name: one.outcome for name, one in findings(run).items()} == {
        "index-identity": "agrees",
        "shard-digests": "agrees",
        "generation-digests": "agrees",
    }
    assert not findings(run)["generation-digests"].judged
    for artifact in incident(run).dossier().artifacts:
        assert artifact.digest, artifact.path
        if artifact.kind in ("checkpoint", "shard"):
            assert artifact.digest == artifact.expected == digests.of_file(run / artifact.path)


def test_shard_rot_names_shard_and_document_and_prefers_one_that_the_suspect_step_consumed(
    tmp_path,
):
    run = write_run(tmp_path / "run", spike_at=110, rotten_document="doc-5")
    index = read_index(run / "data" / "index.json")
    flip_byte(run / "data" / "shard-00000.bin", index.documents["doc-0"].offset_bytes)
    result = hashed(frozen(run))
    assert result.exit_code == 4
    assert "data/shard-00001.bin: differs from the index in 1 document (doc-5)" in result.lines
    finding = findings(run)["shard-digests"]
    assert finding.outcome == "differs"
    assert finding.judged
    # Step 110 consumes documents 2 and 3 on rank 0, 6 and 7 on rank 1: the first in order is named.
    assert (finding.where.path, finding.where.key) == ("data/shard-00000.bin", "doc-0")
    assert finding.expected == index.documents["doc-0"].digest
    assert finding.magnitude == 2.0
    flip_byte(run / "data" / "shard-00001.bin", index.documents["doc-6"].offset_bytes)
    hashed(run)
    assert findings(run)["shard-digests"].where.key == "doc-6"
    assert findings(run)["index-identity"].outcome == "agrees"


def test_a_truncated_shard_differs_and_a_missing_one_is_not_testable(tmp_path):
    run = write_run(tmp_path / "run")
    path = run / "data" / "shard-00001.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert hashed(frozen(run)).exit_code == 4
    finding = findings(run)["shard-digests"]
    assert (finding.outcome, finding.where.key, finding.seen) == ("differs", "doc-7", "cut off")

    other = write_run(tmp_path / "other")
    (other / "data" / "shard-00001.bin").unlink()
    result = hashed(frozen(other))
    assert result.exit_code == 4
    assert findings(other)["shard-digests"].outcome == "not testable"
    assert any("shard-00001.bin" in line for line in result.lines)


def test_a_shard_that_the_run_deleted_is_read_where_it_is_pinned(tmp_path):
    run = frozen(write_run(tmp_path / "run"))
    (run / "data" / "shard-00001.bin").unlink()
    assert hashed(run).exit_code == 0
    assert findings(run)["shard-digests"].outcome == "agrees"


def test_an_index_that_changed_accuses_no_shard(tmp_path):
    run = write_run(tmp_path / "run")
    index = json.loads((run / "data" / "index.json").read_text())
    index["documents"][3][-1] = "0" * 32
    (run / "data" / "index.json").write_text(json.dumps(index))
    result = hashed(frozen(run))
    assert result.exit_code == 4
    assert findings(run)["index-identity"].outcome == "differs"
    assert findings(run)["index-identity"].where.path == "data/index.json"
    assert findings(run)["shard-digests"].outcome == "not testable"
    assert "the index itself changed" in findings(run)["shard-digests"].summary
    assert not any("shard-0" in line and "differs from the index" in line for line in result.lines)


def test_an_index_that_lies_is_an_integrity_error_in_one_sentence(tmp_path):
    run = write_run(tmp_path / "run")
    index = json.loads((run / "data" / "index.json").read_text())
    index["documents"][3][2] = -4
    (run / "data" / "index.json").write_text(json.dumps(index))
    result = hashed(frozen(run))
    assert result.exit_code == 4
    assert any(
        "document doc-3: expected offset and length of at least 0" in line for line in result.lines
    )
    assert findings(run)["index-identity"].outcome == "differs"
    assert findings(run)["shard-digests"].outcome == "not testable"


def test_an_index_that_is_gone_is_told_by_the_manifests_that_name_it(tmp_path):
    run = write_run(tmp_path / "run")
    digest = digests.of_file(run / "data" / "index.json")
    (run / "data" / "index.json").unlink()
    kept = freeze.run(run, incidents=None, incident=None, argv=["spiketriage", "freeze"])
    sentence = f"is missing; 3 manifests name its digest, the newest {digest}"
    assert (kept.exit_code, f"gap: data/index.json: {sentence}" in kept.lines) == (6, True)
    result = hashed(run)
    assert (result.exit_code, result.lines[0]) == (4, f"data/index.json {sentence}")
    assert (findings(run)["index-identity"].outcome, findings(run)["shard-digests"].outcome) == (
        "not testable",
    ) * 2


def test_a_run_that_never_had_an_index_is_not_testable_and_clean(tmp_path):
    run = write_run(tmp_path / "run")
    shutil.rmtree(run / "data")
    for folder in (run / "checkpoints").iterdir():
        manifest = folder / "MANIFEST.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"index_digest": ""}))
        (folder / "COMPLETE").write_text(digests.of_file(manifest))
    assert hashed(frozen(run)).exit_code == 0
    assert findings(run)["index-identity"].outcome == "not testable"
    assert findings(run)["shard-digests"].outcome == "not testable"


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing", "COMPLETE", "MANIFEST.json"])
def test_a_damaged_generation_is_named_by_file(tmp_path, damage):
    run = write_run(tmp_path / "run")
    folder = run / "checkpoints" / "step-000080"
    path = folder / "tensors" / "__0_0.distcp"
    if damage == "flipped":
        flip_byte(path, path.read_bytes().index(b"data/0") + 100)
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-5])
    elif damage == "missing":
        path.unlink()
    elif damage == "COMPLETE":
        path = folder / "COMPLETE"
        path.write_text("0" * 32)
    else:
        flip_byte(folder / damage, 30)
        path = folder / "COMPLETE"
    result = hashed(frozen(run))
    assert result.exit_code == 4
    name = path.relative_to(run).as_posix()
    assert any(line.startswith(f"{name}: expected ") for line in result.lines)
    finding = findings(run)["generation-digests"]
    assert (finding.outcome, finding.judged, finding.where.path) == ("differs", False, name)
    assert finding.where.key == "step-000080"
    if damage == "flipped":
        assert any("(tensor " in line for line in result.lines)


def test_an_unfinished_generation_is_no_difference(tmp_path):
    run = write_run(tmp_path / "run", missing_complete="step-000120")
    assert hashed(frozen(run)).exit_code == 0
    finding = findings(run)["generation-digests"]
    assert finding.outcome == "agrees"
    assert finding.summary == (
        "every file of 2 generations is what its manifest says; not compared: 1 unfinished "
        "generation (step-000120)"
    )


def test_nothing_is_vouched_for_when_no_generation_is_complete(tmp_path):
    run = write_run(tmp_path / "run")
    for path in (run / "checkpoints").glob("*/COMPLETE"):
        path.unlink()
    kept = freeze.run(run, incidents=None, incident=None, argv=["spiketriage", "freeze"])
    assert (kept.exit_code, "known good: none, older: none" in kept.lines) == (6, True)
    result = hashed(run)
    assert result.exit_code == 4
    finding = findings(run)["generation-digests"]
    names = "3 unfinished generations (step-000040, step-000080, step-000120)"
    assert (finding.outcome, finding.summary) == (
        "not testable",
        f"no generation is complete: {names}",
    )


def test_an_unfinished_freeze_is_no_evidence(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    started = store.create(
        run, incidents=None, step=110, at=datetime(2026, 11, 29, 3, 12, tzinfo=UTC)
    )
    for step in (hash_step, check):
        with pytest.raises(RefusedError) as caught:
            step.run(run, incidents=None, incident=None, argv=["spiketriage"])
        assert (caught.value.exit_code, caught.value.hint) == (3, f"spiketriage freeze {run}")
    assert started.dossier().findings == ()


def test_damage_after_the_freeze_moves_known_good(tmp_path):
    run = frozen(write_run(tmp_path / "run"))
    path = run / "checkpoints" / "step-000120" / "tensors" / "__0_0.distcp"
    flip_byte(path, path.stat().st_size - 1)
    result = hashed(run)
    assert result.exit_code == 4
    anchors = incident(run).dossier().anchors
    assert (anchors.known_good, anchors.older_good) == ("step-000080", "step-000040")
    assert any("known good is now step-000080" in line for line in result.lines)
    view = load_view(incident(run), read_settings(run))
    assert view.generations[2].problems


def test_a_generation_that_was_rotated_away_stays_known_good(tmp_path):
    run = frozen(write_run(tmp_path / "run", spike_at=110))
    shutil.rmtree(run / "checkpoints" / "step-000080")
    result = hashed(run)
    assert result.exit_code == 0
    assert incident(run).dossier().anchors.known_good == "step-000080"
    assert any("step-000080/MANIFEST.json: cannot be read" in line for line in result.lines)


def test_a_log_that_grew_is_context_and_a_changed_config_is_not(tmp_path):
    run = frozen(write_run(tmp_path / "run"))
    with (run / "logs" / "rank-00000.log").open("a") as stream:
        stream.write("more\n")
    result = hashed(run)
    assert result.exit_code == 0
    assert "context: logs/rank-00000.log: written since the freeze; the copy stands" in result.lines
    (run / "config.json").write_text("{}")
    result = hashed(run)
    assert result.exit_code == 4
    assert any(line.startswith("config.json: changed since the freeze") for line in result.lines)


def test_evidence_that_was_edited_is_found(tmp_path):
    run = frozen(write_run(tmp_path / "run"))
    flip_byte(
        incident(run).folder / "evidence" / "data" / "telemetry" / "rank-00000.attempt-000.seg", 200
    )
    result = hashed(run)
    assert result.exit_code == 4
    assert any(
        line.startswith("evidence: ") and "rank-00000.attempt-000.seg" in line
        for line in result.lines
    )
    assert (
        verify.run(run, incidents=None, incident=None, argv=["spiketriage", "verify"]).exit_code
        == 4
    )


def test_code_that_is_not_the_manifests_is_context_only(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "code" / "r2" / "trainer.py").write_text("RELEASE = 'r3'\n")
    result = hashed(frozen(run))
    assert result.exit_code == 0
    assert "context: code/r2: is not the code that step-000120 was written by" in result.lines


def test_an_incident_after_freeze_and_hash_verifies_deeply(tmp_path):
    run = frozen(write_run(tmp_path / "run", spike_at=110, rotten_document="doc-6"))
    hashed(run)
    argv = ["spiketriage", "verify"]
    result = verify.run(run, incidents=None, incident=None, argv=argv, deep=True)
    assert result.exit_code == 0, result.lines


def test_the_next_command_is_spelled_as_this_one_was(tmp_path, monkeypatch):
    write_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    kept = freeze.run(
        Path("run"), incidents=Path("inc"), incident=None, argv=["spiketriage", "freeze"]
    )
    assert kept.next_commands == ("spiketriage hash run --incidents inc",)
    result = hash_step.run(
        Path("run"), incidents=Path("inc"), incident=kept.incident, argv=["spiketriage", "hash"]
    )
    assert result.next_commands == (
        f"spiketriage check run --incidents inc --incident {kept.incident}",
    )
    planned = freeze.run(
        Path("run"), incidents=Path("inc"), incident=None, argv=[], step=75, dry_run=True
    )
    assert planned.next_commands == ("spiketriage freeze run --step 75 --incidents inc",)


def test_rot_in_many_shards_is_one_short_sentence(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    index = read_index(run / "data" / "index.json")
    for name in ("doc-0", "doc-1", "doc-2", "doc-5"):
        flip_byte(run / "data" / index.documents[name].shard, index.documents[name].offset_bytes)
    hashed(frozen(run))
    summary = findings(run)["shard-digests"].summary
    head, _, note = summary.partition("; ")
    assert head == (
        "4 documents in 2 shards differ from the index: "
        "shard-00000.bin doc-2, shard-00000.bin doc-0, shard-00000.bin doc-1 and 1 more"
    )
    assert note == "the suspect step consumed 1 of them"


def test_without_a_freeze_it_is_refused_with_the_command_that_helps(tmp_path):
    run = write_run(tmp_path / "run")
    with pytest.raises(RefusedError) as caught:
        hashed(run)
    assert caught.value.exit_code == 3
    assert caught.value.hint == f"spiketriage freeze {run}"
