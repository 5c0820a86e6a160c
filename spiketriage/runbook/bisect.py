"""`spiketriage bisect`: weigh every finding against every cause, and name the next experiment.

It never executes a step, and never names a cause while one of its deciding cells is untested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import dropwhile
from pathlib import Path
from typing import Any

from spiketriage.diagnosis.causes import CAUSES
from spiketriage.diagnosis.experiments import EXPERIMENTS
from spiketriage.diagnosis.judge import explanations, is_against, judge
from spiketriage.diagnosis.plan import Proposal
from spiketriage.diagnosis.replaying import EMITS as REPLAY_EMITS
from spiketriage.diagnosis.role import AGAINST_THE_RUN
from spiketriage.diagnosis.setting import STEPS_AFTER
from spiketriage.errors import Exit
from spiketriage.evidence.hash_findings import EMITS as HASH_EMITS
from spiketriage.incident.next_step import REPORT, after_bisect
from spiketriage.nouns.incident import (
    CauseView,
    Dossier,
    Finding,
    StepPoint,
    StepResult,
    Verdict,
    Where,
)
from spiketriage.nouns.listing import listed
from spiketriage.runbook import episode
from spiketriage.runbook.outlook import Outlook, Typed, recorded_outlook

INCONCLUSIVE = ("undetermined", "unresolved")
NUM_NAMED = 4


def run(
    run_folder: Path, *, incidents: Path | None, incident: str | None, argv: Sequence[str]
) -> StepResult:
    """The verdict on what is known now.

    Raises:
        RefusedError: nothing is frozen.
    """
    outlook = _outlook(Typed(run_folder=run_folder, incidents=incidents, incident=incident))
    case, proposal = outlook.case(), outlook.proposal()
    summaries = {finding.name: finding.summary for finding in outlook.dossier.findings}
    verdict = judge(CAUSES, case)
    if verdict.kind == "established":
        proposal = None
    proposed = proposal.experiments if proposal is not None else ()
    words = after_bisect(proposed, unasked=_unasked_step(verdict, outlook))
    following = outlook.command(*words)
    if words != REPORT:
        verdict = replace(verdict, next_experiment=following)
    with outlook.incident.session(argv) as session:
        outlook.keep_plan(session)
        session.verdict(verdict)
        session.exit_code = Exit.INCONCLUSIVE if verdict.kind in INCONCLUSIVE else Exit.DONE
    later = later_anomalies(outlook)
    return StepResult(
        incident=outlook.incident.id,
        exit_code=session.exit_code,
        verdict=verdict.kind,
        lines=(*tell(verdict, summaries), *_remarks(outlook, later, proposal)),
        data={
            **verdict_data(verdict),
            "later": later,
            "next_experiments": list(proposed),
        },
        next_commands=(following,),
    )


def _outlook(typed: Typed) -> Outlook:
    """What an earlier step recorded; only where none did is the evidence read."""
    outlook = recorded_outlook(typed)
    if outlook is not None:
        return outlook
    # Entering every reader costs more than the verdict itself.
    from spiketriage.runbook.bench import open_outlook  # noqa: PLC0415

    return open_outlook(typed)


def _remarks(outlook: Outlook, later: Sequence[int], proposal: Proposal | None) -> list[str]:
    """What the verdict leaves open, and why the next experiment is the next."""
    remarks: list[str] = []
    if later:
        remarks.append(
            f"later: {_steps(later)}, where something differs too, is not explained here"
        )
    if outlook.plan.setting.unreplayable:
        remarks.append(f"not replayed: {outlook.plan.setting.unreplayable}")
    if proposal is not None:
        remarks.append(f"why next: {proposal.why} ({proposal.num_steps} steps)")
    return remarks


def _steps(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"steps {listed([str(step) for step in steps], most=NUM_NAMED)}"


def _unasked_step(verdict: Verdict, outlook: Outlook) -> str:
    """`hash` or `check`, when a suspect's deciding cell is one that nobody asked for yet."""
    unasked: set[str] = set()
    for view in verdict.causes:
        if view.name in verdict.candidates:
            unasked.update(view.untested)
    for finding in outlook.dossier.findings:
        if finding.judged:
            unasked.discard(finding.name)
    # Neither what steps must be executed for nor what a person must find out is a check's to say.
    unasked -= REPLAY_EMITS.keys()
    for experiment in EXPERIMENTS:
        unasked.discard(experiment.name)
    for cause in CAUSES:
        unasked.difference_update(cause.by_hand)
    if not unasked:
        return ""
    if unasked <= HASH_EMITS.keys():
        return "hash"
    return "check"


