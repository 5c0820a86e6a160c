"""The sections that show what is known and how.

Evidence, known good, findings, trials, causes, appendix.

Each takes the dossier alone; none weighs anything anew, the verdict is shown as the judge wrote it.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields

from spiketriage.nouns.incident import HARNESS, Artifact, CauseView, Dossier, Finding, TrialRow
from spiketriage.report import commands, words
from spiketriage.report.model import Column, Missing, Row, Section, Table, Tone
from spiketriage.wire.chain import position
from spiketriage.wire.trial import Factors

FINDING_TONES: dict[str, Tone] = {
    "differs": "bad",
    "nonfinite": "bad",
    "not testable": "warn",
    "agrees": "",
}
CAUSE_TONES: dict[str, Tone] = {"decided": "good", "open": "warn", "contradicted": "muted"}
CAUSE_WORDS = {"decided": "supported", "open": "open", "contradicted": "refuted"}
DEPLOYED = {item.name: str(item.default) for item in fields(Factors) if item.name != "state"}


def evidence(dossier: Dossier) -> Section:
    """Every item of evidence, how it was kept, and what does not match."""
    title = "Evidence"
    if not dossier.artifacts:
        missing = Missing(what="No evidence is kept.", command=commands.command(dossier, "freeze"))
        return Section(key="evidence", title=title, missing=missing)
    columns = (
        *(
            Column(title="Item", style="code"),
            Column(title="Kind"),
            Column(title="Size", style="number"),
        ),
        *(
            Column(title="XXH3-128", style="code"),
            Column(title="Kept"),
            Column(title="Gap or difference"),
        ),
    )
    gaps = [artifact for artifact in dossier.artifacts if _gap(artifact)]
    total = words.size(sum(max(0, artifact.size_bytes) for artifact in dossier.artifacts))
    num_gaps = words.count(len(gaps), "item has a gap or differs", "items have a gap or differ")
    lead = f"{words.count(len(dossier.artifacts), 'item')}, {total}; {num_gaps}."
    rows = tuple(
        _artifact(item)
        for item in sorted(dossier.artifacts, key=lambda a: (not _gap(a), a.kind, a.path))
    )
    table = Table(
        caption="Items, those with a gap first", columns=columns, rows=rows, folded=len(rows) > 40
    )
    remarks = _remarks(dossier)
    paragraphs = (lead, *(["What the telemetry says of itself:"] if remarks else []))
    return Section(
        key="evidence", title=title, paragraphs=paragraphs, tables=(table,), bullets=remarks
    )


def _remarks(dossier: Dossier) -> tuple[str, ...]:
    """What the recorder left out or lost by its own account, and what a log's reader had to assume."""
    result: list[str] = []
    for note in json.loads(dossier.facts.get("telemetry_notes", "[]")):
        result.append(words.plain(note))
    return tuple(result)


def _gap(artifact: Artifact) -> str:
    """Say what is wrong with an item; empty when nothing is."""
    if artifact.kept == "missing":
        return artifact.note or "missing"
    if artifact.expected and artifact.digest and artifact.expected != artifact.digest:
        return f"differs: expected {artifact.expected}"
    if artifact.digest:
        return ""
    return "not hashed yet"


def _artifact(artifact: Artifact) -> Row:
    gap = _gap(artifact)
    note = " · ".join(dict.fromkeys(part for part in (gap, artifact.note) if part))
    if artifact.kept == "missing":
        size = "–"
    else:
        size = words.size(artifact.size_bytes)
    digest = words.plain(artifact.digest) or "–"
    cells = (
        words.plain(artifact.path),
        words.plain(artifact.kind),
        size,
        digest,
        words.plain(artifact.kept),
    )
    tone: Tone = "bad" if gap and gap != "not hashed yet" else "warn" if gap else ""
    return Row(cells=(*cells, words.plain(note)), tone=tone)


