"""Which journal rows belong to the story, and which command comes next.

It reads journal rows as text only; it never runs or resolves what they name.
"""

from __future__ import annotations

import shlex

from spiketriage.nouns.incident import HARNESS, Dossier, JournalRow

# These look at an incident without changing what is known, so that they may not change the report
# either.
SILENT = frozenset(
    {
        "report",
        "status",
        "sql",
        "verify",
        "inspect",
        "log",
        "export",
        "doctor",
        "watch",
        "defenses",
        "runbook",
    }
)
TELLING = frozenset(
    {
        *(
            "init",
            "triage",
            "freeze",
            "hash",
            "check",
            "replay",
            "branch",
            "bisect",
            "gate",
            "resume",
            "repair",
        ),
        *("note", "hypothesis", "drill", "rehearse", "cadence", "simulate", "demo"),
    }
)


def verb(argv: str) -> str:
    """Name of the command that an argument line runs; a bare `spiketriage` is `status`."""
    try:
        words = shlex.split(argv)
    except ValueError:  # an unbalanced quote: somebody typed it, and the journal keeps it
        words = argv.split()
    cleaned = [word.strip("[]',\"") for word in words]
    return next((word for word in cleaned if word in SILENT or word in TELLING), "status")


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
    """First step of the runbook that has left nothing behind.

    With a verdict, what follows from it.
    """
    step = next_step(dossier)
    if step.startswith("spiketriage "):
        return step
    return command(dossier, step)


def next_step(dossier: Dossier) -> str:
    """The name of the next command, or the whole command that the verdict proposes."""
    verdict = dossier.verdict
    if not dossier.artifacts:
        return "freeze"
    if not dossier.findings:
        return "check"
    if verdict is None:
        if dossier.trials or dossier.facts.get(HARNESS) == "":
            return "bisect"
        return "replay"
    proposal = verdict.next_experiment or ""
    if proposal.startswith("spiketriage "):
        return proposal
    if proposal or verdict.kind == "undetermined":
        if proposal:
            return "branch"
        return "bisect"
    return "verify"
