"""Clipping, schedules, loss scaling and accumulation in one process, against torch's own and fp64."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from spiketriage.errors import EvidenceError, RefusedError, UsageError
from spiketriage.practice.rehearsal.trainer.config import Config
from spiketriage.practice.rehearsal.trainer.schedule import learning_rate
from spiketriage.train.stabilizers import loss_scale
from spiketriage.train.stabilizers.accumulation import Accumulator
from spiketriage.train.stabilizers.clip import clip_, global_norm
from spiketriage.train.stabilizers.loss_scale import (
    ScaleRule,
    ScaleState,
    after,
    from_json,
    unscale_,
)
from spiketriage.train.stabilizers.schedules import WarmupCosine, WarmupStableDecay

COSINE = WarmupCosine(peak=3e-3, floor=3e-4, warmup_steps=40, total_steps=400)
WSD = WarmupStableDecay(peak=1.0, floor=0.1, warmup_steps=10, decay_start=100, decay_steps=20)


def with_grads(*grads: Tensor) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros_like(grad)) for grad in grads]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad.clone()
    return parameters


def test_a_norm_below_the_threshold_leaves_every_bit_and_one_above_it_is_scaled_by_torchs_factor() -> (
    None
):
    grads = [torch.tensor([3.0, 0.1]), torch.tensor([[4.0]])]
    mine, theirs = with_grads(*grads), with_grads(*grads)
    assert float(clip_(mine, 100.0).coefficient) == 1.0
    assert all(
        torch.equal(p.grad, g) for p, g in zip(mine, grads, strict=True) if p.grad is not None
    )
    done = clip_(mine, 1.0)
    norm = torch.nn.utils.clip_grad_norm_(theirs, 1.0)
    assert float(done.norm) == pytest.approx(float(norm), rel=1e-7)
    for one, other in zip(mine, theirs, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-7, atol=0)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_a_nonfinite_gradient_is_kept_for_the_evidence_and_reported(bad: float) -> None:
    grads = [torch.tensor([1.0, bad]), torch.tensor([1e3])]
    parameters = with_grads(*grads)
    done = clip_(parameters, 1.0)
    assert (bool(done.finite), float(done.coefficient)) == (False, 1.0)
    for parameter, grad in zip(parameters, grads, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad.view(torch.int32), grad.view(torch.int32))


def test_norms_survive_where_fp32_squares_and_bf16_sums_do_not() -> None:
    # each norm is 1e19, its square 1e38, and their sum is beyond fp32
    many = with_grads(*[torch.tensor([1e19])] * 16)
    assert float(global_norm(many)) == pytest.approx(4e19, rel=1e-6)
    half = with_grads(torch.full((10_000,), 0.01, dtype=torch.bfloat16))
    exact = 100 * float(torch.tensor(0.01, dtype=torch.bfloat16))
    assert float(global_norm(half)) == pytest.approx(exact, rel=1e-5)


def test_a_clip_without_parameters_or_threshold_is_refused() -> None:
    with pytest.raises(UsageError):
        clip_([], 1.0)
    with pytest.raises(UsageError):
        clip_(with_grads(torch.ones(1)), 0.0)


def test_warm_up_and_cosine_are_those_of_torchs_schedulers_and_of_the_rehearsal() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=COSINE.peak)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / 40, total_iters=39)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=360, eta_min=COSINE.floor)
    config = Config(seed=1, num_steps=500)
    for step in range(1, 500):
        assert COSINE.lr(step) == learning_rate(config, step)
        if step <= 400:
            assert COSINE.lr(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9), step
        else:
            assert COSINE.lr(step) == pytest.approx(COSINE.floor, rel=1e-12)
        optimizer.step()
        (warm if step < 40 else cosine).step()


def test_wsd_by_hand() -> None:
    seen = [WSD.lr(step) for step in (1, 5, 10, 11, 100, 105, 120, 10_000)]
    assert seen == pytest.approx([0.1, 0.5, 1.0, 1.0, 1.0, 0.1 + 0.9 * 0.5, 0.1, 0.1], rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(resume=st.integers(1, 100), later=st.integers(100, 500), step=st.integers(1, 600))
def test_an_extended_wsd_keeps_every_step_up_to_the_resume(
    resume: int, later: int, step: int
) -> None:
    extended = WSD.extended(resume_step=resume, decay_start=later)
    if step <= resume:
        assert extended.lr(step) == WSD.lr(step)
    assert extended.lr(step) >= WSD.lr(step)
    assert extended.lr(step + later - 100) == WSD.lr(step) or step + later - 100 <= later


def test_wsd_cannot_be_extended_out_of_its_decay() -> None:
    with pytest.raises(RefusedError, match="inside the decay from 100") as caught:
        WSD.extended(resume_step=101, decay_start=200)
    assert "step 100 or older" in caught.value.hint
    with pytest.raises(RefusedError, match="inside the decay from 50"):
        WSD.extended(resume_step=80, decay_start=50)


def test_schedules_without_sense_are_refused() -> None:
    for made in (
        lambda: WarmupCosine(peak=1.0, floor=0.0, warmup_steps=10, total_steps=10),
        lambda: WarmupStableDecay(
            peak=1.0, floor=0.0, warmup_steps=11, decay_start=10, decay_steps=5
        ),
        lambda: COSINE.lr(0),
    ):
        with pytest.raises(UsageError):
            made()


@settings(max_examples=40, deadline=None)
@given(finite=st.lists(st.booleans(), max_size=60), interval=st.integers(1, 5))
def test_the_scale_follows_torchs_grad_scaler(finite: list[bool], interval: int) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=interval)
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    state, rule = (
        ScaleState(scale=2.0**8),
        ScaleRule(interval=interval, floor=0.0, ceiling=math.inf),
    )
    for number, good in enumerate(finite):
        scaler.scale(parameter.sum())  # GradScaler makes its state here
        parameter.grad = torch.tensor([1.0 if good else math.inf])
        scaler.step(optimizer)
        scaler.update()
        state = after(state, finite=good, rule=rule)
        assert (state.scale, state.num_finite) == (
            scaler.get_scale(),
            scaler.state_dict()["_growth_tracker"],
        ), number
    assert state.num_skipped == finite.count(False)


@settings(max_examples=40, deadline=None)
@given(before=st.lists(st.booleans(), max_size=20), behind=st.lists(st.booleans(), max_size=20))
def test_a_restored_scale_goes_on_as_if_nothing_had_happened(
    before: list[bool], behind: list[bool]
) -> None:
    rule, state = ScaleRule(interval=3, growth=1.7, backoff=0.3), ScaleState()
    for good in before:
        state = after(state, finite=good, rule=rule)
    restored = from_json(json.loads(json.dumps(state.to_json())))
    assert restored == state
    for good in behind:
        state, restored = (after(one, finite=good, rule=rule) for one in (state, restored))
    assert restored == state
    assert float.hex(restored.scale) == float.hex(state.scale)


def test_a_partial_scale_state_is_refused_and_the_scale_has_a_floor_and_a_ceiling() -> None:
    for stored in (
        {},
        {"scale": 1.0},
        {**ScaleState().to_json(), "more": 1},
        {**ScaleState().to_json(), "scale": "1"},
    ):
        with pytest.raises(EvidenceError, match="loss-scale state"):
            from_json(stored)
    rule = ScaleRule(interval=1, floor=4.0, ceiling=16.0)
    low, high = ScaleState(scale=4.0), ScaleState(scale=16.0)
    for _ in range(3):
        low, high = after(low, finite=False, rule=rule), after(high, finite=True, rule=rule)
    assert (low.scale, low.num_skipped_in_row, high.scale) == (4.0, 3, 16.0)


def test_unscaling_is_exact_and_fp16_gradients_are_refused() -> None:
    grads = [torch.randn(50), torch.randn(3, 3)]
    parameters = with_grads(*[grad * 2.0**13 for grad in grads])
    assert unscale_([*parameters, nn.Parameter(torch.zeros(2))], 2.0**13)
    assert all(
        torch.equal(p.grad, g) for p, g in zip(parameters, grads, strict=True) if p.grad is not None
    )
    with pytest.raises(UsageError, match="float16"):
        unscale_(with_grads(torch.ones(1, dtype=torch.float16)), 2.0)


def test_scaling_saves_fp16_gradients_from_underflow_and_an_overflow_is_seen() -> None:
    weight = nn.Parameter(torch.tensor([2.0]))
    factor = torch.tensor(1e-9)  # below half of the smallest fp16 number
    for scale, expected in ((1.0, 0.0), (2.0**16, 1e-9)):
        (weight.to(torch.float16) * 1.0).float().mul(factor * scale).sum().backward()
        assert loss_scale.unscale_([weight], scale)
        assert weight.grad is not None
        assert float(weight.grad) == pytest.approx(expected, rel=1e-2, abs=1e-12)
        weight.grad = None
    (weight.to(torch.float16) * 1.0).float().mul(2.0**17).sum().backward()
    assert not loss_scale.unscale_([weight], 2.0**16)


def net(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def batches() -> list[Tensor]:
    """64 micro-batches of very unlike sizes."""
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(1 + (number * 7) % 13, 12, generator=draw) for number in range(64)]


def exact(model: nn.Sequential) -> dict[str, Tensor]:
    """Gradient of the mean over all rows at once, fp64, at the same (rounded) weights."""
    wide = net(torch.float64)
    wide.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    rows = torch.cat(batches()).to(next(model.parameters()).dtype).double()
    wide(rows).square().sum(1).mean().backward()
    return {name: p.grad for name, p in wide.named_parameters() if p.grad is not None}


def error(seen: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Largest error over tensors, relative to the tensor's largest element."""
    assert seen.keys() == wanted.keys()
    return max(
        float((seen[name].double() - wanted[name]).abs().max() / wanted[name].abs().max())
        for name in wanted
    )


