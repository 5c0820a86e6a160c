"""Every experiment on a made-up run: one factor a plan, what is possible, and what it would cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_view import SyntheticRun

from spiketriage.diagnosis.derive import make_setting
from spiketriage.diagnosis.experiment import lint, trials_of
from spiketriage.diagnosis.experiments import EXPERIMENTS
from spiketriage.diagnosis.plan import cost, make_plan
from spiketriage.diagnosis.setting import Setting

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
CELLS = [name for name, experiment in BY_NAME.items() if experiment.two_by_two]


def setting(suspect: int = 70, **changes: object) -> Setting:
    view = SyntheticRun().view(suspect=suspect)
    anchors = replace(view.anchors, known_good="step-000060", older_good="step-000040")
    return replace(
        make_setting(view, anchors, alarmed=True), **{"reference_code": "code/r1", **changes}
    )


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_each_plan_changes_the_one_factor_that_the_experiment_names(experiment):
    arms = experiment.arms(setting(later_good="step-000080", later_good_step=80))
    assert arms
    lint(experiment, arms)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_each_control_is_a_trial_that_others_ask_for_too(experiment):
    """Controls are shared: none is executed for one experiment alone."""
    asked = setting(later_good="step-000080", later_good_step=80)
    others: set[str] = {asked.replay(last=asked.known_good_step + 1).key}
    for other in EXPERIMENTS:
        if other is not experiment:
            others.update(trial.key for trial in trials_of(other.arms(asked)))
    assert {arm.control.key for arm in experiment.arms(asked)} <= others


@pytest.mark.parametrize(
    ("lacking", "impossible"),
    [
        ({"older_good": None}, {"suspect-batch/older-state", "clean-batch/older-state"}),
        (
            {"clean": ()},
            {"suspect-batch/suspect-state", "clean-batch/suspect-state", "clean-batch/older-state"},
        ),
        ({"reference_code": None}, {"reference-code", "code-heals"}),
    ],
)
def test_what_the_run_lacks_is_not_possible_and_says_why(lacking, impossible):
    plan = make_plan(EXPERIMENTS, setting(**lacking), "basis")
    rows = {name for name, row in plan.experiments.items() if not row.possible}
    assert rows == {*impossible, "later-window"}
    for name, row in plan.experiments.items():
        assert bool(row.why) == (name in rows)
        assert row.possible == bool(row.trials) == bool(row.num_steps)


def test_a_skip_of_the_last_recorded_step_is_not_possible():
    last = max(setting().ids)
    plan = make_plan(EXPERIMENTS, setting(suspect=last), "basis")
    assert not plan.is_possible("skip-batch")
    assert plan.is_possible("loader-heals")


def test_shared_trials_are_counted_once():
    asked = setting()
    plan = make_plan(EXPERIMENTS, asked, "basis")
    trials = {}
    for name in CELLS:
        for trial in trials_of(BY_NAME[name].arms(asked)):
            trials[trial.key] = trial.num_steps
    assert cost(plan, CELLS) == sum(trials.values())
    assert cost(plan, CELLS) < sum(plan.experiments[name].num_steps for name in CELLS)
    assert cost(plan, [*CELLS, *CELLS]) == cost(plan, CELLS)


def test_an_experiment_says_something_only_after_the_replay_that_it_needs():
    nothing_spiked = {
        name
        for name, experiment in BY_NAME.items()
        if experiment.is_meaningful(reproduced=True, spiked=False)
    }
    not_reproduced = {
        name
        for name, experiment in BY_NAME.items()
        if experiment.is_meaningful(reproduced=False, spiked=True)
    }
    both = {
        name
        for name, experiment in BY_NAME.items()
        if experiment.is_meaningful(reproduced=True, spiked=True)
    }
    assert nothing_spiked == {"reference-loader", "reference-code"}
    assert not_reproduced == {"later-window"}
    assert both == {*BY_NAME} - {"later-window"}
