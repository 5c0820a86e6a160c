"""`spiketriage check`.

Every assertion that needs no step execution, over the whole recorded history.

It never executes a step or imports torch, and never lets one malformed input cost the other checks'
findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from spiketriage.diagnosis.anchors import select_anchors
from spiketriage.diagnosis.checks import CHECKS, Check
from spiketriage.diagnosis.findings import untestable
from spiketriage.diagnosis.role import stamp
from spiketriage.diagnosis.view import View
from spiketriage.errors import Exit, SpiketriageError
from spiketriage.evidence.frozen import load_view
from spiketriage.evidence.onset import NOTHING
from spiketriage.incident import next_step, store
from spiketriage.incident.store import Incident
from spiketriage.nouns.incident import JUDGED, TRIGGER, Anchors, Dossier, Finding, Spike, StepResult
from spiketriage.nouns.listing import counted
from spiketriage.readers.settings import read_settings
from spiketriage.readers.telemetry.run.lineage import Telemetry
from spiketriage.runbook.bench import record_plan

AGAINST = ("differs", "nonfinite")
CONTEXT = "context"
ORDER = {"nonfinite": 0, "differs": 1, CONTEXT: 2, "not testable": 3, "agrees": 4}
# A run that our recorder saw leaves fewer untested; a foreign log leaves nearly all of them.
MANY_SILENT = 15


def run(
    run_folder: Path,
    *,
    incidents: Path | None,
    incident: str | None,
    argv: Sequence[str],
    audit: bool = False,
) -> StepResult:
    """Run every check, keep the findings, and move the anchors to the first anomaly.

    Raises:
        RefusedError: there is no incident.
        EvidenceError: the incident, the run's settings or its telemetry cannot be read.
        BusyError: another command holds the incident.
    """
    place = store.find(run_folder, incidents=incidents, wanted=incident)
    with place.session(argv) as session:
        dossier = place.dossier()
        spike = dossier.spike
        view = _view(place, run_folder, dossier)
        findings = check_all(view)
        anchors = reanchored(view, spike, findings)
        session.findings(findings)
        if anchors != dossier.anchors:
            session.anchors(anchors)
        record_plan(session, place, view)
        session.exit_code = _exit_code(dossier, findings)
    following = next_step.after_check(
        anchors,
        has_steps=bool(view.telemetry.steps),
        has_harness=bool(view.settings.harness),
    )
    return StepResult(
        incident=place.id,
        exit_code=session.exit_code,
        verdict="",
        lines=(
            *_headline(dossier, anchors, audit=audit),
            *_notes(view.telemetry),
            *_judged(dossier.facts),
            *table(findings),
        ),
        data={"findings": [asdict(finding) for finding in findings], "anchors": asdict(anchors)},
        next_commands=(next_step.command(following, run_folder, incidents, incident),),
    )


def check_all(view: View) -> tuple[Finding, ...]:
    """The findings of every check.

    One that meets malformed evidence says so in each finding that it owes.
    """
    result: list[Finding] = []
    for check in CHECKS:
        result.extend(stamp(_guarded(check, view), check.EMITS))
    return tuple(result)


def _guarded(check: Check, view: View) -> tuple[Finding, ...]:
    try:
        return check.run(view)
    except (
        SpiketriageError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        ArithmeticError,
        OSError,
    ) as error:
        reason = f"the evidence is malformed: {type(error).__name__}: {error}"
        return tuple(untestable(name, reason) for name in check.EMITS)


def reanchored(view: View, spike: Spike, findings: Sequence[Finding]) -> Anchors:
    """The anchors after the checks: onset at the first anomaly of any kind, suspect at the spike.

    Without a spike the suspect is the first anomaly. The known-good generation is older than the
    onset.
    """
    steps: dict[str, int] = {}
    for item in findings:
        if item.dates_onset and _is_against(item) and item.where.step is not None:
            steps[item.name] = item.where.step
    onset, reason = spike.onset, "nothing spiked"
    if view.anchors is not None:
        reason = view.anchors.reason
    first = min(steps, key=steps.__getitem__, default=None)
    if first is not None and (spike.onset is None or steps[first] < spike.onset):
        onset = steps[first]
        reason = f"{first} is the first check to find something, at step {onset}"
    suspect = spike.suspect
    if suspect is None:
        suspect = onset
    return select_anchors(view.generations, onset=onset, suspect=suspect, reason=reason)


def table(findings: Sequence[Finding]) -> tuple[str, ...]:
    """One line a finding that needs a reader, the worst first, then how many agree."""
    shown = sorted((item for item in findings if item.outcome != "agrees"), key=_severity)
    silent = [item for item in shown if item.outcome == "not testable"]
    if len(silent) > MANY_SILENT:  # a run without our recorder: one line for what nobody can tell
        shown = [item for item in shown if item not in silent]
    width = max((len(item.name) for item in shown), default=0)
    lines = [f"{_word(item):<13} {item.name:<{width}}  {item.summary}" for item in shown]
    if len(silent) > MANY_SILENT:
        names = ", ".join(item.name for item in silent)
        lines.append(
            f"not testable on this run ({len(silent)} checks; most need the recorder): {names}"
        )
    num_agreeing = sum(item.outcome == "agrees" for item in findings)
    verb = "agree"
    if num_agreeing == 1:
        verb = "agrees"
    return (*lines, f"{counted(num_agreeing, 'check')} {verb}")


def _severity(finding: Finding) -> int:
    return ORDER[_word(finding)]


def _word(finding: Finding) -> str:
    """The outcome for people: what differs and is not judged is context."""
    if finding.outcome in AGAINST and not finding.judged:
        return CONTEXT
    return finding.outcome


def _is_against(finding: Finding) -> bool:
    return finding.judged and finding.outcome in AGAINST


def _exit_code(dossier: Dossier, findings: Sequence[Finding]) -> Exit:
    """Against the run, or nothing against it; undecided where no series of it was judged."""
    if any(_is_against(finding) for finding in findings):
        return Exit.AGAINST
    if dossier.spike.suspect is None and _trigger(dossier) != NOTHING:
        return Exit.INCONCLUSIVE
    return Exit.DONE


def _trigger(dossier: Dossier) -> str:
    """What the scan for spikes came to, which no later check replaces."""
    return dossier.facts.get(TRIGGER, NOTHING)


def _judged(facts: Mapping[str, str]) -> Iterator[str]:
    """Which signals were scanned for spikes, and over how many rows."""
    if facts.get(JUDGED):
        yield f"judged: {facts[JUDGED]}"


def _view(place: Incident, run_folder: Path, dossier: Dossier) -> View:
    """The evidence with the anchors of `freeze`, so that a second `check` finds the same again."""
    view = load_view(place, read_settings(run_folder))
    if view.anchors is None:
        return view
    anchors = replace(
        view.anchors,
        onset=dossier.spike.onset,
        suspect=dossier.spike.suspect,
        reason=_trigger(dossier),
    )
    return replace(view, anchors=anchors)


def _headline(dossier: Dossier, anchors: Anchors, *, audit: bool) -> tuple[str, ...]:
    spike, trigger = dossier.spike, _trigger(dossier)
    if spike.suspect is not None:
        lines = []
    elif trigger == NOTHING:
        lines = ["nothing spiked; this is an audit of the whole history"]
    else:
        lines = [trigger]
    if spike.suspect is None and anchors.suspect is not None:
        lines.append(f"step {anchors.suspect} is the first finding")
    if spike.suspect is not None and audit:
        lines.append(f"audit of the whole history; step {spike.suspect} is the suspect step")
    if anchors.onset is not None and anchors.onset != spike.onset:
        if spike.onset is None:
            before = "none"
        else:
            before = f"step {spike.onset}"
        lines.append(f"onset moved from {before} to step {anchors.onset}: {anchors.reason}")
        lines.append(f"known good: {anchors.known_good or 'none'}")
    return tuple(lines)


def _notes(telemetry: Telemetry) -> Iterator[str]:
    for text in (*telemetry.problems, *telemetry.notes):
        yield f"note: {text}"
    for lost in telemetry.lost:
        yield f"note: rank {lost.rank}: {lost.span} unreadable, not compared"