def test_accumulation_equals_the_full_batch_whatever_the_sizes_of_its_micro_batches() -> None:
    model = net(torch.float32)
    accumulator = Accumulator(dict(model.named_parameters()))
    means: dict[str, Tensor] = {}
    num_rows = 0
    for rows in batches():
        model(rows).square().sum().backward()
        accumulator.add()
        num_rows += len(rows)
        model(rows).square().sum(1).mean().div(64).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            means[name] = means.get(name, torch.zeros(())) + parameter.grad
        model.zero_grad()
    assert accumulator.num_micro == 64
    assert error(accumulator.take(num_rows), exact(model)) < 1e-5
    assert (
        error(means, exact(model)) > 1e-2
    )  # the usual 1/num_micro weights rows by their micro-batch


def test_bf16_gradients_are_summed_in_fp32() -> None:
    model, plain = net(torch.bfloat16), net(torch.bfloat16)
    accumulator = Accumulator(dict(model.named_parameters()))
    for rows in batches():
        for one in (model, plain):
            one(rows.bfloat16()).square().sum().backward()
        accumulator.add()
    num_rows = sum(map(len, batches()))
    mine = accumulator.take(num_rows)
    theirs = {name: p.grad / num_rows for name, p in plain.named_parameters() if p.grad is not None}
    assert {one.dtype for one in mine.values()} == {torch.float32}
    assert error(mine, exact(model)) < 0.5 * error(theirs, exact(model))


def test_an_update_without_micro_batches_is_refused_and_unreached_parameters_are_absent() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    accumulator = Accumulator({"used": used, "unused": unused})
    with pytest.raises(RefusedError):
        accumulator.take(1)
    used.sum().backward()
    accumulator.add()
    assert used.grad is None
    assert {name: grad.tolist() for name, grad in accumulator.take(4).items()} == {
        "used": [0.25, 0.25]
    }
    with pytest.raises(RefusedError):
        accumulator.take(1)
