"""The sections that tell what happened: impact, detection, timeline, and prompts for people.

Hosts and commands are named, people never are; nothing here is invented when the incident does not
hold it.
"""

from __future__ import annotations

from collections.abc import Sequence

from spiketriage.incident.progress import verb
from spiketriage.nouns.incident import Dossier, JournalRow, StepPoint
from spiketriage.report import commands, words
from spiketriage.report.model import Column, Missing, Row, Section, Table

MAX_ALARMS = 40
PROMPTS = (
    "What went well?",
    "What went poorly?",
    "Where were we lucky?",
    "Action: verb, owner, due date, and how we know that it is done.",
)


def impact(dossier: Dossier) -> Section:
    """Cost of the incident, as far as the record knows."""
    if not dossier.steps:
        missing = Missing(
            what="No production steps are kept, so no cost can be counted.",
            command=commands.command(dossier, "freeze"),
        )
        return Section(key="impact", title="Impact", missing=missing)
    rows = [Row(cells=("Steps recorded", _span(dossier)))]
    if dossier.anchors:
        suspect = dossier.anchors.suspect
    else:
        suspect = None
    if dossier.anchors:
        good = words.generation_step(dossier.anchors.known_good)
    else:
        good = None
    last = max(point.step for point in dossier.steps)
    if suspect is not None:
        rows.append(
            Row(
                cells=(
                    "Steps from the suspect step to the last one",
                    str(max(0, last - suspect + 1)),
                )
            )
        )
    if good is not None:
        rows.append(Row(cells=("Steps lost by going back to known good", str(max(0, last - good)))))
    executed = sum(row.num_steps_executed for row in dossier.trials)
    wall_s = sum(row.wall_s for row in dossier.trials)
    rows.append(Row(cells=("Steps executed to diagnose", f"{executed} in {words.seconds(wall_s)}")))
    columns = (Column(title="What"), Column(title="How much", style="number"))
    return Section(
        key="impact",
        title="Impact",
        paragraphs=(
            "Money, GPU-hours and held-out change are not in the record; add them by hand.",
        ),
        tables=(Table(caption="Cost of the incident", columns=columns, rows=tuple(rows)),),
    )


def _span(dossier: Dossier) -> str:
    steps = sorted({point.step for point in dossier.steps})
    return f"{len(steps)} ({steps[0]}–{steps[-1]})"


def detection(dossier: Dossier) -> Section:
    """Which trigger fired, and where each anchor stands."""
    anchors = dossier.anchors
    if anchors is None:
        missing = Missing(
            what="No anchors are recorded.", command=commands.command(dossier, "freeze")
        )
        return Section(key="detection", title="Detection", missing=missing)
    alarms = [point for point in dossier.steps if point.alarm]
    facts = (
        Row(cells=("Onset: first step with any anomaly", _step(anchors.onset))),
        Row(cells=("Suspect: the step that experiments use", _step(anchors.suspect))),
        Row(cells=("Why", words.plain(anchors.reason) or "not recorded")),
    )
    tables = [
        Table(
            caption="Anchors", columns=(Column(title="Anchor"), Column(title="Value")), rows=facts
        )
    ]
    if alarms:
        columns = (
            Column(title="Step", style="number"),
            Column(title="Attempt", style="number"),
            Column(title="Alarm"),
        )
        spans = _spans(alarms)
        rows = tuple(_alarm(span) for span in spans[:MAX_ALARMS])
        if len(spans) <= MAX_ALARMS:
            more = ""
        else:
            more = f", first {MAX_ALARMS} of {len(spans)}"
        tables.append(
            Table(caption=f"Alarms raised on the recorded steps{more}", columns=columns, rows=rows)
        )
        return Section(key="detection", title="Detection", tables=tuple(tables))
    quiet = f"No alarm was raised on {words.count(len(dossier.steps), 'recorded point')}."
    return Section(key="detection", title="Detection", paragraphs=(quiet,), tables=tuple(tables))


def _spans(alarms: Sequence[StepPoint]) -> list[list[StepPoint]]:
    """Alarms of neighbouring steps that say the same, together."""
    spans: list[list[StepPoint]] = []
    for point in alarms:
        last = spans[-1][-1] if spans else None
        if last is not None and (last.attempt, last.step + 1, _said(last)) == (
            point.attempt,
            point.step,
            _said(point),
        ):
            spans[-1].append(point)
        else:
            spans.append([point])
    return spans


def _said(point: StepPoint) -> str:
    return words.without_step(point.alarm, point.step)


def _alarm(span: Sequence[StepPoint]) -> Row:
    first, last = span[0], span[-1]
    if len(span) == 1:
        steps = str(first.step)
    else:
        steps = f"{first.step}–{last.step}"
    if len(span) == 1:
        text = first.alarm
    else:
        text = f"steps {steps}: {_said(first)}"
    return Row(cells=(steps, str(first.attempt), words.plain(text)), tone="warn")


def _step(step: int | None) -> str:
    if step is None:
        return "none"
    return f"step {step}"


def timeline(dossier: Dossier) -> Section:
    """Commands that were run, oldest first, without those that only look."""
    rows = commands.told(dossier.journal)
    if not rows:
        missing = Missing(
            what="The journal holds no command yet.", command=commands.command(dossier, "freeze")
        )
        return Section(key="timeline", title="Timeline", missing=missing)
    columns = (
        *(
            Column(title="Row", style="number"),
            Column(title="When (UTC)", style="code"),
            Column(title="Host"),
        ),
        *(
            Column(title="Command", style="code"),
            Column(title="Outcome"),
            Column(title="Exit", style="number"),
        ),
        Column(title="Took", style="number"),
    )
    table = Table(
        caption="Commands on this incident",
        columns=columns,
        rows=tuple(_moment(row) for row in rows),
    )
    return Section(key="timeline", title="Timeline", tables=(table,))


def _moment(row: JournalRow) -> Row:
    cells = (
        *(str(row.number), words.plain(row.at), words.plain(row.host), words.plain(row.argv)),
        *(words.plain(row.outcome), str(row.exit_code), words.seconds(row.duration_s)),
    )
    return Row(cells=cells, tone="" if row.exit_code in (0, 1) else "warn")


def lessons(dossier: Dossier) -> Section:
    """Prompts for people: the record cannot answer them."""
    notes = tuple(
        words.plain(row.argv) for row in commands.told(dossier.journal) if verb(row.argv) == "note"
    )
    lead = (
        "This file is generated anew by every report: write lessons and actions into "
        "notes.md beside it, "
        "which no command touches."
    )
    return Section(
        key="lessons",
        title="Lessons and actions",
        paragraphs=(lead,),
        bullets=(*notes, *PROMPTS),
        missing=None if notes else Missing(what="No notes are recorded.", command=""),
    )
