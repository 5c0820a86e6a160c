"""The sections about what follows from the findings: causes, the argument, and what nobody tested.

Each takes the dossier alone; the verdict is shown as the judge wrote it, and never weighed anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from spiketriage.nouns.incident import CauseView, Dossier
from spiketriage.report import words
from spiketriage.report.model import Row, Section, Table, Tone, badge, text
from spiketriage.report.sections import cell, unfilled

CAUSE_TONES: dict[str, Tone] = {"decided": "good", "open": "warn", "contradicted": "muted"}
CAUSE_WORDS = {"decided": "supported", "open": "open", "contradicted": "refuted"}
CAUSE_ORDER = {"decided": 0, "open": 1, "contradicted": 2}
CAUSE_COLUMNS = (
    text("Cause"),
    text("Class"),
    badge("Status"),
    text("For"),
    text("Against"),
    text("Unexplained"),
    text("Untested"),
)
MAX_ARGUMENT_CHARS = 4000  # an argument is read in full where any other text would be cut
NOT_PROVEN = "not proven: it counts as correlated only until a run without it fails again"


def causes(dossier: Dossier) -> Section:
    """How every cause stands: for, against, unexplained, untested."""
    key, title = "causes", "Causes"
    if dossier.verdict is None or not dossier.verdict.causes:
        what = "No cause has been weighed: all are untested."
        return unfilled(dossier, key=key, title=title, what=what, step="bisect")
    ranked = sorted(dossier.verdict.causes, key=_rank)
    table = Table(
        caption="Causes, best supported first",
        columns=CAUSE_COLUMNS,
        rows=tuple(map(_cause, ranked)),
    )
    return Section(key=key, title=title, tables=(table,))


def _rank(cause: CauseView) -> tuple[int, int]:
    return CAUSE_ORDER[cause.status], len(cause.unexplained)


def _cause(cause: CauseView) -> Row:
    cells = (
        words.plain(cause.name),
        words.plain(cause.cause_class),
        CAUSE_WORDS[cause.status],
        _listed(cause.supporting),
        _listed(cause.contradicting),
        _listed(cause.unexplained),
        _listed(cause.untested),
    )
    return Row(cells=cells, tone=CAUSE_TONES[cause.status])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(words.plain, names)) or "–"


def argument(dossier: Dossier) -> Section:
    """Why the verdict may be said, the repair, and how far that is proven."""
    key, title, verdict = "argument", "Causal argument and repair", dossier.verdict
    if verdict is None:
        what = "There is no verdict to argue for."
        return unfilled(dossier, key=key, title=title, what=what, step="bisect")
    explanation = words.plain(verdict.explanation, limit=MAX_ARGUMENT_CHARS) or "none recorded"
    rows = [
        Row(cells=("Argument", explanation)),
        Row(cells=("Repair", cell(verdict.repair, "none named"))),
    ]
    if verdict.repair:
        rows.append(Row(cells=("Proof of the repair", NOT_PROVEN)))
    overturn = cell(verdict.next_experiment or "", "no open experiment")
    rows.append(Row(cells=("What would overturn it", overturn)))
    table = Table(caption="Argument", columns=(text("Point"), text("Record")), rows=tuple(rows))
    return Section(key=key, title=title, tables=(table,))


def untested(dossier: Dossier) -> Section:
    """Everything that nobody has looked at: the residual risk."""
    key, title, verdict = "untested", "Not tested and residual risk", dossier.verdict
    if verdict is None:
        what = "Nothing has been weighed."
        return unfilled(dossier, key=key, title=title, what=what, step="bisect")
    bullets = list(map(words.plain, verdict.not_tested))
    for finding in dossier.findings:
        if finding.outcome == "not testable":
            name, summary = words.plain(finding.name), words.plain(finding.summary)
            bullets.append(f"{name}: not testable, {summary}")
    paragraphs = ["Absence from this list is no proof: only what a finding names was looked at."]
    if not bullets:
        paragraphs.insert(0, "The verdict names nothing as untested.")
    return Section(key=key, title=title, paragraphs=tuple(paragraphs), bullets=tuple(bullets))
