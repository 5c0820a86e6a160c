"""Cross-entropy with z-loss, soft-caps and QK-norm against fp64 references written another way."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from spiketriage.errors import UsageError
from spiketriage.train.stabilizers.cross_entropy import (
    IGNORE,
    cross_entropy_sum,
    global_count,
    linear_cross_entropy_sum,
    next_tokens,
    normalised,
)
from spiketriage.train.stabilizers.qk_norm import QKNorm
from spiketriage.train.stabilizers.softcap import cap_logits, capped_attention, score_mod

V, D = 17, 6


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def reference(
    hidden: Tensor, head: Tensor, labels: Tensor, z: float, cap: float | None
) -> tuple[Tensor, list[Tensor]]:
    """Objective sum and gradients of hidden and head, fp64, on the valid rows alone, by torch's own cross-entropy."""
    hidden, head = (
        hidden.detach().double().requires_grad_(),
        head.detach().double().requires_grad_(),
    )
    kept = labels != IGNORE
    logits = hidden[kept] @ head.T
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    loss = (
        F.cross_entropy(logits, labels[kept], reduction="sum")
        + z * logits.exp().sum(-1).log().square().sum()
    )
    return loss.detach(), list(torch.autograd.grad(loss, (hidden, head)))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9)),
    chunk=st.integers(1, 30),
    z=st.sampled_from([0.0, 1e-4, 0.1]),
    cap=st.sampled_from([None, 2.0, 30.0]),
)
def test_loss_and_gradients_are_those_of_fp64_for_every_mask_and_chunk(
    seed: int, shape: tuple[int, int], chunk: int, z: float, cap: float | None
) -> None:
    hidden, head = drawn(*shape, D, seed=seed, scale=2.0), drawn(V, D, seed=seed + 1)
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, V, shape, generator=draw)
    labels[torch.rand(shape, generator=draw) < 0.4] = IGNORE
    expected, grads = reference(hidden, head, labels, z, cap)
    hidden[labels == IGNORE] = float("nan")  # what padding may hold
    hidden.requires_grad_()
    head.requires_grad_()
    chunked = linear_cross_entropy_sum(
        hidden, head, labels, z_coefficient=z, cap=cap, chunk_tokens=chunk
    )
    whole = cross_entropy_sum((hidden @ head.T).detach(), labels, z_coefficient=z, cap=cap)
    for loss in (chunked, whole):
        assert float(loss.objective_sum.detach()) == pytest.approx(
            float(expected), rel=1e-5, abs=1e-6
        )
        assert int(loss.num_valid) == int((labels != IGNORE).sum())
    seen = torch.autograd.grad(chunked.objective_sum, (hidden, head))
    for one, other in zip(seen, grads, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
    assert not seen[0][labels == IGNORE].any()


def test_the_whole_logits_form_has_the_same_gradient_and_reports_its_parts() -> None:
    logits, labels = (
        drawn(2, 5, V, scale=3.0),
        torch.tensor([[1, 2, IGNORE, 3, 4], [IGNORE, 0, 16, 5, IGNORE]]),
    )
    logits[labels == IGNORE] = float("inf")
    logits.requires_grad_()
    loss = cross_entropy_sum(logits, labels, z_coefficient=0.5)
    loss.objective_sum.backward()
    wide = logits.detach().double()[labels != IGNORE].requires_grad_()
    logz = wide.logsumexp(-1)
    ce = (logz - wide[torch.arange(7), labels[labels != IGNORE]]).sum()
    (ce + 0.5 * (logz * logz).sum()).backward()
    assert logits.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(
        logits.grad[labels != IGNORE].double(), wide.grad, rtol=1e-5, atol=1e-6
    )
    assert not logits.grad[labels == IGNORE].any()
    parts = (loss.ce_sum, loss.logz_sum, loss.logz_square_sum)
    assert [float(part) for part in parts] == pytest.approx(
        [float(ce.detach()), float(logz.detach().sum()), float((logz * logz).detach().sum())],
        rel=1e-6,
    )
    assert not any(part.requires_grad for part in parts)


def test_z_loss_pulls_logz_to_zero_and_leaves_the_probabilities_alone() -> None:
    logits = (drawn(1, 4, V) + 40.0).requires_grad_()
    labels = torch.tensor([[1, 2, 3, 4]])
    before = logits.detach().softmax(-1)
    for _ in range(60):
        loss = cross_entropy_sum(logits, labels, z_coefficient=1.0)
        (grad,) = torch.autograd.grad(loss.objective_sum, logits)
        # along the one direction that cross-entropy cannot see: the same number added to every
        # logit
        logits = (logits.detach() - 0.1 * grad.sum(-1, keepdim=True)).requires_grad_()
    assert float(cross_entropy_sum(logits, labels).logz_square_sum) < 1e-6
    torch.testing.assert_close(logits.detach().softmax(-1), before, rtol=1e-4, atol=1e-6)


def test_chunks_hold_their_peak_to_a_chunk_of_logits() -> None:
    num, vocabulary, chunk = 64, 5000, 8
    hidden, head = drawn(num, D).requires_grad_(), drawn(vocabulary, D).requires_grad_()
    labels = torch.randint(0, vocabulary, (num,))
    sizes: list[int] = []
    with _Watch(sizes):
        linear_cross_entropy_sum(hidden, head, labels, chunk_tokens=chunk).objective_sum.backward()
    assert max(sizes) == chunk * vocabulary


class _Watch(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the size of everything that any operator returns."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.sizes = sizes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        self.sizes += [
            one.numel()
            for one in torch.utils._pytree.tree_leaves(result)
            if isinstance(one, Tensor)
        ]
        return result


def test_a_bf16_head_accumulates_its_gradient_in_fp32() -> None:
    hidden, head = drawn(512, D, seed=3).bfloat16(), drawn(V, D, seed=4).bfloat16()
    labels = torch.arange(512) % V
    _, (_, exact) = reference(hidden, head, labels, 0.0, None)
    errors = {}
    for chunk in (4, 512):
        weight = head.clone().requires_grad_()
        linear_cross_entropy_sum(
            hidden, weight, labels, chunk_tokens=chunk
        ).objective_sum.backward()
        assert weight.grad is not None
        assert weight.grad.dtype == torch.bfloat16
        errors[chunk] = float((weight.grad.double() - exact).norm() / exact.norm())
    # 128 chunks cost no more than the rounding of the products; a bf16 running sum would.
    assert errors[4] < 1.5 * errors[512] + 2**-9


def test_autocast_is_honoured_in_the_product_and_not_in_the_loss() -> None:
    hidden, head = drawn(8, D).requires_grad_(), drawn(V, D, seed=1).requires_grad_()
    labels = torch.arange(8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = linear_cross_entropy_sum(hidden, head, labels)
    rounded = F.linear(hidden.detach().bfloat16(), head.detach().bfloat16()).double()
    assert loss.objective_sum.dtype == torch.float32
    assert float(loss.objective_sum.detach()) == pytest.approx(
        float(F.cross_entropy(rounded, labels, reduction="sum")), rel=1e-6
    )
    loss.objective_sum.backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.float32


def test_labels_are_the_next_valid_tokens() -> None:
    tokens = torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]])
    valid = torch.tensor([[True, True, True, True], [True, True, False, False]])
    assert next_tokens(tokens).tolist() == [[6, 7, 8, IGNORE], [2, 3, 4, IGNORE]]
    assert next_tokens(tokens, valid).tolist() == [[6, 7, 8, IGNORE], [2, IGNORE, IGNORE, IGNORE]]


