"""`spiketriage bisect`.

Weigh every finding against every cause, say what may be said, and name the next experiment.

It never executes a step and never names a cause while one of its deciding cells is untested.
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
from spiketriage.diagnosis.judge import Case, explanations, is_against, judge
from spiketriage.diagnosis.replaying import EMITS as REPLAYING
from spiketriage.diagnosis.role import AGAINST_THE_RUN
from spiketriage.diagnosis.setting import STEPS_AFTER
from spiketriage.evidence import hash_findings
from spiketriage.nouns.incident import CauseView, StepPoint, StepResult, Verdict, Where
from spiketriage.runbook.bench import Bench, next_command, open_bench

INCONCLUSIVE = ("undetermined", "unresolved")
NUM_NAMED = 4


def run(
    run_folder: Path, *, incidents: Path | None, incident: str | None, argv: Sequence[str]
) -> StepResult:
    """The verdict on what is known now.

    Raises:
        RefusedError: nothing is frozen.
    """
    bench = open_bench(run_folder, incidents, incident)
    case, proposal = bench.case(), bench.proposal()
    summaries = {finding.name: finding.summary for finding in bench.dossier.findings}
    verdict = judge(CAUSES, case)
    settled = verdict.kind == "established" or proposal is None
    following = _missing_step(verdict, case, bench) or next_command(
        None if settled else proposal, bench
    )
    verdict = replace(verdict, next_experiment=None if settled else following)
    with bench.incident.session(argv) as session:
        session.verdict(verdict)
        session.exit_code = 5 if verdict.kind in INCONCLUSIVE else 0
    later = later_anomalies(bench)
    if later:
        told = [f"later: {_steps(later)}, where something differs too, is not explained here"]
    else:
        told = []
    if bench.setting.unreplayable:
        told.append(f"not replayed: {bench.setting.unreplayable}")
    if settled or proposal is None:
        why = []
    else:
        why = [f"why next: {proposal.why} ({proposal.num_steps} steps)"]
    return StepResult(
        incident=bench.incident.id,
        exit_code=session.exit_code,
        verdict=verdict.kind,
        lines=(*tell(verdict, summaries), *told, *why),
        data={
            **verdict_data(verdict),
            "later": later,
            "next_experiments": [] if settled or proposal is None else proposal.experiments,
        },
        next_commands=(following,),
    )


def _steps(steps: Sequence[int]) -> str:
    shown = ", ".join(str(step) for step in steps[:NUM_NAMED])
    if len(steps) > NUM_NAMED:
        more = f" and {len(steps) - NUM_NAMED} more"
    else:
        more = ""
    if len(steps) == 1:
        return f"step {shown}"
    return f"steps {shown}{more}"


def _missing_step(verdict: Verdict, case: Case, bench: Bench) -> str:
    """`hash` or `check`, when a suspect's deciding cell is one that nobody asked for yet."""
    by_steps = {*REPLAYING, *(experiment.NAME for experiment in EXPERIMENTS)}
    by_hand = {name for cause in CAUSES for name in cause.by_hand}
    unasked: set[str] = set()
    for view in verdict.causes:
        if view.name in verdict.candidates:
            unasked.update(view.untested)
    unasked -= {*case.findings, *by_steps, *by_hand}
    if not unasked:
        return ""
    if unasked <= hash_findings.EMITS.keys():
        return bench.command("hash")
    return bench.command("check")


def later_anomalies(bench: Bench) -> list[int]:
    """Steps behind the replayed window at which something spiked or a check found something, earliest first."""
    if not bench.setting.alarmed:
        return []
    suspect = bench.setting.suspect
    # A run that turned NaN stays so: that is one anomaly, however many steps it lasts.
    after = dropwhile(
        _is_nonfinite, (point for point in bench.dossier.steps if point.step >= suspect)
    )
    alarms = {point.step for point in after if point.alarm and point.step > suspect + STEPS_AFTER}
    against = [
        f
        for f in bench.dossier.findings
        if f.judged and is_against(f) and f.role != AGAINST_THE_RUN  # what a spike leaves behind
    ]
    return sorted(
        alarms
        | {f.where.step for f in against if f.where.step is not None and f.where.step > suspect}
    )


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
    head = f"verdict: {verdict.kind}" + (
        f": {verdict.cause} ({verdict.cause_class})" if verdict.cause else ""
    )
    lines = [head, f"  {verdict.explanation}"]
    place_text = where_text(verdict.where)
    if place_text:
        lines.append(f"where: {place_text}")
    if verdict.repair:
        lines.append(f"repair: {verdict.repair}")
    lines += [f"beside it: {name}: {summaries[name]}" for name in verdict.beside]
    for view in explanations(verdict.causes):
        lines += _for_and_open(view, summaries)
    ruled_out = [
        view for view in verdict.causes if view.status == "contradicted" and view.supporting
    ]
    lines += [
        f"ruled out: {view.name}, by {', '.join(view.contradicting[:NUM_NAMED])}"
        for view in ruled_out
    ]
    if verdict.not_tested:
        sure = verdict.kind == "established"
        if sure:
            label = "not tested, and not needed for this verdict"
        else:
            label = "not tested"
        lines.append(f"{label}: {', '.join(verdict.not_tested)}")
    lines.append(f"{verdict.steps_executed} steps executed")
    return lines


def where_text(where: Where) -> str:
    """`step 171, rank 1, params_before blocks.2.up.weight`."""
    parts = [
        f"step {where.step}" if where.step is not None else "",
        f"rank {where.rank}" if where.rank is not None else "",
        " ".join(part for part in (where.stage, where.key) if part),
        where.path or "",
        where.field or "",
    ]
    return ", ".join(part for part in parts if part)


def _for_and_open(view: CauseView, summaries: Mapping[str, str]) -> list[str]:
    lines = [f"for {view.name}: {summaries[name]}" for name in view.supporting]
    if view.untested:
        lines.append(f"untested for {view.name}: {', '.join(view.untested)}")
    return lines
