"""`spiketriage branch`: change one factor against its control, and prove that it was changed.

It refuses two factors at once, and batch experiments before a replay has reproduced the incident.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from spiketriage.diagnosis.answer import Answer, num_cached, num_steps_executed
from spiketriage.diagnosis.effect import without_effect
from spiketriage.diagnosis.experiment import Arm, Experiment, lint, not_testable, trials_of
from spiketriage.diagnosis.experiments import EXPERIMENTS
from spiketriage.diagnosis.plan import cost
from spiketriage.diagnosis.replaying import REPLAY
from spiketriage.diagnosis.role import stamp
from spiketriage.errors import Exit, RefusedError, UsageError
from spiketriage.evidence.progress import say
from spiketriage.nouns.incident import Finding, StepResult
from spiketriage.runbook.bench import Bench, ask, new_rows, open_bench, require_replayable
from spiketriage.runbook.outlook import Typed

BY_NAME: Mapping[str, Experiment] = {experiment.name: experiment for experiment in EXPERIMENTS}


def run(
    run_folder: Path,
    *,
    incidents: Path | None,
    incident: str | None,
    argv: Sequence[str],
    experiments: tuple[str, ...] = (),
    factors: tuple[str, ...] = (),
    list_only: bool = False,
    trust: bool = False,
) -> StepResult:
    """Run experiments: those named, those of a factor, or the ones that bisect would propose.

    `trust` says that the code of the run may be imported.

    Raises:
        NotTrustedError: the code of the run may not be imported.
        UsageError: no such experiment or factor.
        RefusedError: two factors, or no replay that reproduces the incident.
        TrialError: the workers failed; their log is named.
    """
    typed = Typed(run_folder=run_folder, incidents=incidents, incident=incident, trust=trust)
    bench = open_bench(typed)
    if list_only:
        return _listing(bench)
    require_replayable(bench)
    if not experiments and not factors and bench.proposal() is None:
        return _nothing_left(bench)
    chosen = _chosen(bench, experiments, factors)
    names: list[str] = []
    arms: list[Arm] = []
    for experiment in chosen:
        asked = experiment.arms(bench.setting)
        lint(experiment, asked)
        names.append(experiment.name)
        arms += asked
    say(f"branch: {', '.join(names)}; up to {cost(bench.plan, names)} steps")
    with bench.incident.session(argv) as session:
        bench.keep_plan(session)
        answers = ask(session, bench, trials_of(arms))
        findings = [_read(experiment, bench, answers) for experiment in chosen]
        session.trials(new_rows(answers.values()))
        session.findings(findings)
        session.exit_code = (
            Exit.INCONCLUSIVE if all(f.outcome == "not testable" for f in findings) else Exit.DONE
        )
    num_executed = num_steps_executed(answers.values())
    return StepResult(
        incident=bench.incident.id,
        exit_code=session.exit_code,
        verdict="",
        lines=(
            *_table(findings),
            f"{len(answers)} trials, {num_executed} steps executed, "
            f"{num_cached(answers.values())} cached",
        ),
        data={
            "findings": [asdict(finding) for finding in findings],
            "steps_executed": num_executed,
        },
        next_commands=(bench.command("bisect"),),
    )


def _read(experiment: Experiment, bench: Bench, answers: Mapping[str, Answer]) -> Finding:
    """The experiment's finding, unless its factor is not proven to have changed."""
    reason = without_effect(experiment, bench.setting, answers)
    if reason:
        finding = not_testable(experiment.name, reason)
    else:
        finding = experiment.read(bench.setting, answers)
    (stamped,) = stamp((finding,), experiment.emits)
    return stamped


