"""Two real runs with a planted fault, triaged by the real command.

Right cause, right place, bit for bit.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from rehearsed import Rehearsed

from spiketriage.nouns.telemetry import Link
from spiketriage.wire import telemetry as wire
from spiketriage.wire.generation import generation_name

ENVELOPE = ["schema", "ok", "verdict", "exit", "incident", "data", "next"]
VERDICTS = {
    "established",
    "supported",
    "undetermined",
    "telemetry-artefact",
    "expected-behaviour",
    "unresolved",
    "nothing-found",
}

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Triaged:
    """A run, what triage said of it, and where its incident lies."""

    run: Rehearsed
    incidents: Path
    exit_code: int
    envelope: dict[str, Any]
    talk: str

    @property
    def folder(self) -> Path:
        """The incident."""
        return self.incidents / self.envelope["incident"]

    def again(self) -> Triaged:
        """The same command once more."""
        return triage(self.run, self.incidents)

    def findings(self) -> dict[str, dict[str, Any]]:
        """Findings by name, as the report keeps them."""
        report = json.loads((self.folder / "report" / "report.json").read_text())
        return {finding["name"]: finding for finding in report["findings"]}


def triage(run: Rehearsed, incidents: Path) -> Triaged:
    done = call(
        "triage", str(run.folder), "--incidents", str(incidents), "--json", cwd=incidents.parent
    )
    assert done.stdout, done.stderr
    return Triaged(
        run=run,
        incidents=incidents,
        exit_code=done.returncode,
        envelope=json.loads(done.stdout),
        talk=done.stderr,
    )


@pytest.fixture(scope="module")
def bitrot(bitrot_run: Rehearsed, tmp_path_factory: pytest.TempPathFactory) -> Triaged:
    return triage(bitrot_run, tmp_path_factory.mktemp("desk") / "incidents")


@pytest.fixture(scope="module")
def flip(flip_run: Rehearsed, tmp_path_factory: pytest.TempPathFactory) -> Triaged:
    return triage(flip_run, tmp_path_factory.mktemp("desk") / "incidents")


@pytest.fixture(params=["bitrot", "flip"])
def triaged(request: pytest.FixtureRequest) -> Triaged:
    found: Triaged = request.getfixturevalue(request.param)
    return found


def test_the_envelope_has_the_promised_fields(triaged: Triaged) -> None:
    said = triaged.envelope
    assert list(said) == ENVELOPE
    assert said["schema"] == "spiketriage.triage/1"
    assert (said["ok"], said["exit"]) == (triaged.exit_code == 0, triaged.exit_code)
    assert said["verdict"] in VERDICTS
    assert {"cause", "class", "where", "steps_executed"} <= set(said["data"])
    assert isinstance(said["data"]["steps_executed"], int)
    assert said["data"]["steps_executed"] >= 0
    assert all(command.startswith("spiketriage ") for command in said["next"])
    assert triaged.folder.is_dir()


def test_the_planted_cause_is_established_where_it_was_planted(triaged: Triaged) -> None:
    said, stage = triaged.envelope, triaged.run.stage
    expected = {"shard-bitrot": "data", "weight-bit-flip": "systems"}
    assert (said["verdict"], said["data"]["cause"]) == ("established", triaged.run.fault), (
        triaged.talk
    )
    assert said["data"]["class"] == expected[triaged.run.fault]
    assert (said["data"]["where"]["step"], said["data"]["where"]["rank"]) == (
        stage.fault_step,
        stage.rank,
    )
    assert triaged.exit_code == 0


def test_the_rotten_document_and_the_flipped_tensor_are_named(
    bitrot: Triaged, flip: Triaged
) -> None:
    stage = bitrot.run.stage
    assert bitrot.envelope["data"]["where"]["key"] in {
        stage.names[number] for number in stage.rotten
    }
    arguments = flip.run.stage.hook_arguments
    assert arguments is not None
    manifest = json.loads(
        (flip.run.folder / "checkpoints" / "step-000020" / "MANIFEST.json").read_text()
    )
    names = sorted(manifest["tensors"]["rank-0"]["params"])
    where = flip.envelope["data"]["where"]
    assert (where["stage"], where["key"]) == (
        "params_before",
        names[int(arguments["tensor"] * len(names))],
    )


def test_the_reports_exist_and_name_the_verdict(triaged: Triaged) -> None:
    for kind, path in triaged.envelope["data"]["report"].items():
        text = Path(path).read_text(encoding="utf-8")
        assert triaged.run.fault in text, kind
        assert Path(path).parent == triaged.folder / "report"
    html = (triaged.folder / "report" / "report.html").read_text(encoding="utf-8")
    assert "http://" not in html.replace("http://www.w3.org/", "")
    assert "https://" not in html
    assert "<svg" in html


def reports(triaged: Triaged) -> dict[str, bytes]:
    folder = triaged.folder / "report"
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_demo_on_a_run_that_lies_there_shows_verdict_and_report(
    bitrot: Triaged, tmp_path: Path
) -> None:
    """The demo's second half; its first half is the rehearsal that made the run."""
    run = tmp_path / "demo-run"
    shutil.copytree(bitrot.run.folder, run)
    shutil.copytree(bitrot.incidents, run / ".spiketriage" / "incidents", dirs_exist_ok=True)
    done = call("demo", "--out", str(run), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "verdict: established: shard-bitrot" in done.stdout
    report = next(
        line.removeprefix("report: ")
        for line in done.stdout.splitlines()
        if line.startswith("report: ")
    )
    assert Path(report).read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_same_incident_gives_the_same_report(triaged: Triaged) -> None:
    before = reports(triaged)
    assert {"report.md", "report.html", "report.json"} < set(before)
    again = call(
        "report",
        str(triaged.run.folder),
        "--incidents",
        str(triaged.incidents),
        cwd=triaged.incidents.parent,
    )
    assert again.returncode == 0, again.stderr
    assert reports(triaged) == before


def test_a_second_triage_executes_nothing_and_says_the_same(triaged: Triaged) -> None:
    before, findings = reports(triaged), triaged.findings()
    marks = {path: path.stat().st_mtime_ns for path in (triaged.folder / "trials").rglob("*")}
    second = triaged.again()
    assert (second.exit_code, second.envelope["verdict"]) == (
        triaged.exit_code,
        triaged.envelope["verdict"],
    )
    assert {"replay", "branch"}.isdisjoint(second.envelope["data"]["exit_codes"])
    told = ("cause", "class", "where", "steps_executed", "causes", "explanation", "not_tested")
    assert [second.envelope["data"][name] for name in told] == [
        triaged.envelope["data"][name] for name in told
    ]
    assert second.findings() == findings
    plots = [
        name for name in before if name.endswith(".svg")
    ]  # the texts also show that the journal has grown
    assert plots
    assert [reports(second)[name] for name in plots] == [before[name] for name in plots]
    assert {
        path: path.stat().st_mtime_ns for path in (triaged.folder / "trials").rglob("*")
    } == marks


def test_a_replay_asked_for_again_is_answered_from_what_lies_there(bitrot: Triaged) -> None:
    words = (str(bitrot.run.folder), "--incidents", str(bitrot.incidents))
    done = call("replay", *words, cwd=bitrot.incidents.parent)
    assert done.returncode == 0, done.stderr
    assert "0 steps executed, 1 cached" in done.stdout


def test_the_rot_reproduces_and_the_flip_does_not(bitrot: Triaged, flip: Triaged) -> None:
    assert bitrot.findings()["replay"]["outcome"] == "agrees"
    once = flip.findings()["replay"]
    assert (once["outcome"], once["where"]["stage"]) == ("differs", "params_before")
    assert (once["where"]["step"], once["where"]["rank"]) == (
        flip.run.stage.fault_step,
        flip.run.stage.rank,
    )
    assert len(once["trials"]) >= 3  # nobody says "once" before three replays agree


def test_after_all_trials_the_verdict_needs_no_evidence(triaged: Triaged, tmp_path: Path) -> None:
    """Telemetry, generations, evidence and trials are gone; the record alone gives the verdict."""
    run, kept = tmp_path / "run", tmp_path / "incidents" / triaged.folder.name
    for folder in (run, kept):
        folder.mkdir(parents=True)
    shutil.copy(triaged.run.folder / "spiketriage.toml", run)
    shutil.copy(triaged.folder / "incident.duckdb", kept)
    done = call("bisect", str(run), "--incidents", str(kept.parent), "--json", cwd=tmp_path)
    said, before = json.loads(done.stdout), triaged.envelope
    assert (said["verdict"], said["exit"]) == (before["verdict"], before["exit"])
    told = ("cause", "class", "where", "steps_executed", "causes", "explanation", "not_tested")
    assert [said["data"][name] for name in told] == [before["data"][name] for name in told]


def chains(path: Path) -> Iterator[tuple[int, Mapping[Link, bytes]]]:
    """Step and digests of every record of a segment, decoded by the wire format alone."""
    layouts: dict[int, tuple[Link, ...]] = {}
    for frame in wire.iter_frames(path.read_bytes()):
        if frame.kind == wire.LAYOUT:
            layout = json.loads(frame.payload)
            layouts[layout["id"]] = tuple(Link(stage, key) for stage, key in layout["links"])
        if frame.kind == wire.STEP:
            record, digests = wire.decode_step(frame.payload, layouts)
            yield record["step"], digests


def production(run: Rehearsed, rank: int) -> dict[int, Mapping[Link, bytes]]:
    """Every step as the latest attempt recorded it."""
    found: dict[int, Mapping[Link, bytes]] = {}
    for attempt in (0, 1):
        found.update(chains(run.folder / "telemetry" / wire.segment_name(rank, attempt)))
    return found


def replays(triaged: Triaged) -> list[Path]:
    """Folders of the trials that repeated production with nothing changed."""
    found = []
    for path in sorted((triaged.folder / "trials").glob("*/trial.json")):
        trial = json.loads(path.read_text())
        factors = trial["factors"]
        if (
            trial["kind"] == "replay"
            and factors["batch"] == "recorded"
            and factors["code"] == "deployed"
        ):
            found.append(path.parent)
    return found


def test_a_fresh_process_repeats_production_bit_for_bit(bitrot: Triaged) -> None:
    (folder,) = replays(bitrot)
    stage = bitrot.run.stage
    for rank in (0, 1):
        made = dict(chains(folder / f"rank-{rank:05d}.chain"))
        recorded = production(bitrot.run, rank)
        assert stage.fault_step in made
        for step, digests in made.items():
            assert set(digests) == set(recorded[step])
            assert [link for link in digests if digests[link] != recorded[step][link]] == [], (
                step,
                rank,
            )
    stages = {link.stage for link in recorded[stage.fault_step]}
    assert {
        "ids",
        "content",
        "batch",
        "params_before",
        "activations",
        "loss",
        "local_gradient",
    } <= stages
    assert {"reduced_gradient", "clip_lr", "optimizer", "params_after"} <= stages


def test_replays_of_the_flip_agree_with_each_other_and_leave_production_at_the_flip(
    flip: Triaged,
) -> None:
    stage = flip.run.stage
    folders = replays(flip)
    assert len(folders) >= 3
    made = [dict(chains(folder / f"rank-{stage.rank:05d}.chain")) for folder in folders]
    assert all(other == made[0] for other in made[1:])
    recorded = production(flip.run, stage.rank)
    parting = [step for step in sorted(made[0]) if made[0][step] != recorded[step]]
    assert parting[0] == stage.fault_step
    first = [
        link
        for link, digest in made[0][stage.fault_step].items()
        if recorded[stage.fault_step][link] != digest
    ]
    assert len([link for link in first if link.stage == "params_before"]) == 1


def test_the_known_good_generation_lies_before_the_fault(triaged: Triaged) -> None:
    for folder in replays(triaged):
        trial = json.loads((folder / "trial.json").read_text())
        good, _, step = trial["factors"]["state"].partition("@")
        assert good == generation_name(int(step))
        assert int(step) < triaged.run.stage.fault_step
