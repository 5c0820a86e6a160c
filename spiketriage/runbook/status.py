"""Where an incident stands: which steps of the runbook are done, what is known, what to type next.

It only reads the incident: it takes no lease, writes no journal row, and works beside a command in
progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from spiketriage.errors import Exit, RefusedError
from spiketriage.evidence.onset import NOTHING
from spiketriage.incident import lease, next_step, store
from spiketriage.incident.progress import Progress, measure
from spiketriage.nouns.incident import JUDGED, Anchors, Dossier, StepResult
from spiketriage.readers.settings import read_settings


def run(
    run_folder: Path, *, incidents: Path | None, incident: str | None, argv: Sequence[str]
) -> StepResult:
    """Read the incident and say where it stands.

    Raises:
        RefusedError: `incident` names none.
        EvidenceError: the incident's database cannot be read, or the folder is no run.
    """
    try:
        place = store.find(run_folder, incidents=incidents, wanted=incident)
    except RefusedError:
        if incident is not None:
            raise
        return _untouched(run_folder, incidents)
    dossier = place.dossier()
    report_written = (place.folder / "report" / "report.html").is_file()
    progress = measure(dossier, report_written=report_written)
    following = next_step.following(dossier, report_written=report_written)
    if not following.startswith("spiketriage "):
        following = next_step.command(following, run_folder, incidents, incident)
    verdict = dossier.verdict
    return StepResult(
        incident=place.id,
        exit_code=Exit.DONE,
        verdict=verdict.kind if verdict else "",
        lines=(
            f"incident {place.id}",
            f"folder {place.folder}",
            *_at_work(place.folder),
            *_known(dossier),
            *_table(progress),
        ),
        data=_data(run_folder, place.folder, dossier, progress),
        next_commands=(following,),
    )


def _untouched(run_folder: Path, incidents: Path | None) -> StepResult:
    read_settings(run_folder)  # a folder that is no run has no next step
    return StepResult(
        incident="",
        exit_code=Exit.DONE,
        verdict="",
        lines=(f"run {run_folder}: nothing is frozen yet",),
        data={"run": str(run_folder), "folder": None, "steps": []},
        next_commands=(next_step.command("freeze", run_folder, incidents),),
    )


def _known(dossier: Dossier) -> list[str]:
    if dossier.anchors:
        lines = _anchors(dossier.anchors)
    else:
        lines = []
    if dossier.facts.get(JUDGED):
        lines.append(f"judged: {dossier.facts[JUDGED]}")
    against = [
        item
        for item in dossier.findings
        if item.judged and item.outcome in ("differs", "nonfinite")
    ]
    lines += [f"{item.outcome}: {item.name}: {item.summary}" for item in against]
    if dossier.freeze is not None:
        lines += [f"note: {note}" for note in dossier.freeze.telemetry_notes]
    verdict = dossier.verdict
    if verdict is None:
        return [*lines, "verdict: none yet"]
    if verdict.cause:
        cause = f" {verdict.cause} ({verdict.cause_class})"
    else:
        cause = ""
    return [*lines, f"verdict: {verdict.kind}{cause}: {verdict.explanation}"]


def _anchors(anchors: Anchors) -> list[str]:
    if anchors.onset is None and anchors.reason == NOTHING:
        return [
            "onset: none (nothing spiked; this is an audit)",
            f"known good: {anchors.known_good or 'none'}",
        ]
    if anchors.onset is None:
        onset = "none"
    else:
        onset = f"step {anchors.onset}"
    if anchors.suspect is None:
        suspect = "none"
    else:
        suspect = f"step {anchors.suspect}"
    good = anchors.known_good or "none"
    return [f"onset {onset}, suspect {suspect}: {anchors.reason}", f"known good: {good}"]


def _table(progress: Sequence[Progress]) -> list[str]:
    states = [item.result or item.state for item in progress]
    width = max(8, *map(len, states))
    return [
        f"  {item.step:<7} {text:<{width}} {item.at}".rstrip()
        for item, text in zip(progress, states, strict=True)
    ]


def _at_work(folder: Path) -> list[str]:
    """Who holds the lease, unless it is known to be dead."""
    holder = lease.read(folder / lease.NAME)
    if holder is None or holder.lives() is False:
        return []
    who = f"process {holder.pid} of {holder.who} on host {holder.host}"
    return [f"at work since {holder.since}: {who}: {holder.command}"]


def _data(
    run_folder: Path, folder: Path, dossier: Dossier, progress: Sequence[Progress]
) -> dict[str, object]:
    verdict = dossier.verdict
    return {
        "run": str(run_folder),
        "folder": str(folder),
        "steps": [asdict(item) for item in progress],
        "anchors": asdict(dossier.anchors) if dossier.anchors else None,
        "judged": dossier.facts.get(JUDGED, ""),
        "cause": verdict.cause if verdict else None,
        "class": verdict.cause_class if verdict else None,
        "num_findings": len(dossier.findings),
        "num_trials": len(dossier.trials),
    }
