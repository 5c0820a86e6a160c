"""Choose what to do next.

The experiments that best split the causes still possible, per step of cost.

It proposes and never runs; an experiment that cannot change the verdict is not proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spiketriage.diagnosis.cause import Cause
from spiketriage.diagnosis.experiment import Experiment
from spiketriage.diagnosis.judge import Case, suspects
from spiketriage.diagnosis.launch import unique
from spiketriage.diagnosis.setting import Setting

REPLAY, LATER = "replay", "later-window"
TWO_BY_TWO = (
    "suspect-batch/suspect-state",
    "clean-batch/suspect-state",
    "suspect-batch/older-state",
    "clean-batch/older-state",
    "skip-batch",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Experiments to run next, together since they share a launch, and why."""

    experiments: tuple[str, ...]
    num_steps: int
    why: str


def possible(experiments: Sequence[Experiment], setting: Setting, case: Case) -> tuple[str, ...]:
    """Names of experiments that this setting allows and that were not done yet.

    Batch experiments mean something only when the incident spiked and reproduced (DESIGN §6), and
    the look at a later window only when it did not.
    """
    if setting.unreplayable:
        return ()
    replay = case.findings.get(REPLAY)
    if replay is None:
        return (REPLAY,)
    reproduced = replay.outcome == "agrees"
    allowed = []
    for experiment in experiments:
        if experiment.NAME in case.findings or not experiment.arms(setting):
            continue
        if is_meaningful(experiment, reproduced=reproduced, spiked=setting.spiked):
            allowed.append(experiment.NAME)
    return tuple(allowed)


def is_meaningful(experiment: Experiment, *, reproduced: bool, spiked: bool) -> bool:
    """Whether the answer could mean anything, given whether the replay reproduced and something spiked."""
    if experiment.NAME == LATER:
        return not reproduced
    needs_spike = experiment.FACTOR in (
        "batch",
        "state",
        "kernel",
        "precision",
    ) or experiment.NAME.endswith("-heals")
    return reproduced and (spiked or not needs_spike)


def propose(
    causes: Sequence[Cause], experiments: Sequence[Experiment], setting: Setting, case: Case
) -> Proposal | None:
    """The next experiments, or None when nothing that can be run would change the verdict."""
    options = possible(experiments, setting, case)
    if not options:
        return None
    if options == (REPLAY,):
        return Proposal(
            experiments=options,
            num_steps=setting.replay().num_steps,
            why="a replay tells what repeats from what happened once; every later experiment "
            "rests on it",
        )
    left = suspects(causes, case)
    deciding = {name for cause in left for name in cause.deciding(spiked=case.spiked)}
    if deciding.isdisjoint(options):
        return None
    return _cheapest_split(left, experiments, setting, case, options)


def _cheapest_split(
    suspects: Sequence[Cause],
    experiments: Sequence[Experiment],
    setting: Setting,
    case: Case,
    options: Sequence[str],
) -> Proposal | None:
    by_name = {experiment.NAME: experiment for experiment in experiments}
    if setting.spiked and any(name in options for name in TWO_BY_TWO):
        chosen = tuple(name for name in TWO_BY_TWO if name in options)
        why = (
            "the 2×2 of state and batch, with skip: it tells batch from state before anything "
            "dearer is tried"
        )
        return Proposal(
            experiments=chosen, num_steps=cost([by_name[n] for n in chosen], setting), why=why
        )
    scores = {
        name: _pairs_split(by_name[name], suspects, case) / max(1, cost([by_name[name]], setting))
        for name in options
    }
    best = max(scores, key=lambda name: (scores[name], -options.index(name)))
    if scores[best] == 0:
        wanted = [
            name
            for name in options
            if any(name in cause.deciding(spiked=case.spiked) for cause in suspects)
        ]
        if not wanted:
            return None
        best = wanted[0]
    names = ", ".join(cause.name for cause in suspects)
    # References on the same batches share their control passes: one launch answers all of them.
    together = tuple(n for n in options if n == best or (_is_reference(best) and _is_reference(n)))
    return Proposal(
        experiments=together,
        num_steps=cost([by_name[n] for n in together], setting),
        why=f"it splits what is left ({names}) at the least cost",
    )


def _is_reference(name: str) -> bool:
    return name in ("reference-kernel", "reference-precision", "kernel-heals", "precision-heals")


def _pairs_split(experiment: Experiment, suspects: Sequence[Cause], case: Case) -> float:
    """Pairs of suspects that it would tell apart, and a share for every deciding cell it fills."""
    name, role = experiment.NAME, experiment.EMITS[experiment.NAME].role
    options = [set(cause.allows(name, role, spiked=case.spiked)) for cause in suspects]
    pairs = sum(
        1 for i, left in enumerate(options) for right in options[i + 1 :] if not left & right
    )
    return pairs + 0.5 * sum(1 for cause in suspects if name in cause.deciding(spiked=case.spiked))


def cost(experiments: Sequence[Experiment], setting: Setting) -> int:
    """Steps that the experiments' trials execute, shared trials counted once."""
    trials = unique(
        trial
        for e in experiments
        for arm in e.arms(setting)
        for trial in (arm.control, arm.variant)
    )
    return sum(trial.num_steps for trial in trials)