def test_a_step_without_targets_costs_nothing_and_moves_nothing() -> None:
    hidden, head = drawn(3, D).requires_grad_(), drawn(V, D).requires_grad_()
    loss = linear_cross_entropy_sum(hidden, head, torch.full((3,), IGNORE), z_coefficient=1.0)
    normalised(loss.objective_sum, global_count(loss.num_valid)).backward()
    assert float(loss.objective_sum.detach()) == 0
    assert hidden.grad is not None
    assert head.grad is not None
    assert not hidden.grad.any()
    assert not head.grad.any()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="do not fit"):
        cross_entropy_sum(drawn(2, 3, V), torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(UsageError, match="chunks of 0"):
        linear_cross_entropy_sum(
            drawn(2, D), drawn(V, D), torch.zeros(2, dtype=torch.int64), chunk_tokens=0
        )
    for label in (-1, V):  # never read as class 0
        with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
            cross_entropy_sum(drawn(1, V), torch.tensor([label]))


def attention_reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Capped attention, query by query over its own keys, so that no masked number exists."""
    result = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                keys = mask[b, 0, t].nonzero()[:, 0]
                if len(keys):
                    logits = cap * torch.tanh(
                        k[b, h, keys] @ q[b, h, t] / math.sqrt(q.shape[-1]) / cap
                    )
                    result[b, h, t] = logits.softmax(0) @ v[b, h, keys]
    return result


def test_capped_attention_and_its_gradients_are_those_of_fp64_without_the_masked_keys() -> None:
    q, k, v = (drawn(2, 2, 5, 4, seed=seed, scale=4.0) for seed in range(3))
    mask = torch.ones(5, 5).tril().bool().repeat(2, 1, 1, 1)
    mask[1, 0, 2] = False  # a query without any key
    wide = [one.double().requires_grad_() for one in (q, k, v)]
    narrow = [one.requires_grad_() for one in (q, k, v)]
    expected, seen = attention_reference(*wide, mask, 3.0), capped_attention(*narrow, mask, cap=3.0)
    torch.testing.assert_close(seen.double(), expected, rtol=1e-5, atol=1e-6)
    weight = drawn(2, 2, 5, 4, seed=9)
    (expected * weight).sum().backward()
    (seen * weight).sum().backward()
    for one, other in zip(narrow, wide, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-4, atol=1e-6)


def test_a_cap_behind_the_mask_would_let_masked_keys_in() -> None:
    logits = torch.tensor([1.0, 2.0, float("-inf")])
    leaking = cap_logits(logits, 2.0).softmax(0)
    right = cap_logits(logits[:2], 2.0).softmax(0)
    assert float(leaking[2]) > 0.01
    mask = torch.tensor([[[[True, True, False]]]])
    q, k = torch.ones(1, 1, 1, 1), logits.nan_to_num(neginf=9.0).view(1, 1, 3, 1)
    values = torch.tensor([[1.0], [0.0], [7.0]]).view(1, 1, 3, 1)
    assert float(capped_attention(q, k, values, mask, cap=2.0)) == pytest.approx(
        float(right[0]), rel=1e-6
    )


@settings(max_examples=60, deadline=None)
@given(x=st.floats(-1e6, 1e6), y=st.floats(-1e6, 1e6), cap=st.floats(0.1, 1e3))
def test_a_cap_is_bounded_monotone_and_odd(x: float, y: float, cap: float) -> None:
    low, high = cap_logits(torch.tensor([min(x, y), max(x, y)], dtype=torch.float64), cap).tolist()
    assert -cap <= low <= high <= cap
    assert cap_logits(torch.tensor(-x, dtype=torch.float64), cap) == -cap_logits(
        torch.tensor(x, dtype=torch.float64), cap
    )


def test_a_cap_computes_bf16_logits_in_fp32_and_must_be_positive() -> None:
    logits = drawn(100, scale=40.0).bfloat16()
    capped = cap_logits(logits, 30.0)
    assert capped.dtype == torch.float32
    torch.testing.assert_close(
        capped.double(), 30 * torch.tanh(logits.double() / 30), rtol=1e-6, atol=1e-6
    )
    with pytest.raises(UsageError):
        cap_logits(logits, 0.0)


@pytest.mark.slow
def test_flex_attention_takes_the_same_cap() -> None:
    q, k, v = (drawn(1, 2, 6, 16, seed=seed, scale=3.0) for seed in range(3))
    with pytest.warns(UserWarning, match="without torch.compile"):
        seen = flex_attention(q, k, v, score_mod=score_mod(4.0))
    everything = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    torch.testing.assert_close(
        seen, capped_attention(q, k, v, everything, cap=4.0), rtol=1e-4, atol=1e-5
    )


def test_qk_norm_is_torchs_rms_norm_in_fp64_forward_and_backward() -> None:
    norm = QKNorm(8)
    with torch.no_grad():
        norm.q_gain_K.copy_(drawn(8, seed=5))
        norm.k_gain_K.copy_(drawn(8, seed=6))
    q, k = (
        drawn(2, 3, 4, 8, seed=1, scale=9.0).requires_grad_(),
        drawn(2, 3, 4, 8, seed=2).requires_grad_(),
    )
    for mine, x, gain in zip(norm(q, k), (q, k), (norm.q_gain_K, norm.k_gain_K), strict=True):
        wide, wide_gain = (
            x.detach().double().requires_grad_(),
            gain.detach().double().requires_grad_(),
        )
        expected = F.rms_norm(wide, (8,), wide_gain, eps=1e-6)
        torch.testing.assert_close(mine.double(), expected, rtol=1e-5, atol=1e-6)
        weight = drawn(2, 3, 4, 8, seed=7)
        seen = torch.autograd.grad((mine * weight).sum(), (x, gain))
        for one, other in zip(
            seen, torch.autograd.grad((expected * weight).sum(), (wide, wide_gain)), strict=True
        ):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), growth=st.sampled_from([1.0, 4.0, 1e4]))
def test_attention_logits_stay_below_the_bound_however_large_q_and_k_grow(
    seed: int, growth: float
) -> None:
    norm = QKNorm(16)
    with torch.no_grad():
        norm.q_gain_K.copy_(drawn(16, seed=seed))
    q, k = drawn(1, 1, 20, 16, seed=seed + 1), drawn(1, 1, 20, 16, seed=seed + 2)
    calm, grown = (norm(q * g, k * g) for g in (1.0, growth))
    logits = grown[0] @ grown[1].transpose(-1, -2) / 4
    assert float(logits.detach().abs().max()) <= float(norm.logit_bound()) * (1 + 1e-5)
    torch.testing.assert_close(grown[0], calm[0], rtol=1e-3, atol=1e-3)


def test_a_padded_query_stays_zero_with_a_finite_gradient() -> None:
    norm, q = QKNorm(4), torch.zeros(1, 1, 2, 4, requires_grad=True)
    out, _ = norm(q, q.detach())
    out.sum().backward()
    assert not out.detach().any()
    assert q.grad is not None
    assert bool(torch.isfinite(q.grad).all())
    assert norm(q.bfloat16(), q)[0].dtype == torch.bfloat16
