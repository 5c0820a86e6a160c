"""Checks against the manifest: schedule, hyper-parameters, code, config and the restored state."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_view import (
    SCHEDULE,
    TENSORS,
    SyntheticRun,
    learning_rate,
    only,
    raw,
    state_fields,
    state_tensors,
)

from spiketriage.diagnosis.checks import (
    code_identity,
    hyperparameters,
    lr_schedule,
    restored_state,
    run_identity,
)
from spiketriage.diagnosis.schedule import scheduled_lr

SEEDS = range(6)


def test_the_schedule_is_the_one_that_torch_computes():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=2e-3)
    warm = torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=1 / 25, end_factor=1.0, total_iters=24
    )
    cool = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=275, eta_min=1e-4)
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cool], milestones=[24])
    schedule = {
        "kind": "warmup-cosine",
        "peak": 2e-3,
        "floor": 1e-4,
        "warmup_steps": 25,
        "total_steps": 300,
    }
    for step in range(1, 300):
        assert scheduled_lr(schedule, step) == pytest.approx(both.get_last_lr()[0], rel=1e-9), step
        optimizer.step()
        both.step()


def test_known_points_of_the_schedule():
    points = {1: 3e-4, 10: 3e-3, 105: 1.65e-3, 200: 3e-4, 500: 3e-4}
    for step, expected in points.items():
        assert scheduled_lr(SCHEDULE, step) == pytest.approx(expected, rel=1e-12)
    assert scheduled_lr({"kind": "constant", "peak": 0.5}, 7) == 0.5
    assert scheduled_lr({"kind": "one-cycle"}, 7) is None


@pytest.mark.parametrize("shift", [40, 33, 5])
def test_a_counter_that_is_set_back_is_named_by_the_step_it_looks_like(shift):
    run = SyntheticRun()
    for step in range(41, 81):
        for rank in (0, 1):
            run.metric(rank, step, lr=learning_rate(step - shift))
    found = only(lr_schedule.run(run.view()), "lr-schedule")
    assert (found.outcome, found.where.step, found.where.key) == ("differs", 41, "lr")
    assert found.where.rank is None
    assert f"as if the counter stood at step {41 - shift} " in found.summary
    assert found.magnitude == pytest.approx(learning_rate(41 - shift) / learning_rate(41))
    assert "at 40 steps in all" in found.summary


@settings(deadline=None)
@given(
    step=st.integers(2, 80),
    factor=st.floats(0.01, 100).filter(lambda value: abs(value - 1) > 1e-5),
    rank=st.integers(0, 1),
)
def test_any_other_learning_rate_is_found_at_its_step_and_rank(step, factor, rank):
    run = SyntheticRun()
    run.metric(rank, step, lr=learning_rate(step) * factor)
    found = only(lr_schedule.run(run.view()), "lr-schedule")
    assert (found.outcome, found.where.step, found.where.rank) == ("differs", step, rank)
    assert found.magnitude == pytest.approx(factor)


def test_rounding_of_the_learning_rate_is_no_difference():
    run = SyntheticRun()
    for rank, step in ((0, 5), (1, 60)):
        run.metric(rank, step, lr=float(torch.tensor(learning_rate(step), dtype=torch.float32)))
    assert only(lr_schedule.run(run.view()), "lr-schedule").outcome == "agrees"


def test_an_unknown_schedule_is_not_passed():
    run = SyntheticRun()
    for step, manifest in run.manifests.items():
        run.manifests[step] = replace(manifest, schedule={"kind": "one-cycle"})
    found = only(lr_schedule.run(run.view()), "lr-schedule")
    assert found.outcome == "not testable"
    assert "one-cycle" in found.summary


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("eps", 1e-3),
        ("beta2", 0.5),
        ("weight_decay", 0.0),
        ("clip__threshold", 1e9),
        ("beta1", float("nan")),
    ],
)
def test_a_hyperparameter_as_applied_is_compared_with_the_manifest(metric, value):
    run = SyntheticRun()
    for step in range(47, 81):
        run.metric(1, step, **{metric: value})
    found = only(hyperparameters.run(run.view()), "hyperparameters")
    name = metric.replace("__", "/")
    assert (found.outcome, found.where.step, found.where.key, found.where.rank) == (
        "differs",
        47,
        name,
        1,
    )
    assert found.seen == f"{name}={value}"


def test_hyperparameters_as_stated_are_compared_and_every_field_is_named():
    run = SyntheticRun()
    for rank in (0, 1):
        hparams = {"betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.3, "added": 1}
        run.identities[1, rank] = replace(run.identities[1, rank], hparams=hparams)
    found = only(hyperparameters.run(run.view()), "hyperparameters")
    assert (found.outcome, found.where.step, found.magnitude) == ("differs", 41, 2)
    assert "betas is [0.9, 0.99] instead of [0.9, 0.95]" in found.summary
    assert "weight_decay is 0.3 instead of 0.1" in found.summary


def test_a_change_of_code_is_context_and_a_change_of_config_is_judged():
    run = SyntheticRun()
    for rank in (0, 1):
        run.identities[1, rank] = replace(
            run.identities[1, rank], code_digest="new", config_digest="other"
        )
    findings = code_identity.run(run.view())
    code, config = only(findings, "code-identity"), only(findings, "config-identity")
    assert (code.outcome, code.judged, code.where.step) == ("differs", False, 41)
    assert "code/r1 → code/r2" in code.summary
    assert (config.outcome, config.judged, config.seen) == ("differs", True, "other")


def identified(run: SyntheticRun, attempt: int, **changes: Any) -> None:
    """Change what every rank of an attempt says of itself."""
    for rank in run.ranks:
        key = (attempt, rank)
        run.identities[key] = replace(run.identities[key], **changes)


@pytest.mark.parametrize(
    ("name", "field", "values"),
    [
        ("tokenizer-identity", "tokenizer_digest", ("words", "other words")),
        ("dataset-identity", "dataset_digest", ("pages", "other pages")),
        ("deterministic-mode", "deterministic", (True, False)),
    ],
)
def test_what_a_restart_changes_is_named_where_the_attempt_begins(name, field, values):
    run = SyntheticRun()
    for attempt in (0, 1):
        identified(run, attempt, **{field: values[0]})
    assert only(run_identity.run(run.view()), name).outcome == "agrees"
    identified(run, 1, **{field: values[1]})
    found = only(run_identity.run(run.view()), name)
    assert (found.outcome, found.where.step) == ("differs", 41)
    assert found.judged == (name != "deterministic-mode")
    assert "attempt 1 begins at step 41" in found.summary
    others = [one for one in run_identity.run(run.view()) if one.name != name]
    assert {one.outcome for one in others} <= {"agrees", "not testable"}


def test_the_tokenizer_is_that_of_the_generation_which_the_attempt_continues():
    run = SyntheticRun()
    for attempt in (0, 1):
        identified(run, attempt, tokenizer_digest="words")
    run.manifests[40] = replace(run.manifests[40], tokenizer_digest="other words")
    found = only(run_identity.run(run.view()), "tokenizer-identity")
    assert (found.outcome, found.expected, found.seen) == ("differs", "other words", "words")
    assert "it is not that of step-000040" in found.summary


def test_a_model_that_changes_from_one_generation_to_the_next_is_named():
    run = SyntheticRun()
    assert [one.name for one in run_identity.run(run.view())] == ["deterministic-mode"]
    run.manifests[20] = replace(run.manifests[20], model_digest="narrow")
    assert only(run_identity.run(run.view()), "model-identity").outcome == "not testable"
    for step, digest in ((20, "narrow"), (40, "narrow"), (60, "wide")):
        run.manifests[step] = replace(run.manifests[step], model_digest=digest)
    found = only(run_identity.run(run.view()), "model-identity")
    assert (found.outcome, found.where.step) == ("differs", 60)
    assert found.summary == "the model changed in step-000060: it is not that of step-000040"


@pytest.mark.parametrize("seed", SEEDS)
def test_foreign_state_after_a_load_is_traced_to_its_generation(seed):
    draw = random.Random(seed)
    run, rank = SyntheticRun(), draw.randint(0, 1)
    field, origin = (
        draw.choice(["params", "optimizer", "scheduler", "rng", "cursor"]),
        draw.choice([20, 60]),
    )
    load = run.loads[rank]
    fields = {**load.fields, field: state_fields(origin, rank)[field]}
    tensors = {**load.tensors, field: state_tensors(origin).get(field, {})}
    run.loads[rank] = replace(load, fields=fields, tensors=tensors)
    findings = restored_state.run(run.view())
    found = only(findings, f"restored-{field}")
    assert (found.outcome, found.where.step, found.where.stage) == ("differs", 41, "restored")
    assert (found.where.key, found.where.rank) == (field, rank)
    assert f"it is that of step-{origin:06d}" in found.summary
    assert {item.outcome for item in findings if item is not found} == {"agrees"}
    if field in ("params", "optimizer"):
        assert found.magnitude == len(TENSORS)
        assert TENSORS[0] in found.summary


def test_one_wrong_tensor_of_unknown_origin_is_named():
    run = SyntheticRun()
    tensors = state_tensors(40)
    tensors["optimizer"][f"{TENSORS[1]}/exp_avg"] = raw("damaged").hex()
    fields = {**run.loads[1].fields, "optimizer": raw("sum of it").hex()}
    run.loads[1] = replace(run.loads[1], fields=fields, tensors=tensors)
    found = only(restored_state.run(run.view()), "restored-optimizer")
    assert (found.outcome, found.where.rank, found.magnitude) == ("differs", 1, 1)
    assert f"{TENSORS[1]}/exp_avg" in found.summary
    assert "it is that of" not in found.summary


def test_the_cursor_of_another_rank_is_recognised():
    run = SyntheticRun()
    fields = {**run.loads[0].fields, "cursor": state_fields(40, 1)["cursor"]}
    run.loads[0] = replace(run.loads[0], fields=fields)
    assert (
        "rank 1 of step-000040" in only(restored_state.run(run.view()), "restored-cursor").summary
    )


def test_a_load_without_its_manifest_is_not_passed():
    run = SyntheticRun()
    del run.manifests[40]
    assert {finding.outcome for finding in restored_state.run(run.view())} == {"not testable"}
    run.loads = []
    assert all("never restarted" in finding.summary for finding in restored_state.run(run.view()))
