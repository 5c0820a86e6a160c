"""Where an incident stands: which steps of the runbook are done, what is known, what to type next.

It only reads the incident: it takes no lease, writes no journal row, and works beside a command in
progress.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from spiketriage.errors import Exit, RefusedError
from spiketriage.evidence.onset import NOTHING
from spiketriage.incident import lease, store
from spiketriage.incident.session import OUTCOMES
from spiketriage.nouns.incident import HARNESS, Anchors, Dossier, JournalRow, StepResult
from spiketriage.readers.settings import read_settings
from spiketriage.runbook import next_step

ORDER = ("freeze", "hash", "check", "replay", "branch", "bisect", "report")
FINISHED = (
    Exit.DONE,
    Exit.AGAINST,
    Exit.INCONCLUSIVE,
    Exit.PARTIAL,
)  # exit codes of a step whose result stands
RESULTS: Mapping[int, str] = {
    Exit.AGAINST: "found something",
    Exit.INTEGRITY: "found something",
    Exit.INCONCLUSIVE: "undecided",
    Exit.PARTIAL: "kept with gaps",
}
ALWAYS_IN_TRIAGE = ("freeze", "hash", "check", "bisect")
CONCLUSIVE = (
    "established",
    "supported",
    "telemetry-artefact",
    "expected-behaviour",
    "nothing-found",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One step of the runbook in this incident.

    `state` is `done`, `open`, or `stopped` without a result.
    """

    step: str
    state: str
    result: str
    at: str
    number: int


def run(
    run_folder: Path, *, incidents: Path | None, incident: str | None, argv: Sequence[str]
) -> StepResult:
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
        exit_code=Exit.DONE,
        verdict=verdict.kind if verdict else "",
        lines=(
            f"incident {found.id}",
            f"folder {found.folder}",
            *_at_work(found.folder),
            *_known(dossier),
            *_table(progress),
        ),
        data=_data(run_folder, found.folder, dossier, progress),
        next_commands=(_command(_next(dossier, progress), run_folder, incidents, incident),),
    )


def measure(dossier: Dossier, *, report_written: bool) -> tuple[Progress, ...]:
    """Tell the state of each step from the journal and from the rows that each step leaves."""
    experiments = {item.name for item in dossier.findings if item.source == "experiment"}
    rows = {
        "freeze": dossier.anchors is not None or bool(dossier.artifacts),
        "replay": any(trial.kind == "replay" and trial.state == "done" for trial in dossier.trials),
        "branch": bool({name for name in experiments if not name.startswith("replay")}),
        "bisect": dossier.verdict is not None,
        "report": report_written,
    }
    return tuple(_progress(step, dossier.journal, rows.get(step, False)) for step in ORDER)


def _progress(step: str, journal: Sequence[JournalRow], has_rows: bool) -> Progress:
    mine = [row for row in journal if _ran(row, step)]
    last = mine[-1] if mine else None
    if last is None:
        return Progress(
            step=step, state="done" if has_rows else "open", result="", at="", number=-1
        )
    if _stands(last):
        told = RESULTS.get(last.exit_code, "")
    else:
        told = "stopped"
    return Progress(
        step=step,
        state="done" if _stands(last) else "stopped",
        result=f"{told} (exit {last.exit_code})" if told else "",
        at=last.at,
        number=last.number,
    )


def _stands(row: JournalRow) -> bool:
    """Whether the command came to its end; exit 4 may be what `hash` found, or an error."""
    return row.exit_code in FINISHED or row.outcome == OUTCOMES[Exit.INTEGRITY]


def _ran(row: JournalRow, step: str) -> bool:
    command = _command_of(row)
    by_triage = command == "triage" and step in ALWAYS_IN_TRIAGE and _stands(row)
    return command == step or by_triage


def _command_of(row: JournalRow) -> str:
    words = row.argv.split()
    if len(words) > 1:
        return words[1]
    return ""


def _next(dossier: Dossier, progress: Sequence[Progress]) -> list[str]:
    latest = next(
        (row for row in reversed(dossier.journal) if _command_of(row) in (*ORDER, "triage")), None
    )
    if latest is not None and not _stands(latest):
        return [_command_of(latest)]
    verdict = dossier.verdict
    if verdict is None:
        skipped = ("replay", "branch") if dossier.facts.get(HARNESS) == "" else ()
        left = (item.step for item in progress if item.state != "done" and item.step not in skipped)
        return [next(left, "bisect")]
    if verdict.kind not in CONCLUSIVE and verdict.next_experiment:
        return _proposal(verdict.next_experiment)
    bisect, report = progress[ORDER.index("bisect")], progress[ORDER.index("report")]
    stale = report.state != "done" or -1 < report.number < bisect.number
    if stale:
        return ["report"]
    return ["verify"]


def _proposal(experiment: str) -> list[str]:
    if experiment.startswith("spiketriage "):
        return shlex.split(experiment)
    return ["branch", "--experiment", experiment]


def _command(
    words: list[str], run_folder: Path, incidents: Path | None, incident: str | None
) -> str:
    if words[0] == "spiketriage":
        return shlex.join(words)
    chosen = None if words[0] == "freeze" else incident
    return next_step.command(words[0], run_folder, incidents, chosen, *words[1:])


def _untouched(run_folder: Path, incidents: Path | None) -> StepResult:
    read_settings(run_folder)  # a folder that is no run has no next step
    return StepResult(
        incident="",
        exit_code=Exit.DONE,
        verdict="",
        lines=(f"run {run_folder}: nothing is frozen yet",),
        data={"run": str(run_folder), "folder": None, "steps": []},
        next_commands=(_command(["freeze"], run_folder, incidents, None),),
    )


def _known(dossier: Dossier) -> list[str]:
    if dossier.anchors:
        lines = _anchors(dossier.anchors)
    else:
        lines = []
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
    told = [item.result or item.state for item in progress]
    width = max(8, *map(len, told))
    return [
        f"  {item.step:<7} {text:<{width}} {item.at}".rstrip()
        for item, text in zip(progress, told, strict=True)
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
        "cause": verdict.cause if verdict else None,
        "class": verdict.cause_class if verdict else None,
        "num_findings": len(dossier.findings),
        "num_trials": len(dossier.trials),
    }
