"""`bisect` speaks from the incident's record: no evidence is read again, and no record is stale."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import call, environment
from run_folder import TOML, flip_byte, write_run

from spiketriage.incident import store
from spiketriage.incident.store import Incident
from spiketriage.runbook import bisect, check, freeze, hash
from spiketriage.runbook.bench import open_bench
from spiketriage.runbook.outlook import Typed, basis_of, recorded_outlook


def step(module, run: Path, **options):
    name = module.__name__.rpartition(".")[2]
    return module.run(run, incidents=None, incident=None, argv=["spiketriage", name], **options)


def typed(run: Path) -> Typed:
    return Typed(run_folder=run, incidents=None, incident=None)


def incident_of(run: Path) -> Incident:
    return store.find(run, incidents=None, wanted=None)


def prepared(folder: Path, **plants: object) -> Path:
    run = write_run(folder / "run", **plants)
    for module in (freeze, hash, check):
        step(module, run)
    return run


def alone(run: Path, folder: Path) -> Path:
    """The run's settings and its incident's database, and nothing else of either."""
    found = incident_of(run)
    beside = folder / "alone"
    kept = beside / found.folder.relative_to(run)
    kept.mkdir(parents=True)
    shutil.copy(run / "spiketriage.toml", beside)
    shutil.copy(found.folder / "incident.duckdb", kept)
    return beside


@pytest.mark.parametrize(
    "plants",
    [
        {},
        {"spike_at": 110},
        {"rotten_document": "doc-3"},
        {"spike_at": 115, "disagreeing": "step-000080"},  # check moves onset and known good
    ],
    ids=lambda plants: " ".join(plants) or "healthy",
)
def test_the_verdict_is_the_same_where_all_evidence_is_gone(tmp_path, plants):
    run = prepared(tmp_path, **plants)
    beside = alone(run, tmp_path)
    expected, seen = step(bisect, run), step(bisect, beside)
    assert (seen.verdict, seen.exit_code) == (expected.verdict, expected.exit_code)
    assert seen.data == expected.data
    assert seen.lines == expected.lines
    assert seen.next_commands[0].replace(str(beside), str(run)) == expected.next_commands[0]


@pytest.mark.parametrize("plants", [{}, {"spike_at": 115, "disagreeing": "step-000080"}])
def test_what_check_recorded_is_what_the_evidence_gives(tmp_path, plants):
    run = prepared(tmp_path, **plants)
    recorded, opened = recorded_outlook(typed(run)), open_bench(typed(run))
    assert recorded is not None
    assert opened.is_recorded
    assert recorded.plan == opened.plan
    assert recorded.proposal() == opened.proposal()


def test_without_a_record_the_evidence_is_read_once(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    step(freeze, run)
    assert recorded_outlook(typed(run)) is None
    first = step(bisect, run)
    assert recorded_outlook(typed(run)) is not None
    assert step(bisect, alone(run, tmp_path)).data == first.data


def test_a_generation_that_hash_refuses_makes_the_record_stale(tmp_path):
    run = write_run(tmp_path / "run", spike_at=110)
    for module in (freeze, check):
        step(module, run)
    before = recorded_outlook(typed(run))
    assert before is not None
    shard = next((run / "checkpoints" / "step-000080" / "tensors").glob("*.distcp"))
    flip_byte(shard, shard.stat().st_size - 3)
    assert step(hash, run).exit_code == 4
    assert recorded_outlook(typed(run)) is None
    step(bisect, run)
    after = recorded_outlook(typed(run))
    assert after is not None
    assert after.plan == open_bench(typed(run)).plan
    assert after.plan.experiments != before.plan.experiments


def test_a_harness_named_or_taken_away_later_is_noticed(tmp_path):
    run = prepared(tmp_path, spike_at=110)
    assert step(bisect, run).next_commands[0].startswith("spiketriage replay")
    (run / "spiketriage.toml").write_text(TOML.replace('"trainer.harness:factory"', '""'))
    without = step(bisect, run)
    assert any(line.startswith("not replayed: the run names no harness") for line in without.lines)
    assert without.data["next_experiments"] == []
    (run / "spiketriage.toml").write_text(TOML)
    assert step(bisect, run).next_commands[0].startswith("spiketriage replay")


def test_what_later_steps_add_does_not_make_a_record_stale(tmp_path):
    run = prepared(tmp_path, spike_at=110)
    found = incident_of(run)
    before = basis_of(found.dossier(), run)
    with found.session(["spiketriage", "branch"]) as session:
        session.findings(found.dossier().findings)
    step(bisect, run)
    assert basis_of(found.dossier(), run) == before


@pytest.mark.parametrize("is_checked", [True, False])
def test_without_a_known_good_generation_the_checks_still_give_a_verdict(tmp_path, is_checked):
    run = write_run(tmp_path / "run", spike_at=30)  # no generation is older
    step(freeze, run)
    if is_checked:
        assert step(check, run).exit_code in (0, 1)
    weighed = step(bisect, run)
    assert weighed.verdict
    assert "not replayed: no known-good generation: nothing can be replayed" in weighed.lines
    assert weighed.data["next_experiments"] == []
    refused = call("replay", str(run), cwd=tmp_path)
    assert refused.returncode == 3
    assert "no known-good generation" in refused.stderr
    triaged = call("triage", str(run), cwd=tmp_path)
    assert triaged.returncode in (0, 1, 5), triaged.stderr
    assert "report.html" in triaged.stdout


WATCH = """
import json, sys
opened = []
def hook(name, arguments):
    if name in ("open", "os.listdir", "os.scandir"):
        opened.append(str(arguments[0]))
sys.addaudithook(hook)
from spiketriage.cli.main import app
sys.argv = ["spiketriage", *sys.argv[1:]]
app(sys.argv[1:], standalone_mode=False)
rooms = sorted(name for name in sys.modules if name.startswith("spiketriage."))
print(json.dumps({"opened": opened, "modules": rooms}), file=sys.stderr)
"""


def test_bisect_opens_the_record_alone_and_enters_no_reader(tmp_path):
    run = prepared(tmp_path, spike_at=110)
    done = subprocess.run(
        [sys.executable, "-c", WATCH, "bisect", str(run)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    said = json.loads(done.stderr.splitlines()[-1])
    inside = {Path(name) for name in said["opened"] if name.startswith(str(run))}
    payload = incident_of(run).folder / "evidence"
    assert not [path for path in inside if path.is_relative_to(payload)]
    outside_the_incident = {
        path for path in inside if not path.is_relative_to(run / ".spiketriage")
    }
    assert outside_the_incident == {run / "spiketriage.toml"}
    assert not [name for name in said["modules"] if name.startswith("spiketriage.readers.")]
    assert "spiketriage.evidence.frozen" not in said["modules"]
