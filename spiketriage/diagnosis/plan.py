"""Choose what to do next: the experiments that best split the causes still possible, per step.

It proposes and never runs; an experiment that cannot change the verdict is not proposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
        trials = trials_of(experiment.arms(setting))
        rows[experiment.name] = ExperimentRow(
            name=experiment.name,
            possible=bool(trials),
            num_steps=sum(trial.num_steps for trial in trials),
            why="" if trials else experiment.missing,
            trials=tuple(trial.key for trial in trials),
            trial_steps=tuple(trial.num_steps for trial in trials),
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
    if not any(_decides(name, suspects, case) for name in options):
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


def _decides(name: str, suspects: Sequence[Cause], case: Case) -> bool:
    return any(name in cause.deciding(spiked=case.spiked) for cause in suspects)


def _cheapest_split(
    left: Sequence[Experiment], suspects: Sequence[Cause], plan: Plan, case: Case
) -> Proposal:
    """The experiment that splits most per step, with those that share its control passes."""
    scores: dict[str, float] = {}
    for experiment in left:
        name = experiment.name
        scores[name] = _worth(experiment, suspects, case) / max(1, plan.experiments[name].num_steps)
    best = max(left, key=lambda experiment: scores[experiment.name])
    together = [best]
    if best.shares_controls:
        together = [experiment for experiment in left if experiment.shares_controls]
    names = tuple(experiment.name for experiment in together)
    return Proposal(
        experiments=names,
        num_steps=cost(plan, names),
        why=f"it splits what is left ({', '.join(cause.name for cause in suspects)}) "
        "at the least cost",
    )


def _worth(experiment: Experiment, suspects: Sequence[Cause], case: Case) -> float:
    """Pairs of suspects that it would tell apart, and a share for every cell that it fills."""
    name, role = experiment.name, experiment.role
    outcomes = [set(cause.allows(name, role, spiked=case.spiked)) for cause in suspects]
    num_pairs = 0
    for i, left in enumerate(outcomes):
        num_pairs += sum(left.isdisjoint(right) for right in outcomes[i + 1 :])
    num_decided = sum(name in cause.deciding(spiked=case.spiked) for cause in suspects)
    return num_pairs + DECIDING_SHARE * num_decided
