"""Checks over the step chain.

Ranks, reduction, continuity, finiteness, metrics, each with a fault.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from synthetic_view import TENSORS, SyntheticRun, only, raw

from spiketriage.diagnosis.checks import (
    CHECKS,
    continuity,
    finiteness,
    metric_consistency,
    rank_agreement,
    reduction,
)
from spiketriage.nouns.telemetry import Link

SEEDS = range(6)
NAMES = {
    *("ranks-counters", "ranks-params-before", "ranks-reduced-gradient", "ranks-optimizer"),
    *(
        "ranks-params-after",
        "reduction",
        "continuity",
        "finiteness",
        "metric-consistency",
        "lr-schedule",
    ),
    *(
        "hyperparameters",
        "code-identity",
        "config-identity",
        "restored-params",
        "restored-optimizer",
    ),
    *(
        "restored-scheduler",
        "restored-rng",
        "restored-cursor",
        *("restored-buffers", "restored-scaler", "restored-guard"),
        "consumed-content",
        "consumed-at-spike",
        "ids",
        "composition",
    ),
    "content-profile",
    "deterministic-mode",
    "stored-finiteness",
}


def test_a_healthy_run_agrees_everywhere_and_an_audit_leaves_the_spike_checks_untested():
    findings = [finding for check in CHECKS for finding in check.run(SyntheticRun().view())]
    assert {finding.name for finding in findings} == NAMES
    untested = {finding.name for finding in findings if finding.outcome == "not testable"}
    assert untested == {"composition", "consumed-at-spike", "content-profile", "stored-finiteness"}
    assert {finding.outcome for finding in findings if finding.name not in untested} == {"agrees"}
    assert [finding.name for finding in findings if not finding.judged] == ["code-identity"]


def test_every_check_survives_a_run_that_recorded_nothing_but_numbers():
    run = SyntheticRun()
    for key, record in run.steps.items():
        run.steps[key] = replace(record, metrics={}, digests={}, content={}, ids=None)
    run.manifests, run.loads = {}, []
    for suspect in (None, 50, 10_000):
        for check in CHECKS:
            for finding in check.run(run.view(suspect=suspect, index=False)):
                assert finding.outcome in ("agrees", "not testable"), finding


@pytest.mark.parametrize("seed", SEEDS)
def test_a_weight_that_changes_in_memory_is_named_by_step_tensor_and_rank(seed):
    draw = random.Random(seed)
    run, step, rank, tensor = (
        SyntheticRun(),
        draw.randint(41, 79),
        draw.randint(0, 1),
        draw.choice(TENSORS),
    )
    _corrupt_from(run, rank, step, tensor)
    found = only(continuity.run(run.view()), "continuity")
    assert (found.outcome, found.where.step, found.where.key, found.where.rank) == (
        "differs",
        step,
        tensor,
        rank,
    )
    assert found.expected.endswith(raw("params", tensor, step - 1).hex())
    ranks = rank_agreement.run(run.view())
    first = only(ranks, "ranks-params-before")
    assert (first.outcome, first.where.step, first.where.key, first.where.rank) == (
        "differs",
        step,
        tensor,
        rank,
    )
    for later in ("ranks-reduced-gradient", "ranks-optimizer", "ranks-params-after"):
        assert only(ranks, later).outcome == "not testable"
        assert "follows from" in only(ranks, later).summary


def test_a_change_between_the_load_and_the_first_step_is_found():
    run = SyntheticRun()
    _corrupt_from(run, 1, 41, TENSORS[2])
    found = only(continuity.run(run.view()), "continuity")
    assert (found.where.step, found.where.rank, found.where.key) == (41, 1, TENSORS[2])
    assert only(rank_agreement.run(run.view()), "ranks-params-before").where.rank == 1


def test_the_restart_itself_is_no_break_of_continuity():
    run = SyntheticRun()
    for step in range(41, 46):  # the abandoned tail of attempt 0 went elsewhere
        for rank in (0, 1):
            record = run.steps[0, rank, step]
            other = {link: raw("abandoned", link, step) for link in record.digests}
            run.steps[0, rank, step] = replace(record, digests=other)
    assert only(continuity.run(run.view()), "continuity").outcome == "agrees"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_that_keeps_its_own_gradient_is_named(seed):
    draw = random.Random(seed)
    run, step, rank = SyntheticRun(), draw.randint(2, 79), draw.randint(0, 1)
    for tensor in TENSORS:
        run.digest(
            rank, step, "reduced_gradient", tensor, raw("local_gradient", tensor, step, rank)
        )
        for stage in ("optimizer", "params_after"):
            run.digest(rank, step, stage, tensor, raw("went its own way", stage, tensor))
    found = only(reduction.run(run.view()), "reduction")
    assert (found.outcome, found.where.step, found.where.rank) == ("differs", step, rank)
    ranks = rank_agreement.run(run.view())
    stage = only(ranks, "ranks-reduced-gradient")
    assert (stage.outcome, stage.where.step, stage.where.rank) == ("differs", step, rank)
    assert only(ranks, "ranks-params-before").outcome == "agrees"
    assert only(ranks, "ranks-optimizer").outcome == "not testable"


def test_reduced_gradients_that_differ_without_being_local_are_not_a_skipped_reduction():
    run = SyntheticRun()
    run.digest(1, 50, "reduced_gradient", TENSORS[0], raw("a flipped bit"))
    assert only(reduction.run(run.view()), "reduction").outcome == "agrees"
    stage = only(rank_agreement.run(run.view()), "ranks-reduced-gradient")
    assert (stage.outcome, stage.where.rank) == ("differs", None)
    assert "cannot be told" in stage.summary


def test_of_three_ranks_the_outvoted_one_is_named():
    run = SyntheticRun(num_ranks=3)
    run.digest(2, 50, "optimizer", TENSORS[1], raw("odd"))
    stage = only(rank_agreement.run(run.view()), "ranks-optimizer")
    assert (stage.outcome, stage.where.step, stage.where.key, stage.where.rank) == (
        "differs",
        50,
        TENSORS[1],
        2,
    )
    assert stage.expected.endswith(raw("optimizer", TENSORS[1], 50, None).hex())


def test_nan_bits_that_differ_on_every_rank_are_not_a_disagreement():
    run = SyntheticRun()
    link = Link("reduced_gradient", TENSORS[0])
    for rank in (0, 1):
        run.digest(rank, 50, link.stage, link.key, raw("nan", rank))
        run.change(rank, 50, nonfinite=(link,))
    assert only(rank_agreement.run(run.view()), "ranks-reduced-gradient").outcome == "agrees"
    run.change(0, 50, nonfinite=())
    assert only(rank_agreement.run(run.view()), "ranks-reduced-gradient").outcome == "differs"


def test_a_stage_without_digests_is_not_passed():
    run = SyntheticRun()
    run.without_stage("optimizer")
    run.without_stage("params_after")
    assert only(rank_agreement.run(run.view()), "ranks-optimizer").outcome == "not testable"
    assert only(rank_agreement.run(run.view()), "ranks-params-before").outcome == "agrees"
    found = only(continuity.run(run.view()), "continuity")
    assert found.outcome == "agrees"
    assert "2 transitions" in found.summary  # from the load into the first step, on two ranks
    run.loads = []
    assert only(continuity.run(run.view()), "continuity").outcome == "not testable"


def test_missing_telemetry_of_a_rank_leaves_rank_agreement_untested_and_says_so():
    run = SyntheticRun()
    run.dropped_ranks = {1}
    findings = rank_agreement.run(run.view())
    assert {finding.outcome for finding in findings} == {"not testable"}
    assert all("rank 1" in finding.summary for finding in findings)
    assert only(reduction.run(run.view()), "reduction").outcome == "not testable"


@pytest.mark.parametrize(
    ("plant", "step"),
    [
        (lambda run: run.metric(1, 33, tokens__total=7.0), 33),
        (lambda run: run.steps.pop((1, 1, 55)), 55),
        (
            lambda run: run.loads.__setitem__(
                1, replace(run.loads[1], generation="step-000020", step=20)
            ),
            21,
        ),
    ],
    ids=["tokens", "missing step", "other generation"],
)
def test_ranks_that_count_differently_are_found(plant, step):
    run = SyntheticRun()
    plant(run)
    found = only(rank_agreement.run(run.view()), "ranks-counters")
    assert (found.outcome, found.where.step) == ("differs", step)


def test_a_run_that_died_within_a_step_is_no_disagreement():
    run = SyntheticRun()
    del run.steps[1, 1, 80]
    assert only(rank_agreement.run(run.view()), "ranks-counters").outcome == "agrees"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_nonfinite_link_in_chain_order_is_named(seed):
    draw = random.Random(seed)
    run, step, rank = SyntheticRun(), draw.randint(2, 70), draw.randint(0, 1)
    gradient = Link("local_gradient", draw.choice(TENSORS))
    run.change(rank, step, nonfinite=(gradient, Link("reduced_gradient", TENSORS[0])))
    run.change(1 - rank, step, nonfinite=(Link("reduced_gradient", TENSORS[0]),))
    for later in range(step + 1, 81):
        for each in (0, 1):
            run.change(each, later, nonfinite=(Link("params_before", TENSORS[0]),))
    found = only(finiteness.run(run.view()), "finiteness")
    assert (found.outcome, found.where.step, found.where.stage) == (
        "nonfinite",
        step,
        "local_gradient",
    )
    assert (found.where.key, found.where.rank, found.magnitude) == (gradient.key, rank, 81 - step)


def test_a_nonfinite_link_on_all_ranks_names_the_lowest_and_counts_them():
    run = SyntheticRun()
    for rank in (0, 1):
        run.change(rank, 60, nonfinite=(Link("loss", "0"),))
    found = only(finiteness.run(run.view()), "finiteness")
    assert found.where.rank == 0
    assert "2 of 2 ranks" in found.summary


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_nonfinite_metric_in_a_finite_chain_is_an_artefact(value):
    run = SyntheticRun()
    run.metric(1, 52, loss__mean=value)
    found = only(metric_consistency.run(run.view()), "metric-consistency")
    assert (found.outcome, found.where.step, found.where.rank, found.where.key) == (
        "differs",
        52,
        1,
        "loss/mean",
    )


def test_a_nonfinite_metric_with_a_nonfinite_link_or_without_a_next_step_is_no_artefact():
    run = SyntheticRun()
    run.metric(1, 52, loss__mean=math.nan)
    run.change(0, 52, nonfinite=(Link("loss", "0"),))
    assert only(metric_consistency.run(run.view()), "metric-consistency").outcome == "agrees"
    last = SyntheticRun()
    last.metric(0, 80, grad__norm=math.nan)
    assert only(metric_consistency.run(last.view()), "metric-consistency").outcome == "not testable"
    followed = SyntheticRun()
    followed.metric(0, 70, grad__norm=math.nan)
    followed.change(1, 71, nonfinite=(Link("params_before", TENSORS[0]),))
    assert (
        only(metric_consistency.run(followed.view()), "metric-consistency").outcome
        == "not testable"
    )


def _corrupt_from(run: SyntheticRun, rank: int, step: int, tensor: str) -> None:
    """From before `step` on, one rank's replica lives on with other weights."""
    for later in range(step, run.num_steps + 1):
        run.digest(rank, later, "params_before", tensor, raw("corrupt", later - 1))
        run.digest(rank, later, "params_after", tensor, raw("corrupt", later))