def known_good(dossier: Dossier) -> Section:
    """Show the generation that replays start from, and why each newer one was refused."""
    title, anchors = "Known-good selection", dossier.anchors
    if anchors is None or (anchors.known_good is None and not anchors.refused):
        missing = Missing(
            what="No generation was considered.", command=commands.command(dossier, "freeze")
        )
        return Section(key="known-good", title=title, missing=missing)
    columns = (
        Column(title="Generation", style="code"),
        Column(title="Stands as"),
        Column(title="Why"),
    )
    refused = sorted(
        anchors.refused.items(), key=lambda item: (-(words.generation_step(item[0]) or 0), item[0])
    )
    rows = [
        Row(cells=(words.plain(name), "refused", words.plain(why)), tone="muted")
        for name, why in refused
    ]
    rule = "newest generation that is complete, verified, finite, rank-agreed and older than onset"
    if anchors.known_good is not None:
        rows.append(Row(cells=(words.plain(anchors.known_good), "known good", rule), tone="good"))
    if anchors.older_good is not None:
        why = "older state for the state × batch experiment"
        rows.append(Row(cells=(words.plain(anchors.older_good), "older good", why)))
    table = Table(caption="Generations, newest first", columns=columns, rows=tuple(rows))
    missing_good = None
    if anchors.known_good is None:
        missing_good = Missing(
            what="No generation is known good: no replay can start.",
            command=commands.command(dossier, "hash"),
        )
    return Section(key="known-good", title=title, tables=(table,), missing=missing_good)


FINDING_COLUMNS = (
    *(
        Column(title="Finding"),
        Column(title="Outcome", style="badge"),
        Column(title="Where", style="code"),
    ),
    *(
        Column(title="Expected", style="code"),
        Column(title="Seen", style="code"),
        Column(title="Summary"),
    ),
)


def _finding(finding: Finding) -> Row:
    is_told = finding.magnitude is not None and math.isfinite(finding.magnitude)
    if is_told:
        size = f" (magnitude {words.number(finding.magnitude)})"
    else:
        size = ""
    if finding.judged:
        context = ""
    else:
        context = " — context only, not judged"
    cells = (
        *(words.plain(finding.name), finding.outcome, words.place(finding.where) or "–"),
        *(words.plain(finding.expected) or "–", words.finite(words.plain(finding.seen)) or "–"),
        f"{words.sentence(words.finite(words.plain(finding.summary)))}{size}{context}",
    )
    return Row(cells=cells, tone=FINDING_TONES[finding.outcome] if finding.judged else "muted")


def agreement(dossier: Dossier) -> Section:
    """Whether ranks agree, and the first link of the chain that anything objected to."""
    title = "Rank agreement and first difference"
    ranks = tuple(f for f in dossier.findings if "rank" in f.name)
    if not dossier.findings:
        missing = Missing(
            what="Ranks have not been compared.", command=commands.command(dossier, "check")
        )
        return Section(key="agreement", title=title, missing=missing)
    first = _first_difference(dossier.findings)
    if first is None:
        lead = "No judged finding differs: there is no first difference."
    else:
        found = f"{first.outcome}, found by {words.plain(first.name)}"
        lead = f"First difference: {words.place(first.where)} ({found})."
    tables: tuple[Table, ...] = ()
    lacking = None
    if ranks:
        rows = tuple(_finding(item) for item in ranks)
        tables = (Table(caption="Findings about ranks", columns=FINDING_COLUMNS, rows=rows),)
    else:
        lacking = Missing(
            what="No finding compares ranks.", command=commands.command(dossier, "check")
        )
    return Section(key="agreement", title=title, paragraphs=(lead,), tables=tables, missing=lacking)


def _first_difference(findings: tuple[Finding, ...]) -> Finding | None:
    adverse = []
    for index, f in enumerate(findings):
        if f.judged and f.outcome in ("differs", "nonfinite") and f.where.step is not None:
            adverse.append(
                (f.where.step, position(f.where.stage or ""), f.where.rank or 0, index, f)
            )
    if adverse:
        return min(adverse, key=lambda item: item[:4])[4]
    return None


