"""What to type next on an incident: the one rule for it, and how a command line is spelled.

This module never resolves a path: what was typed relative is printed relative.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from spiketriage.incident.progress import ORDER, Progress, measure, stands, verb
from spiketriage.nouns.incident import HARNESS, LAST_STEP, Anchors, Dossier

REPORT = ("report",)
EXECUTED = ("replay", "branch")  # the steps of the runbook that execute steps of training
CONCLUSIVE = (
    "established",
    "supported",
    "telemetry-artefact",
    "expected-behaviour",
    "nothing-found",
)


def command(
    step: str, run_folder: Path, incidents: Path | None, incident: str | None = None, *options: str
) -> str:
    """`spiketriage STEP RUN OPTIONS --incidents DIR --incident ID`, ready to be pasted."""
    words = ["spiketriage", step, str(run_folder), *options]
    if incidents is not None:
        words += ["--incidents", str(incidents)]
    if incident:
        words += ["--incident", incident]
    return shlex.join(words)


def after_hash(*, is_partial: bool) -> str:
    """What was not measured is measured by the same command; else the checks follow."""
    if is_partial:
        return "hash"
    return "check"


def after_check(anchors: Anchors | None, *, has_steps: bool, has_harness: bool) -> str:
    """Without a harness no step can be executed, and without a suspect none is in question.

    Where no step is recorded, there is nothing to weigh either.
    """
    if not has_steps:
        return "report"
    if has_harness and anchors is not None and anchors.suspect is not None:
        return "replay"
    return "bisect"


def has_steps(dossier: Dossier) -> bool:
    """Whether the frozen telemetry holds a step, so that there is something to replay or weigh."""
    return dossier.facts.get(LAST_STEP) != ""


def after_replay(*, is_reproduced: bool, has_spiked: bool) -> str:
    """A reproduced incident lets one factor be changed; whatever else was seen is to be weighed."""
    if is_reproduced and has_spiked:
        return "branch"
    return "bisect"


def after_bisect(proposed: Sequence[str], *, unasked: str) -> tuple[str, ...]:
    """The words of the command that would tell the most.

    `unasked` names the step that would fill a deciding cell which nobody asked for yet, `proposed`
    the experiments to run next; where both are empty, all that is left is to report.
    """
    if unasked:
        return (unasked,)
    if not proposed:
        return REPORT
    if tuple(proposed) == ("replay",):
        return ("replay",)
    words = ["branch"]
    for name in proposed:
        words += ["--experiment", name]
    return tuple(words)


def following(dossier: Dossier, *, report_written: bool) -> str:
    """The name of the next step, or the whole command line that the verdict proposes.

    A report that is just being written counts as written, and is asked for again only when a
    verdict is newer than it.
    """
    stopped = _stopped(dossier)
    if stopped:
        return stopped
    progress = measure(dossier, report_written=report_written)
    verdict = dossier.verdict
    if verdict is None:
        return _first_open(dossier, progress)
    if verdict.kind not in CONCLUSIVE and verdict.next_experiment:
        return verdict.next_experiment
    if _is_stale(progress):
        return "report"
    return "verify"


def in_report(dossier: Dossier) -> str:
    """The same, as the report itself says it: the report is written by the time that it is read."""
    answer = following(dossier, report_written=True)
    if answer == "report":
        return "verify"
    return answer


def _stopped(dossier: Dossier) -> str:
    """The latest step, if it ended without a result."""
    for row in reversed(dossier.journal):
        name = verb(row.argv)
        if name in (*ORDER, "triage"):
            return "" if stands(row) else name
    return ""


def _first_open(dossier: Dossier, progress: Sequence[Progress]) -> str:
    has_harness = dossier.facts.get(HARNESS) != ""
    after = after_check(dossier.anchors, has_steps=has_steps(dossier), has_harness=has_harness)
    skipped: tuple[str, ...] = ()
    if after != "replay":
        skipped = EXECUTED
    if after == "report":
        skipped = (*EXECUTED, "bisect")
    for item in progress:
        if item.state != "done" and item.step not in skipped:
            return item.step
    if after == "report":
        return "verify"
    return "bisect"


def _is_stale(progress: Sequence[Progress]) -> bool:
    bisect, report = progress[ORDER.index("bisect")], progress[ORDER.index("report")]
    return report.state != "done" or -1 < report.number < bisect.number
