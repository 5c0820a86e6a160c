"""What runs of common trainers do in every epoch and after every skipped update, and no check may call a fault."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from synthetic_view import SyntheticRun, learning_rate, only

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.checks import ids, lr_schedule
from spiketriage.diagnosis.effect import without_effect
from spiketriage.diagnosis.experiment import Arm
from spiketriage.diagnosis.launch import make_row
from spiketriage.diagnosis.schedule import scheduled_lr
from spiketriage.wire.trial import Factors, Trial


def in_epochs(run: SyntheticRun, steps_per_epoch: int, *, named: bool) -> None:
    """The same order again and again from the first document on.

    Batches name their epoch, or do not.
    """
    for step in range(1, 81):
        epoch, place = divmod(step - 1, steps_per_epoch)
        for rank in (0, 1):
            names = list(run.record(rank, place + 1).content)
            run.use(rank, step, names)
            if named:
                run.change(rank, step, ids={"epoch": epoch, "at": place, "micros": [names]})


def test_an_epoch_that_drops_its_last_batches_repeats_nothing_that_its_names_do_not_say():
    run = SyntheticRun()  # 640 documents, of which an epoch of 40 steps uses 320
    in_epochs(run, 40, named=True)
    assert only(ids.run(run.view()), "ids").outcome == "agrees"
    in_epochs(run, 40, named=False)
    found = only(ids.run(run.view()), "ids")
    assert (found.outcome, found.where.step) == ("differs", 41)


@pytest.mark.parametrize(("step", "outcome"), [(80, "agrees"), (60, "differs")])
def test_a_last_batch_may_be_filled_up_from_the_beginning(step: int, outcome: str):
    run = SyntheticRun()
    own, other = (list(run.record(rank, step).content) for rank in (0, 1))
    sources = {
        run.documents[name].source for name in other
    }  # in the last step, rank 1 uses the last of these
    again = next(name for name in run.record(0, 1).content if run.documents[name].source in sources)
    run.use(0, step, [*own, again])
    assert only(ids.run(run.view()), "ids").outcome == outcome


@pytest.mark.parametrize("kind", ["warmup-linear", "warmup-cosine", "warmup-constant"])
def test_schedules_that_count_from_zero_are_those_that_torch_computes(kind: str):
    def factor(counter: int) -> float:
        if counter < 20:
            return counter / 20
        done = (counter - 20) / 80
        return {
            "warmup-linear": 1 - done,
            "warmup-cosine": (1 + math.cos(math.pi * done)) / 2,
            "warmup-constant": 1,
        }[kind]

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    schedule = {
        "kind": kind,
        "peak": 2e-3,
        "floor": 0.0,
        "warmup_steps": 20,
        "total_steps": 100,
        "first": 0,
    }
    for step in range(1, 101):
        assert scheduled_lr(schedule, step) == pytest.approx(
            scheduler.get_last_lr()[0], rel=1e-9
        ), step
        optimizer.step()
        scheduler.step()


def test_a_schedule_that_counts_updates_does_not_count_those_that_the_guard_left_out():
    run = SyntheticRun()
    for step in range(1, 81):
        for rank in (0, 1):
            run.metric(
                rank, step, guard__skipped=float(step == 30), lr=learning_rate(step - (step > 30))
            )
    assert (
        only(lr_schedule.run(run.view()), "lr-schedule").outcome == "differs"
    )  # this one counts steps
    for step, manifest in run.manifests.items():
        run.manifests[step] = replace(manifest, schedule={**manifest.schedule, "counts": "updates"})
    assert only(lr_schedule.run(run.view()), "lr-schedule").outcome == "agrees"
    for rank in (0, 1):
        run.metric(rank, 30, guard__skipped=0.0)
    found = only(lr_schedule.run(run.view()), "lr-schedule")
    assert (found.outcome, found.where.step) == ("differs", 31)
    assert "stood at step 30" in found.summary


@pytest.mark.parametrize(
    ("precision", "complaint"), [("fp32", ""), ("bf16", "the reference changed no digest")]
)
def test_a_reference_may_change_nothing_only_where_the_run_says_that_it_is_its_own(
    precision: str, complaint: str
):
    run = SyntheticRun()
    control = Trial(
        kind="probe",
        purpose="",
        factors=Factors(state="step-000040@41"),
        first_step=42,
        last_step=42,
    )
    variant = replace(control, factors=replace(control.factors, precision="fp32"))
    identities = tuple(replace(one, precision=precision) for one in run.identities.values())

    def answer(trial: Trial) -> Answer:
        told = make_row(trial, num_steps=1, wall_s=1.0)
        steps = tuple(run.record(rank, 42) for rank in (0, 1))
        return Answer(
            trial=trial,
            row=told,
            cached=False,
            steps=steps,
            loads=(),
            identities=identities,
            not_testable="",
        )

    answers = {trial.key: answer(trial) for trial in (control, variant)}
    experiment = SimpleNamespace(
        factor="precision", arms=lambda setting: (Arm(control=control, variant=variant),)
    )
    assert without_effect(experiment, None, answers).startswith(complaint)
    assert bool(without_effect(experiment, None, answers)) == bool(complaint)
