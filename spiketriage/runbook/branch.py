"""`spiketriage branch`.

Change one factor at a time against its control, and prove that the change took effect.

It refuses two factors at once, and batch experiments before a replay has reproduced the incident.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.experiment import Experiment, lint, not_testable, without_effect
from spiketriage.diagnosis.experiments import EXPERIMENTS
from spiketriage.diagnosis.launch import execute, unique
from spiketriage.diagnosis.plan import REPLAY, cost, is_meaningful
from spiketriage.diagnosis.role import stamp
from spiketriage.errors import RefusedError, UsageError
from spiketriage.evidence.progress import say
from spiketriage.nouns.incident import Finding, StepResult
from spiketriage.runbook.bench import Bench, new_rows, open_bench, require_replayable


def run(
    run_folder: Path,
    *,
    incidents: Path | None,
    incident: str | None,
    argv: Sequence[str],
    experiments: tuple[str, ...] = (),
    factors: tuple[str, ...] = (),
    list_only: bool = False,
) -> StepResult:
    """Run experiments: those named, those of a factor, or the ones that bisect would propose.

    Raises:
        UsageError: no such experiment or factor. RefusedError: two factors, or no reproducing
        replay.
        TrialError: the workers failed; their log is named.
    """
    bench = open_bench(run_folder, incidents, incident)
    if list_only:
        return _listing(bench)
    require_replayable(bench)
    if not experiments and not factors and bench.proposal() is None:
        return _nothing_left(bench)
    chosen = _chosen(bench, experiments, factors)
    for experiment in chosen:
        lint(experiment, experiment.arms(bench.setting))
    trials = unique(
        t for e in chosen for arm in e.arms(bench.setting) for t in (arm.control, arm.variant)
    )
    say(
        f"branch: {', '.join(experiment.NAME for experiment in chosen)}; up to "
        f"{cost(chosen, bench.setting)} steps"
    )
    with bench.incident.session(argv) as session:
        answers = execute(bench.site, trials)
        findings = [_read(experiment, bench, answers) for experiment in chosen]
        session.trials(new_rows(list(answers.values())))
        session.findings(findings)
        session.exit_code = 5 if all(f.outcome == "not testable" for f in findings) else 0
    executed = sum(
        answer.row.num_steps_executed for answer in answers.values() if not answer.cached
    )
    num_cached = sum(answer.cached for answer in answers.values())
    return StepResult(
        incident=bench.incident.id,
        exit_code=session.exit_code,
        verdict="",
        lines=(
            *_table(findings),
            f"{len(trials)} trials, {executed} steps executed, {num_cached} cached",
        ),
        data={"findings": [asdict(finding) for finding in findings], "steps_executed": executed},
        next_commands=(bench.command("bisect"),),
    )


def _read(experiment: Experiment, bench: Bench, answers: Mapping[str, Answer]) -> Finding:
    """The experiment's finding, unless its factor is not proven to have changed."""
    reason = without_effect(experiment, bench.setting, answers)
    if reason:
        finding = not_testable(experiment.NAME, reason)
    else:
        finding = experiment.read(bench.setting, answers)
    (stamped,) = stamp((finding,), experiment.EMITS)
    return stamped


def _chosen(
    bench: Bench, experiments: tuple[str, ...], factors: tuple[str, ...]
) -> list[Experiment]:
    if len(factors) > 1:
        raise RefusedError(
            f"two factors in one branch: {', '.join(factors)}; an effect could not be told apart",
            hint="run them as separate branches, one --factor each",
        )
    known = {experiment.NAME: experiment for experiment in EXPERIMENTS}
    unknown = [name for name in experiments if name not in known]
    if unknown:
        raise UsageError(f"no experiment is called {unknown[0]!r}; known: {', '.join(known)}")
    names = experiments or (_of_factor(bench, factors[0]) if factors else _proposed(bench))
    chosen = [known[name] for name in names]
    _require_replay(bench, chosen)
    for experiment in chosen:
        if not experiment.arms(bench.setting):
            raise RefusedError(
                f"{experiment.NAME} is not possible here: a state, batch or code that it "
                "needs is missing"
            )
    return chosen


def _of_factor(bench: Bench, factor: str) -> tuple[str, ...]:
    """The experiment whose variants set `name=value`."""
    name, _, value = factor.partition("=")
    found = tuple(
        experiment.NAME
        for experiment in EXPERIMENTS
        if name == experiment.FACTOR
        and any(
            getattr(arm.variant.factors, name).split(" ")[0] == value
            for arm in experiment.arms(bench.setting)
        )
    )
    if not found:
        known = sorted({experiment.FACTOR for experiment in EXPERIMENTS})
        raise UsageError(
            f"no experiment sets {factor!r}; factors: {', '.join(known)}",
            hint=bench.command("branch", "--list"),
        )
    return found[:1]


def _proposed(bench: Bench) -> tuple[str, ...]:
    proposal = bench.proposal()
    assert proposal is not None, "branch asks for a proposal only while something is left to try"
    if proposal.experiments == (REPLAY,):
        raise RefusedError("the incident was not replayed yet", hint=bench.command("replay"))
    return proposal.experiments


def _require_replay(bench: Bench, chosen: Sequence[Experiment]) -> None:
    replay = next((f for f in bench.dossier.findings if f.name == REPLAY), None)
    if replay is None:
        raise RefusedError("the incident was not replayed yet", hint=bench.command("replay"))
    reproduced = replay.outcome == "agrees"
    pointless = []
    for e in chosen:
        if not is_meaningful(e, reproduced=reproduced, spiked=bench.setting.spiked):
            pointless.append(e.NAME)
    if pointless and not reproduced:
        raise RefusedError(
            f"the replay does not reproduce production ({replay.summary}), so a branch "
            "would mean nothing",
            hint=bench.command("bisect"),
        )
    if pointless:
        raise RefusedError(
            f"{pointless[0]} would mean nothing here: nothing spiked, or production "
            "repeats bit for bit",
            hint=bench.command("branch", "--list"),
        )


def _nothing_left(bench: Bench) -> StepResult:
    verdict = bench.dossier.verdict
    return StepResult(
        incident=bench.incident.id,
        exit_code=0,
        verdict=verdict.kind if verdict else "",
        lines=("no experiment that can be run would change the verdict",),
        data={"findings": [], "steps_executed": 0},
        next_commands=(bench.command("bisect"),),
    )


def _listing(bench: Bench) -> StepResult:
    done = {finding.name: finding.outcome for finding in bench.dossier.findings}
    width = max(len(experiment.NAME) for experiment in EXPERIMENTS)
    lines, data = [], []
    for experiment in EXPERIMENTS:
        steps = cost([experiment], bench.setting)
        state = done.get(
            experiment.NAME, "open" if experiment.arms(bench.setting) else "not possible here"
        )
        lines.append(
            f"{experiment.NAME:<{width}}  {state:<13}  {steps:>3} steps  {experiment.ABOUT}"
        )
        data.append(
            {
                "name": experiment.NAME,
                "factor": experiment.FACTOR,
                "state": state,
                "num_steps": steps,
            }
        )
    return StepResult(
        incident=bench.incident.id,
        exit_code=0,
        verdict="listed",
        lines=tuple(lines),
        data={"experiments": data},
        next_commands=(bench.command("branch"),),
    )


def _table(findings: Sequence[Finding]) -> list[str]:
    width = max(len(finding.name) for finding in findings)
    return [
        f"{finding.outcome:<12} {finding.name:<{width}}  {finding.summary}" for finding in findings
    ]
