"""Which steps of the runbook an incident has behind it, by its journal and by what each step left.

This module reads a dossier; it never decides what comes next.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath

from spiketriage.errors import Exit
from spiketriage.incident.journal import OUTCOMES
from spiketriage.nouns.incident import Dossier, JournalRow

ORDER = ("freeze", "hash", "check", "replay", "branch", "bisect", "report")
ALWAYS_IN_TRIAGE = ("freeze", "hash", "check", "bisect")
FINISHED = (Exit.DONE, Exit.AGAINST, Exit.INCONCLUSIVE, Exit.PARTIAL)  # the step's result stands
RESULTS: Mapping[int, str] = {
    Exit.AGAINST: "found something",
    Exit.INTEGRITY: "found something",
    Exit.INCONCLUSIVE: "undecided",
    Exit.PARTIAL: "kept with gaps",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One step of the runbook in this incident: `done`, `open`, or `stopped` without a result.

    `number` is that of its latest journal row, -1 without one.
    """

    step: str
    state: str
    result: str = ""
    at: str = ""
    number: int = -1


def measure(dossier: Dossier, *, report_written: bool) -> tuple[Progress, ...]:
    """The state of each step, in the order of the runbook."""
    experiments = {item.name for item in dossier.findings if item.source == "experiment"}
    has_rows = {
        "freeze": dossier.anchors is not None or bool(dossier.artifacts),
        "replay": any(trial.kind == "replay" and trial.state == "done" for trial in dossier.trials),
        "branch": any(not name.startswith("replay") for name in experiments),
        "bisect": dossier.verdict is not None,
        "report": report_written,
    }
    return tuple(_progress(step, dossier.journal, has_rows.get(step, False)) for step in ORDER)


def _progress(step: str, journal: Sequence[JournalRow], has_rows: bool) -> Progress:
    rows = [row for row in journal if _ran(row, step)]
    if not rows:
        return Progress(step=step, state="done" if has_rows else "open")
    last = rows[-1]
    if stands(last):
        state, result = "done", RESULTS.get(last.exit_code, "")
    else:
        state, result = "stopped", "stopped"
    if result:
        result = f"{result} (exit {last.exit_code})"
    return Progress(step=step, state=state, result=result, at=last.at, number=last.number)


def stands(row: JournalRow) -> bool:
    """Whether the command came to its end; exit 4 may be what `hash` found, or an error."""
    return row.exit_code in FINISHED or row.outcome == OUTCOMES[Exit.INTEGRITY]


def _ran(row: JournalRow, step: str) -> bool:
    name = verb(row.argv)
    by_triage = name == "triage" and step in ALWAYS_IN_TRIAGE and stands(row)
    return name == step or by_triage


def verb(argv: str) -> str:
    """Name of the command that an argument line runs; a bare `spiketriage` is `status`."""
    try:
        words = shlex.split(argv)
    except ValueError:  # an unbalanced quote: somebody typed it, and the journal keeps it
        words = argv.split()
    for program, name in pairwise(words):
        if PurePath(program).name == "spiketriage":
            return name
    return "status"
