"""Where an incident stands: which steps of the runbook are done, what is known, what to type next.

It only reads the incident: it takes no lease, writes no journal row, and works beside a command in progress.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from spiketriage.errors import RefusedError
from spiketriage.incident import store
from spiketriage.readers.settings import read_settings
from spiketriage.records import Anchors, Dossier, JournalRow, StepResult

ORDER = ("freeze", "hash", "check", "replay", "branch", "bisect", "report")
FINISHED = (0, 1, 5, 6)  # exit codes of a step whose result stands
ALWAYS_IN_TRIAGE = ("freeze", "hash", "check", "bisect")
CONCLUSIVE = ("established", "supported", "telemetry-artefact", "expected-behaviour", "nothing-found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One step of the runbook in this incident; `state` is `done`, `open`, or `stopped` without a result."""

    step: str
    state: str
    at: str
    number: int


def run(run_folder: Path, *, incidents: Path | None, incident: str | None, argv: Sequence[str]) -> StepResult:
    """Read the incident and say where it stands.

    Raises:
        RefusedError: `incident` names none.
        EvidenceError: the incident's database cannot be read, or the folder is no run.
    """
    try:
        found = store.find(run_folder, incidents=incidents, wanted=incident)
    except RefusedError:
        if incident is not None:
            raise
        return _untouched(run_folder, incidents)
    dossier = found.dossier()
    progress = measure(dossier, report_written=(found.folder / "report" / "report.html").is_file())
    verdict = dossier.verdict
    return StepResult(
        incident=found.id,
        exit_code=0,
        verdict=verdict.kind if verdict else "",
        lines=(f"incident {found.id}", f"folder {found.folder}", *_known(dossier), *_table(progress)),
        data=_data(run_folder, found.folder, dossier, progress),
        next_commands=(_command(_next(dossier, progress), run_folder, incidents, incident),),
    )


def measure(dossier: Dossier, *, report_written: bool) -> tuple[Progress, ...]:
    """Tell the state of each step from the journal and from the rows that each step leaves."""
    experiments = {item.name for item in dossier.findings if item.source == "experiment"}
    rows = {
        "freeze": dossier.anchors is not None or bool(dossier.artifacts),
        "replay": any(trial.kind == "replay" and trial.state == "done" for trial in dossier.trials),
        "branch": bool(experiments - {"replay"}),
        "bisect": dossier.verdict is not None,
        "report": report_written,
    }
    return tuple(_progress(step, dossier.journal, rows.get(step, False)) for step in ORDER)


def _progress(step: str, journal: Sequence[JournalRow], has_rows: bool) -> Progress:
    mine = [row for row in journal if _ran(row, step)]
    last = mine[-1] if mine else None
    if last is not None and last.exit_code not in FINISHED:
        state = "stopped"
    else:
        state = "done" if last is not None or has_rows else "open"
    return Progress(step=step, state=state, at=last.at if last else "", number=last.number if last else -1)


def _ran(row: JournalRow, step: str) -> bool:
    command = _command_of(row)
    by_triage = command == "triage" and step in ALWAYS_IN_TRIAGE and row.exit_code in FINISHED
    return command == step or by_triage


def _command_of(row: JournalRow) -> str:
    words = row.argv.split()
    return words[1] if len(words) > 1 else ""


def _next(dossier: Dossier, progress: Sequence[Progress]) -> list[str]:
    latest = next((row for row in reversed(dossier.journal) if _command_of(row) in (*ORDER, "triage")), None)
    if latest is not None and latest.exit_code not in FINISHED:
        return [_command_of(latest)]
    verdict = dossier.verdict
    if verdict is None:
        return next(([item.step] for item in progress if item.state != "done"), ["bisect"])
    if verdict.kind not in CONCLUSIVE and verdict.next_experiment:
        return _proposal(verdict.next_experiment)
    bisect, report = progress[ORDER.index("bisect")], progress[ORDER.index("report")]
    stale = report.state != "done" or -1 < report.number < bisect.number
    return ["report"] if stale else ["verify"]


def _proposal(experiment: str) -> list[str]:
    if experiment.startswith("spiketriage "):
        return shlex.split(experiment)
    return ["branch", "--experiment", experiment]


def _command(words: list[str], run_folder: Path, incidents: Path | None, incident: str | None) -> str:
    if words[0] == "spiketriage":
        return shlex.join(words)
    place = [words[0], str(run_folder), *words[1:]]
    elsewhere = ["--incidents", str(incidents)] if incidents else []
    chosen = ["--incident", incident] if incident and words[0] != "freeze" else []
    return shlex.join(["spiketriage", *place, *elsewhere, *chosen])


def _untouched(run_folder: Path, incidents: Path | None) -> StepResult:
    read_settings(run_folder)  # a folder that is no run has no next step
    return StepResult(
        incident="",
        exit_code=0,
        verdict="",
        lines=(f"run {run_folder}: nothing is frozen yet",),
        data={"run": str(run_folder), "folder": None, "steps": []},
        next_commands=(_command(["freeze"], run_folder, incidents, None),),
    )


def _known(dossier: Dossier) -> list[str]:
    lines = _anchors(dossier.anchors) if dossier.anchors else []
    against = [item for item in dossier.findings if item.judged and item.outcome in ("differs", "nonfinite")]
    lines += [f"{item.outcome}: {item.name}: {item.summary}" for item in against]
    verdict = dossier.verdict
    if verdict is None:
        return [*lines, "verdict: none yet"]
    cause = f" {verdict.cause} ({verdict.cause_class})" if verdict.cause else ""
    return [*lines, f"verdict: {verdict.kind}{cause}: {verdict.explanation}"]


def _anchors(anchors: Anchors) -> list[str]:
    onset = "none" if anchors.onset is None else f"step {anchors.onset}"
    suspect = "none" if anchors.suspect is None else f"step {anchors.suspect}"
    good = anchors.known_good or "none"
    return [f"onset {onset}, suspect {suspect}: {anchors.reason}", f"known good: {good}"]


def _table(progress: Sequence[Progress]) -> list[str]:
    return [f"  {item.step:<7} {item.state:<8} {item.at}".rstrip() for item in progress]


def _data(run_folder: Path, folder: Path, dossier: Dossier, progress: Sequence[Progress]) -> dict[str, object]:
    verdict = dossier.verdict
    return {
        "run": str(run_folder),
        "folder": str(folder),
        "steps": [asdict(item) for item in progress],
        "anchors": asdict(dossier.anchors) if dossier.anchors else None,
        "cause": verdict.cause if verdict else None,
        "class": verdict.cause_class if verdict else None,
        "num_findings": len(dossier.findings),
        "num_trials": len(dossier.trials),
    }
