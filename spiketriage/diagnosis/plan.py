"""Choose what to do next: the experiments that best split the causes still possible, per step.

It proposes and never runs; an experiment that cannot change the verdict is not proposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from spiketriage.diagnosis.cause import Cause
from spiketriage.diagnosis.experiment import Experiment, trials_of
from spiketriage.diagnosis.judge import Case, suspects_of
from spiketriage.diagnosis.replaying import REPLAY
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import ExperimentRow, SettingRow

# A deciding cell that is filled brings half of what a pair of causes told apart does: it can end in
# a name, but need not.
DECIDING_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What can be tried in one setting: the setting itself, and every experiment by name."""

    setting: SettingRow
    experiments: Mapping[str, ExperimentRow]

    def is_possible(self, name: str) -> bool:
        """Whether the setting allows the experiment."""
        return name in self.experiments and self.experiments[name].possible


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Experiments to run next, together since they share a launch, and why."""

    experiments: tuple[str, ...]
    num_steps: int
    why: str


def make_plan(experiments: Iterable[Experiment], setting: Setting, basis: str) -> Plan:
    """Which experiments this setting allows, and what they would cost."""
    rows: dict[str, ExperimentRow] = {}
    for experiment in experiments:
        steps = {trial.key: trial.num_steps for trial in trials_of(experiment.arms(setting))}
        rows[experiment.name] = ExperimentRow(
            name=experiment.name,
            possible=bool(steps),
            num_steps=sum(steps.values()),
            why="" if steps else experiment.missing,
            trials=tuple(steps),
            trial_steps=tuple(steps.values()),
        )
    row = SettingRow(
        basis=basis,
        suspect=setting.suspect,
        alarmed=setting.alarmed,
        spiked=setting.spiked,
        unreplayable=setting.unreplayable,
        replay_steps=setting.replay().num_steps,
    )
    return Plan(setting=row, experiments=rows)


def plan_of_checks(
    experiments: Iterable[Experiment], *, basis: str, suspect: int, alarmed: bool, why: str
) -> Plan:
    """The plan where no step can be executed, whoever asks: what the checks found is all there is.

    `why` says what is missing, in the words that a person will read.
    """
    rows: dict[str, ExperimentRow] = {}
    for experiment in experiments:
        rows[experiment.name] = ExperimentRow(
            name=experiment.name, possible=False, num_steps=0, why=why, trials=(), trial_steps=()
        )
    row = SettingRow(
        basis=basis,
        suspect=suspect,
        alarmed=alarmed,
        spiked=alarmed,
        unreplayable=why,
        replay_steps=0,
    )
    return Plan(setting=row, experiments=rows)


def possible(experiments: Iterable[Experiment], plan: Plan, case: Case) -> tuple[str, ...]:
    """Names of experiments that could be run now, would mean something, and were not done yet."""
    if plan.setting.unreplayable:
        return ()
    replay = case.findings.get(REPLAY)
    if replay is None:
        return (REPLAY,)
    reproduced = replay.outcome == "agrees"
    names: list[str] = []
    for experiment in experiments:
        if experiment.name in case.findings or not plan.is_possible(experiment.name):
            continue
        if experiment.is_meaningful(reproduced=reproduced, spiked=plan.setting.spiked):
            names.append(experiment.name)
    return tuple(names)


def propose(
    causes: Sequence[Cause], experiments: Sequence[Experiment], plan: Plan, case: Case
) -> Proposal | None:
    """The next experiments, or None when nothing that can be run would change the verdict."""
    options = possible(experiments, plan, case)
    if not options:
        return None
    if options == (REPLAY,):
        return Proposal(
            experiments=options,
            num_steps=plan.setting.replay_steps,
            why="a replay tells what repeats from what happened once; every later experiment "
            "rests on it",
        )
    suspects = suspects_of(causes, case)
    deciding: set[str] = set()
    for cause in suspects:
        deciding.update(cause.deciding(spiked=case.spiked))
    if deciding.isdisjoint(options):
        return None
    left = [experiment for experiment in experiments if experiment.name in options]
    cells = tuple(experiment.name for experiment in left if experiment.two_by_two)
    if plan.setting.spiked and cells:
        return Proposal(
            experiments=cells,
            num_steps=cost(plan, cells),
            why="the 2×2 of state and batch, with skip: it tells batch from state before anything "
            "dearer is tried",
        )
    return _cheapest_split(left, suspects, plan, case)


def cost(plan: Plan, names: Iterable[str]) -> int:
    """Steps that the experiments' trials execute, shared trials counted once."""
    steps: dict[str, int] = {}
    for name in names:
        row = plan.experiments[name]
        steps.update(zip(row.trials, row.trial_steps, strict=True))
    return sum(steps.values())


def _cheapest_split(
    experiments: Sequence[Experiment], causes: Sequence[Cause], plan: Plan, case: Case
) -> Proposal:
    """The experiment that splits most per step, with those that share its control passes."""
    scores: dict[str, float] = {}
    for experiment in experiments:
        num_steps = plan.experiments[experiment.name].num_steps
        scores[experiment.name] = _worth(experiment, causes, case) / max(1, num_steps)
    best = max(experiments, key=lambda experiment: scores[experiment.name])
    together = [best]
    if best.shares_controls:
        together = [experiment for experiment in experiments if experiment.shares_controls]
    names = tuple(experiment.name for experiment in together)
    return Proposal(
        experiments=names,
        num_steps=cost(plan, names),
        why=f"it splits what is left ({', '.join(cause.name for cause in causes)}) "
        "at the least cost",
    )


def _worth(experiment: Experiment, causes: Sequence[Cause], case: Case) -> float:
    """Pairs of causes that it would tell apart, and a share for every deciding cell it fills."""
    worth = 0.0
    for cause in causes:
        if experiment.name in cause.deciding(spiked=case.spiked):
            worth += DECIDING_SHARE
    for left, right in combinations(causes, 2):
        ours = left.allows(experiment.name, experiment.role, spiked=case.spiked)
        theirs = right.allows(experiment.name, experiment.role, spiked=case.spiked)
        if set(ours).isdisjoint(theirs):
            worth += 1
    return worth
