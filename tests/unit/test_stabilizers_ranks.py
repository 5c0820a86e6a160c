"""Stabilizers on four real ranks.

Every rank does the same, and what it does is what one fp64 process would do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import stabilizer_ranks as ranks
import torch
import torch.nn.functional as F
from torch import Tensor

pytestmark = pytest.mark.slow

LAYOUTS = ("replicated", "fsdp2", "hsdp", "tensor_parallel")
Told = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What each rank reported of a case."""
    everything = ranks.start(tmp_path_factory.mktemp("ranks"))
    return lambda case: [one[case] for one in everything]


def reference(layout: str) -> tuple[float, list[Tensor]]:
    """Norm and clipped gradients of the whole batch in one process, fp64."""
    model = ranks.model().double()
    ranks.objective(model, ranks.rows(torch.float64)).backward()
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if layout == "tensor_parallel":
        # The plain gain: a registered parameter of the root comes first.
        grads = [torch.tensor([3.0, -4.0, 12.0], dtype=torch.float64), *grads]
    norm = math.sqrt(sum(float((grad * grad).sum()) for grad in grads))
    return norm, [grad * ranks.MAX_NORM / norm for grad in grads]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_global_norm_and_the_clipped_gradients_are_those_of_one_fp64_process(
    layout: str, told: Told
) -> None:
    norm, grads = reference(layout)
    for one in told(layout):
        assert float(one["norm"]) == pytest.approx(norm, rel=1e-6)
        assert bool(one["finite"])
        assert len(one["grads"]) == len(grads)
        for seen, expected in zip(one["grads"], grads, strict=True):
            torch.testing.assert_close(seen.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_rank_clips_by_the_same_bits(layout: str, told: Told) -> None:
    for key in ("norm", "coefficient"):
        assert len({float(one[key]) for one in told(layout)}) == 1
    assert len(set(told(layout)[0]["norms_of_ranks"].tolist())) == 1


@pytest.mark.parametrize("layout", ["replicated", "fsdp2", "hsdp"])
def test_the_norm_is_that_of_torch_where_torch_knows_the_layout(layout: str, told: Told) -> None:
    for one in told(layout):
        assert float(one["norm"]) == pytest.approx(float(one["torch"]), rel=1e-6)


def test_clipping_by_a_local_norm_is_caught_because_the_norms_of_the_ranks_differ(
    told: Told,
) -> None:
    for layout in ("fsdp2", "hsdp", "tensor_parallel"):
        seen = told(layout)[0]
        assert len(set(seen["locals_of_ranks"].tolist())) > 1, layout
        assert max(seen["locals_of_ranks"].tolist()) < float(seen["norm"])
    # The same comparison shows replicas that parted before the clip: rank 1 missed its reduction.
    assert told("desynchronised")[3]["norms"].tolist() == [5.0, 10.0, 5.0, 5.0]


def test_a_nonfinite_norm_leaves_every_gradient_as_it_was_on_every_rank(told: Told) -> None:
    for one in told("nonfinite"):
        assert (bool(one["finite"]), float(one["coefficient"]), one["same"]) == (False, 1.0, True)
        assert math.isinf(float(one["norm"]))


def test_pipeline_stages_with_other_parameters_count_together(told: Told) -> None:
    # rank 0: [0]; rank 1: [1]; rank 2: [2, 3]; rank 3: [3, 4, 5]; each value twice
    expected = math.sqrt(2 * (0 + 1 + 4 + 9 + 9 + 16 + 25))
    assert [float(one["norm"]) for one in told("stages")] == pytest.approx([expected] * 4, rel=1e-7)


def test_a_loss_split_over_data_and_context_ranks_is_the_loss_of_the_whole_batch(
    told: Told,
) -> None:
    tokens_BL, valid_BL, hidden_BLD, head_VD = ranks.tokens()
    hidden, head = hidden_BLD.double().requires_grad_(), head_VD.double().requires_grad_()
    logits = (hidden @ head.T)[:, :-1]
    kept = valid_BL[:, 1:]
    ce = F.cross_entropy(logits[kept], tokens_BL[:, 1:][kept], reduction="sum")
    (ce + ranks.Z * logits[kept].logsumexp(-1).square().sum()).div(kept.sum()).backward()
    assert hidden.grad is not None
    for rank, one in enumerate(told("language_model")):
        assert int(one["num_valid"]) == int(kept.sum()) == 15 + 8 + 2 + 13
        assert float(one["mean"]) == pytest.approx(float(ce.detach() / kept.sum()), rel=1e-6)
        torch.testing.assert_close(one["head_grad"].double(), head.grad, rtol=1e-5, atol=1e-7)
        data, context = divmod(rank, 2)
        part = hidden.grad[2 * data : 2 * data + 2, 8 * context : 8 * context + 8]
        torch.testing.assert_close(one["hidden_grad"].double(), part, rtol=1e-5, atol=1e-8)


def test_shifting_after_the_split_and_averaging_means_are_other_losses(told: Told) -> None:
    one = told("language_model")[0]
    # Three of the four rows are valid across the border between their two parts.
    assert int(one["num_valid"]) - int(one["num_valid_late"]) == 3
    assert abs(float(one["mean"] - one["mean_of_means"])) > 0.01 * float(one["mean"])


def test_an_overflow_on_one_rank_skips_the_step_on_all_and_leaves_the_state_alone(
    told: Told,
) -> None:
    for one in told("overflow"):
        assert one["taken"] == [True, False, True, True]
        assert one["kept"] == [False, True, False, False]
        assert one["scales"] == [1024.0, 512.0, 512.0, 1024.0]
        assert one["skipped"] == 1


def test_the_balance_bias_and_a_shared_scale_are_equal_on_every_rank(told: Told) -> None:
    for one in told("balance"):
        assert one["balanced"].tolist() == [0.0] * 4
        assert one["bias"].tolist() == [-0.5, 0.5, 0.5, 0.5]
        assert int(one["updates"]) == 2
        assert float(one["scale"]) == 448.0 / 4