def findings(dossier: Dossier) -> Section:
    """Every finding.

    What objects first, then what could not be tested, then what agrees, then context.
    """
    title = "Findings"
    if not dossier.findings:
        missing = Missing(what="No check has been run.", command=commands.command(dossier, "check"))
        return Section(key="findings", title=title, missing=missing)
    order = {"differs": 0, "nonfinite": 0, "not testable": 1, "agrees": 2}
    ranked = sorted(dossier.findings, key=lambda f: (not f.judged, order[f.outcome]))
    tables = tuple(
        Table(
            caption=caption,
            columns=FINDING_COLUMNS,
            rows=tuple(_finding(f) for f in ranked if f.source == source),
        )
        for source, caption in (
            ("check", "Checks: no step executed"),
            ("experiment", "Experiments: steps executed"),
        )
        if any(f.source == source for f in ranked)
    )
    return Section(key="findings", title=title, tables=tables)


def experiments(dossier: Dossier) -> Section:
    """Every trial: where it started, which factors it changed, what it cost and what it showed."""
    title = "Experiments"
    if not dossier.trials:
        cannot = dossier.facts.get(HARNESS) == ""
        if cannot:
            why = "the run names no harness"
        else:
            why = "only checks speak"
        command = commands.command(dossier, "bisect" if cannot else "replay")
        missing = Missing(what=f"No step has been executed: {why}.", command=command)
        return Section(key="experiments", title=title, missing=missing)
    columns = (
        *(
            Column(title="Trial", style="code"),
            Column(title="Purpose"),
            Column(title="Start", style="code"),
        ),
        *(Column(title="Factors that differ"), Column(title="Steps", style="number")),
        *(Column(title="Executed", style="number"), Column(title="Took", style="number")),
        *(Column(title="State", style="badge"), Column(title="Result")),
    )
    rows = tuple(_trial(row, dossier.findings) for row in dossier.trials)
    executed = words.count(sum(row.num_steps_executed for row in dossier.trials), "step")
    lead = (
        f"{words.count(len(rows), 'trial')}, {executed} executed; trial 0, production itself, "
        "is not listed."
    )
    table = Table(caption="Trials", columns=columns, rows=rows)
    return Section(key="experiments", title=title, paragraphs=(lead,), tables=(table,))


def _trial(row: TrialRow, all_findings: tuple[Finding, ...]) -> Row:
    changed = []
    for name, value in sorted(row.factors.items()):
        if name != "state" and DEPLOYED.get(name) != value:
            changed.append(f"{name} = {words.plain(value)}")
    told = [f"{words.plain(f.name)}: {f.outcome}" for f in all_findings if row.key in f.trials]
    result = " · ".join(part for part in (words.plain(row.summary), *told) if part)
    if row.last_step != row.first_step:
        steps = f"{row.first_step}–{row.last_step}"
    else:
        steps = str(row.first_step)
    purpose = (
        f"{words.plain(row.purpose)} ({row.kind}{f', repeat {row.repeat}' if row.repeat else ''})"
    )
    cells = (
        *(words.plain(row.key)[:16], purpose, words.plain(row.factors.get("state", "–"))),
        *(", ".join(changed) or "none: production's own", steps, str(row.num_steps_executed)),
        *(words.seconds(row.wall_s), row.state, result or "–"),
    )
    return Row(cells=cells, tone="" if row.state == "done" else "warn")


def causes(dossier: Dossier) -> Section:
    """How every cause stands: for, against, untested."""
    title = "Causes"
    if dossier.verdict is None or not dossier.verdict.causes:
        missing = Missing(
            what="No cause has been weighed: all are untested.",
            command=commands.command(dossier, "bisect"),
        )
        return Section(key="causes", title=title, missing=missing)
    columns = (
        *(
            Column(title="Cause"),
            Column(title="Class"),
            Column(title="Status", style="badge"),
            Column(title="For"),
        ),
        *(Column(title="Against"), Column(title="Unexplained"), Column(title="Untested")),
    )
    order = {"decided": 0, "open": 1, "contradicted": 2}
    ranked = sorted(dossier.verdict.causes, key=lambda c: (order[c.status], len(c.unexplained)))
    table = Table(
        caption="Causes, best supported first",
        columns=columns,
        rows=tuple(_cause(c) for c in ranked),
    )
    return Section(key="causes", title=title, tables=(table,))


