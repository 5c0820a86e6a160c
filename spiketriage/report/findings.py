"""The sections about what was measured: rank agreement, findings, and the trials behind them.

Each takes the dossier alone; none weighs anything anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields

from spiketriage.nouns.incident import HARNESS, Dossier, Finding, TrialRow
from spiketriage.report import words
from spiketriage.report.model import Row, Section, Table, Tone, badge, code, number, text
from spiketriage.report.sections import cell, missing, unfilled
from spiketriage.wire.chain import position
from spiketriage.wire.trial import Factors

FINDING_TONES: dict[str, Tone] = {
    "differs": "bad",
    "nonfinite": "bad",
    "not testable": "warn",
    "agrees": "",
}
FINDING_ORDER = {"differs": 0, "nonfinite": 0, "not testable": 1, "agrees": 2}
FINDING_COLUMNS = (
    text("Finding"),
    badge("Outcome"),
    code("Where"),
    code("Expected"),
    code("Seen"),
    text("Summary"),
)
SOURCES = {
    "check": "Checks: no step executed",
    "experiment": "Experiments: steps executed",
}
# What production itself runs with; a trial's table names only what differs from it.
DEPLOYED = {item.name: str(item.default) for item in fields(Factors) if item.name != "state"}
SHOWN_KEY_CHARS = 16  # of a trial's key, which is a digest: enough to find its folder by
TRIAL_COLUMNS = (
    code("Trial"),
    text("Purpose"),
    code("Start"),
    text("Factors that differ"),
    number("Steps"),
    number("Executed"),
    number("Took"),
    badge("State"),
    text("Result"),
)


def agreement(dossier: Dossier) -> Section:
    """Whether ranks agree, and the first link of the chain that anything objected to."""
    key, title = "agreement", "Rank agreement and first difference"
    if not dossier.findings:
        what = "Ranks have not been compared."
        return unfilled(dossier, key=key, title=title, what=what, step="check")
    lead = "No judged finding differs: there is no first difference."
    first = _first_difference(dossier.findings)
    if first is not None:
        source = f"{first.outcome}, found by {words.plain(first.name)}"
        lead = f"First difference: {words.place(first.where)} ({source})."
    rows = _finding_rows(finding for finding in dossier.findings if "rank" in finding.name)
    if not rows:
        lacking = missing(dossier, "No finding compares ranks.", "check")
        return Section(key=key, title=title, paragraphs=(lead,), missing=lacking)
    table = Table(caption="Findings about ranks", columns=FINDING_COLUMNS, rows=rows)
    return Section(key=key, title=title, paragraphs=(lead,), tables=(table,))


def _first_difference(findings: Iterable[Finding]) -> Finding | None:
    """The judged finding that objects to the earliest link: by step, then stage, then rank."""
    objecting = []
    for finding in findings:
        objects = finding.judged and finding.outcome in ("differs", "nonfinite")
        if objects and finding.where.step is not None:
            objecting.append(finding)
    return min(objecting, key=_link, default=None)


def _link(finding: Finding) -> tuple[int, int, int]:
    where = finding.where
    return where.step or 0, position(where.stage or ""), where.rank or 0


def findings(dossier: Dossier) -> Section:
    """Every finding: what objects, what could not be tested, what agrees, and what is context."""
    key, title = "findings", "Findings"
    if not dossier.findings:
        what = "No check has been run."
        return unfilled(dossier, key=key, title=title, what=what, step="check")
    ranked = sorted(dossier.findings, key=_objections_first)
    tables = []
    for source, caption in SOURCES.items():
        rows = _finding_rows(finding for finding in ranked if finding.source == source)
        if rows:
            tables.append(Table(caption=caption, columns=FINDING_COLUMNS, rows=rows))
    return Section(key=key, title=title, tables=tuple(tables))


def _objections_first(finding: Finding) -> tuple[bool, int]:
    return not finding.judged, FINDING_ORDER[finding.outcome]


def _finding_rows(findings: Iterable[Finding]) -> tuple[Row, ...]:
    return tuple(map(_finding, findings))


def _finding(finding: Finding) -> Row:
    summary = words.sentence(words.finite(words.plain(finding.summary)))
    if finding.magnitude is not None and math.isfinite(finding.magnitude):
        summary += f" (magnitude {words.number(finding.magnitude)})"
    tone = FINDING_TONES[finding.outcome]
    if not finding.judged:
        summary += " — context only, not judged"
        tone = "muted"
    cells = (
        words.plain(finding.name),
        finding.outcome,
        words.place(finding.where) or "–",
        cell(finding.expected),
        words.finite(cell(finding.seen)),
        summary,
    )
    return Row(cells=cells, tone=tone)


def experiments(dossier: Dossier) -> Section:
    """Every trial: where it started, which factors it changed, what it cost and what it showed."""
    key, title = "experiments", "Experiments"
    if not dossier.trials:
        why, step = "only checks speak", "replay"
        if dossier.facts.get(HARNESS) == "":
            why, step = "the run names no harness", "bisect"
        what = f"No step has been executed: {why}."
        return unfilled(dossier, key=key, title=title, what=what, step=step)
    executed = words.count(sum(trial.num_steps_executed for trial in dossier.trials), "step")
    lead = (
        f"{words.count(len(dossier.trials), 'trial')}, {executed} executed; trial 0, production "
        "itself, is not listed."
    )
    rows = tuple(_trial(trial, dossier.findings) for trial in dossier.trials)
    table = Table(caption="Trials", columns=TRIAL_COLUMNS, rows=rows)
    return Section(key=key, title=title, paragraphs=(lead,), tables=(table,))


def _trial(trial: TrialRow, findings: tuple[Finding, ...]) -> Row:
    steps = str(trial.first_step)
    if trial.last_step != trial.first_step:
        steps = f"{trial.first_step}–{trial.last_step}"
    kind = trial.kind
    if trial.repeat:
        kind = f"{kind}, repeat {trial.repeat}"
    cells = (
        words.plain(trial.key)[:SHOWN_KEY_CHARS],
        f"{words.plain(trial.purpose)} ({kind})",
        words.plain(trial.factors.get("state", "–")),
        ", ".join(_changed_factors(trial)) or "none: production's own",
        steps,
        str(trial.num_steps_executed),
        words.seconds(trial.wall_s),
        trial.state,
        " · ".join(_results(trial, findings)) or "–",
    )
    return Row(cells=cells, tone="" if trial.state == "done" else "warn")


def _changed_factors(trial: TrialRow) -> list[str]:
    changed = []
    for name, value in sorted(trial.factors.items()):
        if name != "state" and DEPLOYED.get(name) != value:
            changed.append(f"{name} = {words.plain(value)}")
    return changed


def _results(trial: TrialRow, findings: Iterable[Finding]) -> list[str]:
    """The trial's own summary, and the outcomes of the findings that rest on it."""
    results = []
    summary = words.plain(trial.summary)
    if summary:
        results.append(summary)
    for finding in findings:
        if trial.key in finding.trials:
            results.append(f"{words.plain(finding.name)}: {finding.outcome}")
    return results
