"""Which journal rows belong to the story, and which command comes next.

It reads journal rows as text only; it never runs or resolves what they name.
"""

from __future__ import annotations

import shlex

from spiketriage.incident import next_step
from spiketriage.incident.progress import verb
from spiketriage.nouns.incident import Dossier, JournalRow

# These look at an incident without changing what is known, so that they may not change the report
# either.
SILENT = ("report", "status", "sql", "verify", "inspect", "defenses", "watch")


def told(journal: tuple[JournalRow, ...]) -> tuple[JournalRow, ...]:
    """Rows that the report shows, in order."""
    return tuple(row for row in journal if verb(row.argv) not in SILENT)


def chain_head(journal: tuple[JournalRow, ...]) -> str:
    """Digest of the last row that the report shows; empty before the first."""
    rows = told(journal)
    if rows:
        return rows[-1].digest
    return ""


def command(dossier: Dossier, name: str) -> str:
    """`spiketriage NAME RUN --incident ID`, as it can be pasted from anywhere."""
    run = dossier.facts.get("run", "")
    words = ["spiketriage", name]
    if run.startswith("/"):
        words.append(shlex.quote(run))
    elsewhere = dossier.facts.get("incidents", "")
    if elsewhere:
        words += ["--incidents", shlex.quote(elsewhere)]
    if name not in {"freeze", "triage"} and dossier.incident:
        words += ["--incident", shlex.quote(dossier.incident)]
    return " ".join(words)


def next_command(dossier: Dossier) -> str:
    """What to type after reading the report, as it can be pasted from anywhere."""
    following = next_step.in_report(dossier)
    if following.startswith("spiketriage "):
        return following
    return command(dossier, following)