def later_anomalies(outlook: Outlook) -> list[int]:
    """Steps behind the suspect one at which something spiked or a check found something.

    They come earliest first. An audit, which suspects no step, has none.
    """
    setting = outlook.plan.setting
    if not setting.alarmed:
        return []
    steps = set(_later_alarms(outlook.dossier, setting.suspect))
    for finding in outlook.dossier.findings:
        step = finding.where.step
        if step is not None and step > setting.suspect and _is_anomaly(finding):
            steps.add(step)
    return sorted(steps)


def _later_alarms(dossier: Dossier, suspect: int) -> list[int]:
    """Steps with an alarm behind the replayed window, and behind the suspect's own episode.

    A run that turned NaN stays so, and a jump may stay: that is one anomaly, however long it lasts.
    """
    end = max(suspect + STEPS_AFTER, episode.last_step(dossier.steps, suspect))
    points = [point for point in dossier.steps if point.step >= suspect]
    steps: list[int] = []
    for point in dropwhile(_is_nonfinite, points):
        if point.alarm and point.step > end:
            steps.append(point.step)
    return steps


def _is_anomaly(finding: Finding) -> bool:
    """Whether the finding is an anomaly of its own, not a mark that the spike left behind."""
    return finding.judged and is_against(finding) and finding.role != AGAINST_THE_RUN


def _is_nonfinite(point: StepPoint) -> bool:
    return not (math.isfinite(point.loss) and math.isfinite(point.grad_norm))


def verdict_data(verdict: Verdict) -> dict[str, Any]:
    """The verdict as the JSON envelope's `data`."""
    return {
        "cause": verdict.cause,
        "class": verdict.cause_class,
        "where": asdict(verdict.where),
        "candidates": list(verdict.candidates),
        "beside": list(verdict.beside),
        "explanation": verdict.explanation,
        "repair": verdict.repair,
        "not_tested": list(verdict.not_tested),
        "steps_executed": verdict.steps_executed,
        "causes": [asdict(view) for view in verdict.causes],
    }


def tell(verdict: Verdict, summaries: Mapping[str, str]) -> list[str]:
    """The verdict for people: what, where, beside it, for, against, untested.

    `summaries` are those of all findings by name.
    """
    named = ""
    if verdict.cause is not None:
        named = f": {verdict.cause} ({verdict.cause_class})"
    lines = [f"verdict: {verdict.kind}{named}", f"  {verdict.explanation}"]
    place = where_text(verdict.where)
    if place:
        lines.append(f"where: {place}")
    if verdict.repair:
        lines.append(f"repair: {verdict.repair}")
    lines += [f"beside it: {name}: {summaries[name]}" for name in verdict.beside]
    for view in explanations(verdict.causes):
        lines += _for_and_open(view, summaries)
    for view in verdict.causes:
        if view.status == "contradicted" and view.supporting:
            lines.append(f"ruled out: {view.name}, by {', '.join(view.contradicting[:NUM_NAMED])}")
    if verdict.not_tested:
        label = "not tested"
        if verdict.kind == "established":
            label = "not tested, and not needed for this verdict"
        lines.append(f"{label}: {', '.join(verdict.not_tested)}")
    lines.append(f"{verdict.steps_executed} steps executed")
    return lines


def where_text(where: Where) -> str:
    """`step 171, rank 1, params_before blocks.2.up.weight`."""
    parts: list[str] = []
    if where.step is not None:
        parts.append(f"step {where.step}")
    if where.rank is not None:
        parts.append(f"rank {where.rank}")
    if where.stage or where.key:
        parts.append(" ".join(part for part in (where.stage, where.key) if part))
    parts += [part for part in (where.path, where.field) if part]
    return ", ".join(parts)


def _for_and_open(view: CauseView, summaries: Mapping[str, str]) -> list[str]:
    lines = [f"for {view.name}: {summaries[name]}" for name in view.supporting]
    if view.untested:
        lines.append(f"untested for {view.name}: {', '.join(view.untested)}")
    return lines