def _cause(cause: CauseView) -> Row:
    lists = (cause.supporting, cause.contradicting, cause.unexplained, cause.untested)
    told = tuple(", ".join(words.plain(name) for name in names) or "–" for names in lists)
    cells = (
        words.plain(cause.name),
        words.plain(cause.cause_class),
        CAUSE_WORDS[cause.status],
        *told,
    )
    return Row(cells=cells, tone=CAUSE_TONES[cause.status])


def argument(dossier: Dossier) -> Section:
    """Why the verdict may be said, the repair, and how far it is proven."""
    title, verdict = "Causal argument and repair", dossier.verdict
    if verdict is None:
        missing = Missing(
            what="There is no verdict to argue for.", command=commands.command(dossier, "bisect")
        )
        return Section(key="argument", title=title, missing=missing)
    gate = [f for f in dossier.findings if f.name.startswith("gate")]
    if gate:
        grade = "; ".join(
            f"{words.plain(f.name)}: {f.outcome}, {words.plain(f.summary)}" for f in gate
        )
    elif verdict.repair:
        grade = (
            "not proven: no gate was run with and without the repair, so it counts as "
            "correlated only"
        )
    else:
        grade = "not applicable: no repair is named"
    rows = (
        Row(cells=("Argument", words.plain(verdict.explanation, limit=4000) or "none recorded")),
        Row(cells=("Repair", words.plain(verdict.repair) or "none named")),
        Row(cells=("Repair proven by the gate", grade)),
        Row(
            cells=(
                "What would overturn it",
                words.plain(verdict.next_experiment or "") or "no open experiment",
            )
        ),
    )
    table = Table(
        caption="Argument", columns=(Column(title="Point"), Column(title="Record")), rows=rows
    )
    return Section(key="argument", title=title, tables=(table,))


def untested(dossier: Dossier) -> Section:
    """Everything that nobody has looked at: the residual risk."""
    title = "Not tested and residual risk"
    if dossier.verdict is None:
        missing = Missing(
            what="Nothing has been weighed.", command=commands.command(dossier, "bisect")
        )
        return Section(key="untested", title=title, missing=missing)
    blind = tuple(
        f"{words.plain(f.name)}: not testable, {words.plain(f.summary)}"
        for f in dossier.findings
        if f.outcome == "not testable"
    )
    bullets = (*(words.plain(item) for item in dossier.verdict.not_tested), *blind)
    lead = "Absence from this list is no proof: only what a finding names was looked at."
    if bullets:
        return Section(key="untested", title=title, paragraphs=(lead,), bullets=bullets)
    return Section(
        key="untested", title=title, paragraphs=("The verdict names nothing as untested.", lead)
    )


def appendix(dossier: Dossier) -> Section:
    """Everything that it takes to repeat this.

    Versions, facts, and the head of the journal's chain.
    """
    rows = commands.told(dossier.journal)
    facts = []
    for key, value in sorted(dossier.facts.items()):
        facts.append(Row(cells=(words.plain(key), words.plain(value))))
    if rows:
        versions = ", ".join(dict.fromkeys(words.plain(row.version) for row in rows))
        facts.insert(0, Row(cells=("spiketriage version", versions)))
        facts.insert(1, Row(cells=("journal rows shown", str(len(rows)))))
        facts.insert(
            2,
            Row(
                cells=(
                    "journal chain head (SHA-256)",
                    words.plain(commands.chain_head(dossier.journal)),
                )
            ),
        )
    lead = (
        "Commands that only look (report, status, sql, verify) are in the journal but not in "
        "this report."
    )
    lacking = None
    if not dossier.facts:
        lacking = Missing(
            what="No facts about the run are recorded.", command=commands.command(dossier, "freeze")
        )
    columns = (Column(title="Fact"), Column(title="Value", style="code"))
    tables = (Table(caption="Facts", columns=columns, rows=tuple(facts)),) if facts else ()
    return Section(
        key="appendix",
        title="Reproduction appendix",
        paragraphs=(lead,),
        tables=tables,
        missing=lacking,
    )
