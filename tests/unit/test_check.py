"""`check` on a frozen run folder: findings kept, anchors moved, a second run finds the same."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from run_folder import write_run
from synthetic_view import TENSORS, SyntheticRun, raw

from spiketriage.diagnosis.anchors import select_anchors
from spiketriage.diagnosis.checks import CHECKS
from spiketriage.errors import RefusedError
from spiketriage.incident import store
from spiketriage.nouns.telemetry import Link
from spiketriage.runbook import check, freeze

ARGV = ["spiketriage", "check"]


def frozen(folder: Path, **plants: object) -> Path:
    run = write_run(folder / "run", **plants)
    freeze.run(run, incidents=None, incident=None, argv=["spiketriage", "freeze"])
    return run


def checked(run: Path):
    return check.run(run, incidents=None, incident=None, argv=ARGV)


def anchors(run: Path):
    found = store.find(run, incidents=None, wanted=None).dossier().anchors
    assert found is not None
    return found


def test_a_healthy_run_is_audited_and_nothing_is_found(tmp_path):
    run = frozen(tmp_path)
    result = checked(run)
    assert (result.exit_code, result.verdict) == (0, "")
    assert result.lines[0] == "nothing spiked; this is an audit of the whole history"
    assert "checks agree" in result.lines[-1]
    assert not any(line.startswith(("differs", "nonfinite")) for line in result.lines)
    assert (anchors(run).onset, anchors(run).suspect) == (None, None)
    assert result.next_commands == (f"spiketriage bisect {run}",)
    json.dumps(result.data)


def test_a_fault_before_the_spike_moves_onset_and_known_good_but_not_the_suspect(tmp_path):
    run = frozen(tmp_path, spike_at=115, disagreeing="step-000080")
    assert (anchors(run).onset, anchors(run).suspect) == (115, 115)
    result = checked(run)
    now = anchors(run)
    assert result.exit_code == 1
    assert (now.onset, now.suspect, now.known_good) == (81, 115, "step-000040")
    assert result.lines[0].startswith("onset moved from step 115 to step 81: restored-params")
    assert result.next_commands == (f"spiketriage replay {run}",)
    dossier = store.find(run, incidents=None, wanted=None).dossier()
    assert {finding.name for finding in dossier.findings} >= {
        "restored-params",
        "ids",
        "content-profile",
    }
    assert (dossier.journal[-1].exit_code, dossier.journal[-1].argv) == (1, "spiketriage check")


def test_without_a_spike_the_first_anomaly_becomes_the_suspect_and_a_second_check_finds_the_same(
    tmp_path,
):
    run = frozen(tmp_path, rotten_document="doc-3")
    first = checked(run)
    kept = anchors(run)
    # doc-3 is used at the first step from 100 on where (3 * step + 4 * rank + 0 or 1) % 8 is 3
    expected = next(
        s
        for s in range(100, 121)
        if any((3 * s + 4 * r + i) % 8 == 3 for r in (0, 1) for i in (0, 1))
    )
    assert (kept.onset, kept.suspect) == (expected, expected)
    assert f"step {expected} is the first finding" in first.lines
    again = checked(run)
    assert (again.lines, again.data) == (first.lines, first.data)
    assert anchors(run) == kept
    assert [line for line in again.lines if line.startswith("not testable  composition")]


def test_the_worst_lines_come_first(tmp_path):
    result = checked(frozen(tmp_path, nan_at=100))
    words = [
        line[:13].strip()
        for line in result.lines
        if line[:13].strip() in check.ORDER or "context" in line[:13]
    ]
    assert words[0] == "nonfinite"
    ranks = [
        {"nonfinite": 0, "differs": 1, "context": 2, "not testable": 3}[word] for word in words
    ]
    assert ranks == sorted(ranks)


def test_a_missing_rank_and_a_torn_tail_are_said_and_nothing_is_lost(tmp_path):
    lost = checked(frozen(tmp_path / "a", missing_rank=1))
    assert any(
        "ranks-counters" in line and "telemetry of rank 1 is missing" in line for line in lost.lines
    )
    torn = checked(frozen(tmp_path / "b", torn_bytes=500))
    assert torn.exit_code == 0
    assert any(line.startswith("note: rank-00001.attempt-001.seg") for line in torn.lines)


def test_without_an_incident_the_command_says_what_to_type(tmp_path):
    run = write_run(tmp_path / "run")
    with pytest.raises(RefusedError) as refused:
        checked(run)
    assert refused.value.hint == f"spiketriage freeze {run}"


def test_one_malformed_input_does_not_cost_the_other_findings():
    run = SyntheticRun()
    for step, manifest in run.manifests.items():
        run.manifests[step] = replace(manifest, schedule={"kind": "warmup-cosine", "peak": "high"})
    run.digest(1, 50, "optimizer", TENSORS[0], raw("odd"))
    findings = {finding.name: finding for finding in check.check_all(run.view())}
    assert findings["lr-schedule"].outcome == "not testable"
    assert "malformed" in findings["lr-schedule"].summary
    assert findings["ranks-optimizer"].outcome == "differs"
    assert len(findings) >= len(CHECKS)


def test_context_and_checks_of_the_spike_itself_never_move_the_onset():
    run = SyntheticRun()
    for rank in (0, 1):
        run.identities[1, rank] = replace(run.identities[1, rank], code_digest="new")
    rare = [name for name, document in run.documents.items() if document.source == "rare"]
    run.use(0, 70, rare[:4])
    run.use(1, 70, rare[4:8])
    view = run.view(suspect=70)
    findings = tuple(f for f in check.check_all(view) if f.name in ("code-identity", "composition"))
    assert [finding.outcome for finding in findings] == ["differs", "differs"]
    spike = check.Spike(onset=75, suspect=75)
    found = check.reanchored(view, spike, findings)
    assert (found.onset, found.suspect) == (75, 75)


def test_the_earliest_of_several_anomalies_is_the_onset():
    run = SyntheticRun()
    run.change(0, 66, nonfinite=(Link("loss", "0"),))
    run.metric(1, 52, lr=1.0)
    view = run.view(suspect=66)
    found = check.reanchored(view, check.Spike(onset=66, suspect=66), check.check_all(view))
    assert (found.onset, found.suspect) == (52, 66)
    assert found == select_anchors(view.generations, onset=52, suspect=66, reason=found.reason)
    assert found.known_good == "step-000040"


def test_check_never_loads_torch(tmp_path):
    run = frozen(tmp_path)
    program = (
        "import sys; from pathlib import Path; from spiketriage.runbook import check;"
        f"check.run(Path({str(run)!r}), incidents=None, incident=None, "
        "argv=['spiketriage', 'check']);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
