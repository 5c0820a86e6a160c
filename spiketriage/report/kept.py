"""The sections about what the incident keeps: known good, evidence, and what it takes to repeat it.

Each takes the dossier alone; none weighs anything anew.
"""

from __future__ import annotations

import json

from spiketriage.nouns.incident import Anchors, Artifact, Dossier
from spiketriage.report import commands, words
from spiketriage.report.model import Missing, Row, Section, Table, Tone, code, number, text
from spiketriage.report.sections import cell, missing, unfilled

NOT_HASHED = "not hashed yet"
FOLDED_FROM_ROWS = 40  # a longer list of evidence is opened by whoever needs it
RULE = "newest generation that is complete, verified, finite, rank-agreed and older than onset"
GENERATION_COLUMNS = (code("Generation"), text("Stands as"), text("Why"))
EVIDENCE_COLUMNS = (
    code("Item"),
    text("Kind"),
    number("Size"),
    code("XXH3-128"),
    text("Kept"),
    text("Gap or difference"),
)


def known_good(dossier: Dossier) -> Section:
    """The generation that replays start from, and why each newer one was refused."""
    key, title, anchors = "known-good", "Known-good selection", dossier.anchors
    if anchors is None or (anchors.known_good is None and not anchors.refused):
        what = "No generation was considered."
        return unfilled(dossier, key=key, title=title, what=what, step="freeze")
    lacking: Missing | None = None
    if anchors.known_good is None:
        lacking = missing(dossier, "No generation is known good: no replay can start.", "hash")
    table = Table(
        caption="Generations, newest first",
        columns=GENERATION_COLUMNS,
        rows=tuple(_generations(anchors)),
    )
    return Section(key=key, title=title, tables=(table,), missing=lacking)


def _generations(anchors: Anchors) -> list[Row]:
    rows = []
    for name in sorted(anchors.refused, key=_newest_first):
        why = words.plain(anchors.refused[name])
        rows.append(Row(cells=(words.plain(name), "refused", why), tone="muted"))
    if anchors.known_good is not None:
        rows.append(Row(cells=(words.plain(anchors.known_good), "known good", RULE), tone="good"))
    if anchors.older_good is not None:
        why = "older state for the state × batch experiment"
        rows.append(Row(cells=(words.plain(anchors.older_good), "older good", why)))
    return rows


def _newest_first(generation: str) -> tuple[int, str]:
    return -(words.generation_step(generation) or 0), generation


def evidence(dossier: Dossier) -> Section:
    """Every item of evidence, how it was kept, and what does not match."""
    key, title, artifacts = "evidence", "Evidence", dossier.artifacts
    if not artifacts:
        what = "No evidence is kept."
        return unfilled(dossier, key=key, title=title, what=what, step="freeze")
    num_gaps = sum(bool(_gap(artifact)) for artifact in artifacts)
    gaps = words.count(num_gaps, "item has a gap or differs", "items have a gap or differ")
    total = words.size(sum(max(0, artifact.size_bytes) for artifact in artifacts))
    paragraphs = [f"{words.count(len(artifacts), 'item')}, {total}; {gaps}."]
    remarks = _remarks(dossier)
    if remarks:
        paragraphs.append("What the telemetry says of itself:")
    table = Table(
        caption="Items, those with a gap first",
        columns=EVIDENCE_COLUMNS,
        rows=tuple(_artifact(artifact) for artifact in sorted(artifacts, key=_gaps_first)),
        folded=len(artifacts) > FOLDED_FROM_ROWS,
    )
    return Section(
        key=key, title=title, paragraphs=tuple(paragraphs), tables=(table,), bullets=remarks
    )


def _remarks(dossier: Dossier) -> tuple[str, ...]:
    """What the recorder says it left out or lost, and what a log's reader had to assume."""
    notes = json.loads(dossier.facts.get("telemetry_notes", "[]"))
    return tuple(map(words.plain, notes))


def _gap(artifact: Artifact) -> str:
    """What is wrong with an item; empty when nothing is."""
    if artifact.kept == "missing":
        return artifact.note or "missing"
    if artifact.expected and artifact.digest and artifact.expected != artifact.digest:
        return f"differs: expected {artifact.expected}"
    if artifact.digest:
        return ""
    return NOT_HASHED


def _gaps_first(artifact: Artifact) -> tuple[bool, str, str]:
    return not _gap(artifact), artifact.kind, artifact.path


def _artifact(artifact: Artifact) -> Row:
    gap = _gap(artifact)
    remarks = [gap]
    if artifact.note != gap:
        remarks.append(artifact.note)
    size = "–"
    if artifact.kept != "missing":
        size = words.size(artifact.size_bytes)
    tone: Tone = ""
    if gap == NOT_HASHED:
        tone = "warn"
    elif gap:
        tone = "bad"
    cells = (
        words.plain(artifact.path),
        words.plain(artifact.kind),
        size,
        cell(artifact.digest),
        words.plain(artifact.kept),
        words.plain(" · ".join(filter(None, remarks))),
    )
    return Row(cells=cells, tone=tone)


def appendix(dossier: Dossier) -> Section:
    """Everything that it takes to repeat this: versions, facts, the head of the journal's chain."""
    rows = []
    journal = commands.told(dossier.journal)
    if journal:
        versions = ", ".join(dict.fromkeys(words.plain(row.version) for row in journal))
        head = words.plain(commands.chain_head(dossier.journal))
        rows.append(Row(cells=("spiketriage version", versions)))
        rows.append(Row(cells=("journal rows shown", str(len(journal)))))
        rows.append(Row(cells=("journal chain head (SHA-256)", head)))
    for name, value in sorted(dossier.facts.items()):
        rows.append(Row(cells=(words.plain(name), words.plain(value))))
    tables: tuple[Table, ...] = ()
    if rows:
        tables = (Table(caption="Facts", columns=(text("Fact"), code("Value")), rows=tuple(rows)),)
    lacking: Missing | None = None
    if not dossier.facts:
        lacking = missing(dossier, "No facts about the run are recorded.", "freeze")
    lead = (
        "Commands that only look (report, status, sql, verify) are in the journal but not in "
        "this report."
    )
    return Section(
        key="appendix",
        title="Reproduction appendix",
        paragraphs=(lead,),
        tables=tables,
        missing=lacking,
    )