def _chosen(
    bench: Bench, experiments: tuple[str, ...], factors: tuple[str, ...]
) -> list[Experiment]:
    """The experiments that were asked for, refused where they are not possible or say nothing."""
    if len(factors) > 1:
        raise RefusedError(
            f"two factors in one branch: {', '.join(factors)}; an effect could not be told apart",
            hint="run them as separate branches, one --factor each",
        )
    names = experiments
    if not names and factors:
        names = (_of_factor(bench, factors[0]),)
    elif not names:
        names = _proposed(bench)
    for name in names:
        if name not in BY_NAME:
            raise UsageError(f"no experiment is called {name!r}; known: {', '.join(BY_NAME)}")
    chosen = [BY_NAME[name] for name in names]
    _require_meaning(bench, chosen)
    for name in names:
        if not bench.plan.is_possible(name):
            raise RefusedError(
                f"{name} is not possible here: a state, batch or code that it needs is missing"
            )
    return chosen


def _of_factor(bench: Bench, factor: str) -> str:
    """The first experiment whose variants set `name=value`."""
    name, _, value = factor.partition("=")
    for experiment in EXPERIMENTS:
        if experiment.factor != name:
            continue
        for arm in experiment.arms(bench.setting):
            if getattr(arm.variant.factors, name).split(" ")[0] == value:
                return experiment.name
    known = sorted({experiment.factor for experiment in EXPERIMENTS})
    raise UsageError(
        f"no experiment sets {factor!r}; factors: {', '.join(known)}",
        hint=bench.command("branch", "--list"),
    )


def _proposed(bench: Bench) -> tuple[str, ...]:
    proposal = bench.proposal()
    assert proposal is not None, "branch asks for a proposal only while something is left to try"
    if proposal.experiments == (REPLAY,):
        raise RefusedError("the incident was not replayed yet", hint=bench.command("replay"))
    return proposal.experiments


def _require_meaning(bench: Bench, chosen: Sequence[Experiment]) -> None:
    """Refuse experiments whose answer would say nothing after what the replay showed.

    Raises:
        RefusedError: there was no replay yet, or it speaks against one of the experiments.
    """
    findings = {finding.name: finding for finding in bench.dossier.findings}
    if REPLAY not in findings:
        raise RefusedError("the incident was not replayed yet", hint=bench.command("replay"))
    replay = findings[REPLAY]
    reproduced, spiked = replay.outcome == "agrees", bench.setting.spiked
    pointless: list[str] = []
    for experiment in chosen:
        if not experiment.is_meaningful(reproduced=reproduced, spiked=spiked):
            pointless.append(experiment.name)
    if not pointless:
        return
    if not reproduced:
        raise RefusedError(
            f"the replay does not reproduce production ({replay.summary}), so a branch "
            "would mean nothing",
            hint=bench.command("bisect"),
        )
    raise RefusedError(
        f"{pointless[0]} would mean nothing here: nothing spiked, or production "
        "repeats bit for bit",
        hint=bench.command("branch", "--list"),
    )


def _nothing_left(bench: Bench) -> StepResult:
    verdict = bench.dossier.verdict
    return StepResult(
        incident=bench.incident.id,
        exit_code=Exit.DONE,
        verdict=verdict.kind if verdict else "",
        lines=("no experiment that can be run would change the verdict",),
        data={"findings": [], "steps_executed": 0},
        next_commands=(bench.command("bisect"),),
    )


def _listing(bench: Bench) -> StepResult:
    """Every experiment, what came of it or whether it is open, and what it would cost."""
    outcomes = {finding.name: finding.outcome for finding in bench.dossier.findings}
    width = len(max(BY_NAME, key=len))
    lines: list[str] = []
    data: list[dict[str, object]] = []
    for name, experiment in BY_NAME.items():
        row = bench.plan.experiments[name]
        state = outcomes.get(name, "open" if row.possible else "not possible here")
        lines.append(f"{name:<{width}}  {state:<13}  {row.num_steps:>3} steps  {experiment.about}")
        data.append(
            {
                "name": name,
                "factor": experiment.factor,
                "state": state,
                "num_steps": row.num_steps,
            }
        )
    return StepResult(
        incident=bench.incident.id,
        exit_code=Exit.DONE,
        verdict="listed",
        lines=tuple(lines),
        data={"experiments": data},
        next_commands=(bench.command("branch"),),
    )


def _table(findings: Sequence[Finding]) -> list[str]:
    width = max(len(finding.name) for finding in findings)
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.outcome:<12} {finding.name:<{width}}  {finding.summary}")
    return lines
