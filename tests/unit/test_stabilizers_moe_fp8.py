"""FP8 against the list of all 256 codes, and the router against loops written by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from spiketriage.errors import EvidenceError, UsageError
from spiketriage.train.stabilizers import fp8, moe

FORMS = (fp8.E4M3, fp8.E5M2)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def codes(form: fp8.Format) -> list[float]:
    """Every finite value of the format, by its definition and not by a cast.

    Sign, exponent, mantissa.
    """
    mantissa_bits, bias = (3, 7) if form.name == "e4m3" else (2, 15)
    values = set()
    for code in range(128):
        exponent, mantissa = code >> mantissa_bits, code & (2**mantissa_bits - 1)
        if form.name == "e4m3" and code == 127:
            continue  # NaN
        if form.name == "e5m2" and exponent == 31:
            continue  # inf and NaN
        scale = 2.0 ** (max(exponent, 1) - bias - mantissa_bits)
        values.add((mantissa + (2**mantissa_bits if exponent else 0)) * scale)
    return sorted(values | {-value for value in values})


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_value_becomes_the_nearest_of_all_codes_and_large_ones_the_largest(
    form: fp8.Format,
) -> None:
    table = torch.tensor(codes(form), dtype=torch.float64)
    assert float(table.max()) == form.largest
    values = drawn(4000) * 10 ** (drawn(4000, seed=1) * 3)
    seen = fp8.quantise(values, torch.ones(()), form)
    distance = (values.double()[:, None] - table).abs()
    # ties may go either way here: the distance is what must be least
    torch.testing.assert_close(
        (values.double() - seen.values.double()).abs(), distance.min(1).values, rtol=0, atol=0
    )
    reach = (
        table[-1] + (table[-1] - table[-2]) / 2
    )  # beyond it the largest code is not the nearest of a longer list
    assert float(seen.saturated_share) == float((values.abs() > reach).double().mean().float())
    nearest = table[distance.argmin(1)]
    assert float(seen.underflow_share) == pytest.approx(
        float(((nearest == 0) & (values != 0)).double().mean())
    )
    assert float(seen.underflow_share) > 0
    assert float(seen.saturated_share) > 0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), exponent=st.integers(-30, 30), margin=st.integers(0, 2))
def test_current_scaling_never_saturates_and_errs_by_half_a_step(
    seed: int, exponent: int, margin: int
) -> None:
    values = drawn(64, seed=seed) * 2.0**exponent
    seen = fp8.quantise_current(values, fp8.E4M3, margin=margin)
    assert float(seen.saturated_share) == 0
    assert float(seen.scale) == pytest.approx(448 / 2**margin / float(values.abs().max()), rel=1e-6)
    # 3 mantissa bits: half of 2^-3 relative, or half of the smallest subnormal 2^-9, plus fp32
    # rounding
    bound = torch.maximum(values.abs() * 2.0**-4, 2.0**-10 / seen.scale) * 1.001
    assert bool(((seen.values - values).abs() <= bound).all())


@pytest.mark.parametrize(
    "values", [torch.zeros(4), torch.zeros(0), torch.tensor([1.0, float("inf")])]
)
def test_nothing_and_nonfinite_give_a_scale_that_harms_nothing(values: Tensor) -> None:
    delayed = fp8.DelayedScale(fp8.E4M3, history_len=4)
    delayed.quantise(torch.tensor([7.0]))
    kept = float(delayed.scale)
    assert kept == 64.0
    seen = delayed.quantise(values)
    assert float(delayed.scale) == kept
    assert bool(torch.isfinite(delayed.history_A).all())
    assert bool(torch.isfinite(seen.values).all())
    assert float(fp8.quantise_current(values, fp8.E5M2).scale) == 1.0
    assert math.isnan(
        float(fp8.quantise(torch.tensor([float("nan")]), torch.ones(()), fp8.E5M2).values)
    )


def test_delayed_scaling_saturates_at_a_jump_says_so_and_follows_the_maximum_of_its_history() -> (
    None
):
    delayed = fp8.DelayedScale(fp8.E4M3, history_len=3)
    scales, shares = [], []
    for amax in (1.0, 1.0, 100.0, 1.0, 1.0, 1.0, 1.0):
        shares.append(float(delayed.quantise(torch.tensor([amax, amax / 1000])).saturated_share))
        scales.append(float(delayed.scale))
    assert shares == [0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0]
    assert scales == pytest.approx([448.0, 448.0, 4.48, 4.48, 4.48, 448.0, 448.0])


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(0, 8), amaxes=st.lists(st.floats(1e-3, 1e3), min_size=8, max_size=8))
def test_a_history_from_a_generation_goes_on_bit_for_bit(
    cut: int, amaxes: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path: Path = tmp_path_factory.mktemp("state") / "fp8.safetensors"
    through, resumed = (fp8.linear_scales(history_len=4) for _ in range(2))
    one, two = [], []
    for number, amax in enumerate(amaxes):
        if number == cut:
            save_file(through.state_tensors("blocks.0"), path)
            resumed.load_state_tensors("blocks.0", load_file(path))
        values = drawn(5, seed=number) * amax
        one.append(through.inputs.quantise(values).values)
        if number >= cut:
            two.append(resumed.inputs.quantise(values).values)
    assert all(torch.equal(a, b) for a, b in zip(one[cut:], two, strict=True))
    assert torch.equal(through.inputs.history_A, resumed.inputs.history_A) or cut == 8


def test_a_forgotten_history_is_another_run_and_a_partial_one_is_refused() -> None:
    through = fp8.DelayedScale(fp8.E4M3, history_len=4)
    through.quantise(torch.tensor([1000.0]))
    fresh = fp8.DelayedScale(fp8.E4M3, history_len=4)
    after = torch.tensor([900.0])
    assert float(fresh.quantise(after).saturated_share) == 1.0
    assert float(through.quantise(after).saturated_share) == 0.0
    state = through.state_tensors("x")
    longer = {**state, "x/amax_history": torch.zeros(5)}
    for stored in ({}, {"x/scale": state["x/scale"]}, longer):
        with pytest.raises(EvidenceError, match="x/amax_history"):
            fresh.load_state_tensors("x", stored)


def test_a_linear_layer_and_both_gradients_stay_within_the_formats_error_of_fp64() -> None:
    inputs, weight = drawn(32, 64).requires_grad_(), (drawn(16, 64, seed=1) / 8).requires_grad_()
    upstream = drawn(32, 16, seed=2)
    scales = fp8.linear_scales(history_len=2)
    for _ in range(2):  # the first pass only fills the history
        out = fp8.linear(inputs, weight, scales)
        seen = torch.autograd.grad((out * upstream).sum(), (inputs, weight))
    wide = [one.detach().double().requires_grad_() for one in (inputs, weight)]
    exact = wide[0] @ wide[1].T
    grads = torch.autograd.grad((exact * upstream).sum(), wide)
    # relative error of a random sum: about 2^-4 / √3 an operand in E4M3, 2^-3 / √3 in E5M2
    for one, other, bound in zip((out, *seen), (exact, *grads), (0.05, 0.1, 0.1), strict=True):
        relative = float((one.detach().double() - other.detach()).norm() / other.detach().norm())
        assert 1e-3 < relative < bound
    assert scales.grad.last is not None
    assert float(scales.grad.last.saturated_share) == 0


def router(num: int, num_experts: int, seed: int) -> tuple[Tensor, Tensor]:
    valid = torch.rand(num, generator=torch.Generator().manual_seed(seed)) < 0.8
    return drawn(num, num_experts, seed=seed), valid


def test_router_z_loss_is_the_sum_over_valid_tokens() -> None:
    logits, valid = router(20, 5, seed=3)
    exact = logits[valid].double().requires_grad_()
    reference = exact.exp().sum(-1).log().square().sum()
    reference.backward()
    logits[~valid] = float("nan")
    logits.requires_grad_()
    total, count = moe.router_z_loss_sum(logits, valid)
    total.backward()
    assert int(count) == int(valid.sum())
    assert float(total.detach()) == pytest.approx(float(reference.detach()), rel=1e-6)
    assert logits.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(logits.grad[valid].double(), exact.grad, rtol=1e-5, atol=1e-6)
    assert not logits.grad[~valid].any()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), num_chosen=st.integers(1, 4), capacity=st.integers(1, 12))
def test_routing_load_drops_and_entropy_are_those_of_a_loop(
    seed: int, num_chosen: int, capacity: int
) -> None:
    logits, valid = router(12, 4, seed)
    balance = moe.BalanceBias(4)
    balance.bias_E.copy_(drawn(4, seed=seed + 1))
    routing = balance.route(logits, valid, num_chosen)
    kept = moe.kept(routing, 4, capacity)
    load, taken, dropped, entropy = [0] * 4, [0] * 4, 0, 0.0
    chosen_of: dict[int, list[int]] = {}
    for token in range(12):
        score = torch.sigmoid(logits[token].double())
        chosen = sorted(range(4), key=lambda e, s=score: -float(s[e] + balance.bias_E[e]))[
            :num_chosen
        ]
        if not valid[token]:
            assert not routing.gate_NC[token].any()
            assert not kept[token].any()
            continue
        chosen_of[token] = chosen
        assert routing.expert_NC[token].tolist() == chosen
        gates = score[chosen] / score[chosen].sum()
        torch.testing.assert_close(routing.gate_NC[token].double(), gates, rtol=1e-5, atol=1e-6)
        chance = torch.softmax(logits[token].double(), 0).tolist()
        entropy -= sum(p * math.log(p) for p in chance)
    for place in range(num_chosen):
        for token, chosen in chosen_of.items():
            expert = chosen[place]
            load[expert] += 1
            taken[expert] += 1
            assert bool(kept[token, place]) == (taken[expert] <= capacity)
            dropped += taken[expert] > capacity
    told = moe.statistics(routing, logits, kept)
    assert told.load_E.tolist() == load
    total = sum(load)
    assert float(told.dropped_share) == pytest.approx(dropped / total if total else 0.0, abs=1e-6)
    if total:
        assert float(told.token_entropy) == pytest.approx(entropy / len(chosen_of), rel=1e-5)
        assert float(told.max_violation) == pytest.approx(max(load) / (total / 4) - 1, rel=1e-5)
        expected = -sum(n / total * math.log(n / total) for n in load if n)
        assert float(told.load_entropy) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_the_bias_evens_the_load_moves_no_gate_and_takes_no_gradient() -> None:
    skew = torch.tensor([2.0, 1.0, 0.0, -1.0])
    balance = moe.BalanceBias(4, speed=0.01)
    valid = torch.ones(400, dtype=torch.bool)
    spread = []
    for step in range(300):
        logits = (drawn(400, 4, seed=step) + skew).requires_grad_()
        routing = balance.route(logits, valid, 1)
        told = moe.statistics(routing, logits)
        spread.append(float(told.max_violation))
        balance.update(told.load_E)
    assert spread[0] > 0.8
    assert sum(spread[-50:]) / 50 < 0.2
    assert not balance.bias_E.requires_grad
    routing = balance.route(logits, valid, 2)
    score = logits.detach().sigmoid().gather(1, routing.expert_NC)
    torch.testing.assert_close(routing.gate_NC.detach(), score / score.sum(1, keepdim=True))
    (grad,) = torch.autograd.grad((routing.gate_NC * drawn(400, 2)).sum(), logits)
    assert bool(torch.isfinite(grad).all())
    assert bool(grad.any())


def test_the_bias_is_in_the_state_dict_and_a_run_that_forgets_it_routes_otherwise() -> None:
    logits, valid = router(50, 4, seed=5)
    balance, restored, forgotten = (moe.BalanceBias(4, speed=0.3) for _ in range(3))
    for _ in range(5):
        balance.update(moe.load(balance.route(logits, valid, 1), 4))
    restored.load_state_dict(balance.state_dict())
    routed = [one.route(logits, valid, 1).expert_NC for one in (balance, restored, forgotten)]
    assert torch.equal(routed[0], routed[1])
    assert not torch.equal(routed[0], routed[2])
    assert int(restored.num_updates) == 5
    with pytest.raises(UsageError):
        balance.route(logits, valid, 5)
