"""The sections that tell what happened: impact, detection, timeline, and prompts for people.

Hosts and commands are named, people never are; nothing here is invented when the incident does not
hold it.
"""

from __future__ import annotations

from collections.abc import Sequence

from spiketriage.errors import Exit
from spiketriage.nouns.incident import JUDGED, Anchors, Dossier, JournalRow, StepPoint
from spiketriage.report import commands, words
from spiketriage.report.model import Row, Section, Table, code, number, text
from spiketriage.report.sections import cell, known_good_step, suspect_step, unfilled

MAX_ALARMS = 40
PROMPTS = (
    "What went well?",
    "What went poorly?",
    "Where were we lucky?",
    "Action: verb, owner, due date, and how we know that it is done.",
)
ALARM_COLUMNS = (number("Step"), number("Attempt"), text("Alarm"))
TIMELINE_COLUMNS = (
    number("Row"),
    code("When (UTC)"),
    text("Host"),
    code("Command"),
    text("Outcome"),
    number("Exit"),
    number("Took"),
)


def impact(dossier: Dossier) -> Section:
    """Cost of the incident, as far as the record knows."""
    key, title = "impact", "Impact"
    if not dossier.steps:
        what = "No production steps are kept, so no cost can be counted."
        return unfilled(dossier, key=key, title=title, what=what, step="freeze")
    lead = "Money, GPU-hours and held-out change are not in the record; add them by hand."
    table = Table(
        caption="Cost of the incident",
        columns=(text("What"), number("How much")),
        rows=tuple(_costs(dossier)),
    )
    return Section(key=key, title=title, paragraphs=(lead,), tables=(table,))


def _costs(dossier: Dossier) -> list[Row]:
    steps = sorted({point.step for point in dossier.steps})
    first, last = steps[0], steps[-1]
    rows = [Row(cells=("Steps recorded", f"{len(steps)} ({first}–{last})"))]
    suspect, good = suspect_step(dossier), known_good_step(dossier)
    if suspect is not None:
        num_steps = str(max(0, last - suspect + 1))
        rows.append(Row(cells=("Steps from the suspect step to the last one", num_steps)))
    if good is not None:
        num_steps = str(max(0, last - good))
        rows.append(Row(cells=("Steps lost by going back to known good", num_steps)))
    executed = sum(trial.num_steps_executed for trial in dossier.trials)
    took = words.seconds(sum(trial.wall_s for trial in dossier.trials))
    rows.append(Row(cells=("Steps executed to diagnose", f"{executed} in {took}")))
    return rows


def detection(dossier: Dossier) -> Section:
    """Which trigger fired, and where each anchor stands."""
    key, title, anchors = "detection", "Detection", dossier.anchors
    if anchors is None:
        what = "No anchors are recorded."
        return unfilled(dossier, key=key, title=title, what=what, step="freeze")
    alarms = [point for point in dossier.steps if point.alarm]
    judged = _judged(dossier)
    if not alarms:
        quiet = f"No alarm was raised on {words.count(len(dossier.steps), 'recorded point')}."
        return Section(
            key=key, title=title, paragraphs=(quiet, *judged), tables=(_anchors(anchors),)
        )
    tables = (_anchors(anchors), _alarms(alarms))
    return Section(key=key, title=title, paragraphs=judged, tables=tables)


def _judged(dossier: Dossier) -> tuple[str, ...]:
    """What the onset rests on: the signals that were looked at, with their rows and rules."""
    if not dossier.facts.get(JUDGED):
        return ()
    return (f"Judged: {dossier.facts[JUDGED]}.",)


def _anchors(anchors: Anchors) -> Table:
    rows = (
        Row(cells=("Onset: first step with any anomaly", _step(anchors.onset))),
        Row(cells=("Suspect: the step that experiments use", _step(anchors.suspect))),
        Row(cells=("Why", cell(anchors.reason, "not recorded"))),
    )
    return Table(caption="Anchors", columns=(text("Anchor"), text("Value")), rows=rows)


def _step(step: int | None) -> str:
    if step is None:
        return "none"
    return f"step {step}"


def _alarms(alarms: Sequence[StepPoint]) -> Table:
    spans = _spans(alarms)
    caption = "Alarms raised on the recorded steps"
    if len(spans) > MAX_ALARMS:
        caption = f"{caption}, first {MAX_ALARMS} of {len(spans)}"
    rows = tuple(map(_alarm, spans[:MAX_ALARMS]))
    return Table(caption=caption, columns=ALARM_COLUMNS, rows=rows)


def _spans(alarms: Sequence[StepPoint]) -> list[list[StepPoint]]:
    """Alarms of neighbouring steps that say the same, together."""
    spans: list[list[StepPoint]] = []
    for point in alarms:
        if spans and _continues(spans[-1][-1], point):
            spans[-1].append(point)
        else:
            spans.append([point])
    return spans


def _continues(before: StepPoint, after: StepPoint) -> bool:
    is_next = before.attempt == after.attempt and before.step + 1 == after.step
    return is_next and _message(before) == _message(after)


def _message(point: StepPoint) -> str:
    return words.without_step(point.alarm, point.step)


def _alarm(span: Sequence[StepPoint]) -> Row:
    first, last = span[0], span[-1]
    steps, alarm = str(first.step), first.alarm
    if len(span) > 1:
        steps = f"{first.step}–{last.step}"
        alarm = f"steps {steps}: {_message(first)}"
    return Row(cells=(steps, str(first.attempt), words.plain(alarm)), tone="warn")


def timeline(dossier: Dossier) -> Section:
    """Commands that were run, oldest first, without those that only look."""
    key, title = "timeline", "Timeline"
    journal = commands.told(dossier.journal)
    if not journal:
        what = "The journal holds no command yet."
        return unfilled(dossier, key=key, title=title, what=what, step="freeze")
    table = Table(
        caption="Commands on this incident",
        columns=TIMELINE_COLUMNS,
        rows=tuple(map(_command, journal)),
    )
    return Section(key=key, title=title, tables=(table,))


def _command(row: JournalRow) -> Row:
    cells = (
        str(row.number),
        words.plain(row.at),
        words.plain(row.host),
        words.plain(row.argv),
        words.plain(row.outcome),
        str(row.exit_code),
        words.seconds(row.duration_s),
    )
    return Row(cells=cells, tone="" if row.exit_code in (Exit.DONE, Exit.AGAINST) else "warn")


def lessons(dossier: Dossier) -> Section:
    """Prompts for people: the record of an incident, whatever it holds, cannot answer them."""
    lead = (
        "This file is generated anew by every report: write lessons and actions into notes.md "
        "beside it, which no command touches."
    )
    return Section(key="lessons", title="Lessons and actions", paragraphs=(lead,), bullets=PROMPTS)
