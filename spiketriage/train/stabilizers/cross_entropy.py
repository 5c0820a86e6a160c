"""Causal cross-entropy with z-loss on valid targets, as a sum and a count.

It never takes a mean itself: a mean of means is another objective as soon as ranks or micro-batches
differ in padding.

- Tensor: the LM logits, one row a target; z-loss is `z · Σ logZ²` over the same rows (PaLM, arXiv
  2204.02311, section
  5, z = 1e-4).
- Precision: the product with the head in the caller's dtype (autocast is honoured); logits,
  soft-cap, log-sum-exp and sums in fp32, or fp64 when the input is fp64; the head's gradient is
  accumulated over chunks in fp32.
- Masking order: soft-cap, then log-sum-exp; rows without a target are zeroed before both, so that
  NaN in padding reaches neither the loss nor a gradient.
- Gradient: of the sum. `normalised` divides by the global count and undoes the averaging of DDP and
  FSDP.
- Sequence or context sharding: shift with `next_tokens` on the whole row, then split along L; count
  over data × context.

Not here: a head that is split over its vocabulary (vocab-parallel), and second derivatives of the
chunked form.
"""

# B rows, L positions, N = B·L targets, D model width, V vocabulary.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from spiketriage.errors import UsageError
from spiketriage.train.stabilizers.softcap import cap_logits

NAME = "z-loss"
LIFTS = ("linear_cross_entropy_sum", "cross_entropy_sum")
REMOVES = (
    "LM logits that drift together until exp and bf16 lose them, and losses weighted by rank "
    "instead of by token."
)
COST = (
    "One scalar all-reduce a step; head and loss took 1.1 (in chunks) to 1.4 times as long on "
    "a CPU."
)
WHEN = "From step 0 of every run; z = 1e-4 once logZ is seen to drift, or always in bf16."

IGNORE = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """Sums over this rank's valid targets, all of shape ().

    Only `objective_sum` carries a gradient.

    `ce_sum` in nats, `logz_sum` in nats, `logz_square_sum` in nats², `num_valid` int64.
    """

    objective_sum: Tensor
    ce_sum: Tensor
    logz_sum: Tensor
    logz_square_sum: Tensor
    num_valid: Tensor


def next_tokens(tokens_BL: Tensor, valid_BL: Tensor | None = None) -> Tensor:
    """Labels (B, L) int64.

    The token after each position, `IGNORE` where that token is not valid or does not exist.

    Call it before the row is split over ranks: shifting each part loses one target a border.
    """
    labels_BL = torch.full_like(tokens_BL, IGNORE, dtype=torch.int64)
    labels_BL[:, :-1] = tokens_BL[:, 1:]
    if valid_BL is not None:
        labels_BL[:, :-1].masked_fill_(~valid_BL[:, 1:], IGNORE)
    return labels_BL


def cross_entropy_sum(
    logits_BLV: Tensor, labels_BL: Tensor, *, z_coefficient: float = 0.0, cap: float | None = None
) -> TokenLoss:
    """Loss of logits (…, V) against labels (…) that are `IGNORE` or in [0, V).

    Raises:
        UsageError: the shapes do not belong together. IndexError (torch's own): a label is outside
        the vocabulary.
    """
    _same_shape(logits_BLV, labels_BL)
    objective, sums_3 = _terms(logits_BLV.flatten(0, -2), labels_BL.flatten(), z_coefficient, cap)
    return _token_loss(objective, sums_3, labels_BL)


def linear_cross_entropy_sum(
    hidden_BLD: Tensor,
    weight_VD: Tensor,
    labels_BL: Tensor,
    *,
    z_coefficient: float = 0.0,
    cap: float | None = None,
    chunk_tokens: int = 1024,
) -> TokenLoss:
    """The same loss from hidden state and head weight, holding one chunk of logits at a time.

    Memory is O(chunk_tokens · V) instead of O(N · V); both gradients are made in the forward pass,
    so the backward pass is two products with a scalar (as in Liger, arXiv 2410.10989, section 3.2).
    `weight_VD` is a plain tensor: under FSDP2 call this inside the forward of the module that owns
    the head.

    Raises:
        UsageError: the shapes do not belong together, or `chunk_tokens` is not positive.
    """
    _same_shape(hidden_BLD, labels_BL)
    if chunk_tokens < 1 or weight_VD.dim() != 2 or weight_VD.shape[1] != hidden_BLD.shape[-1]:
        raise UsageError(
            f"head {tuple(weight_VD.shape)}, hidden {tuple(hidden_BLD.shape)}, chunks of "
            f"{chunk_tokens}"
        )
    objective, sums_3 = _Chunked.apply(  # type: ignore[no-untyped-call]
        hidden_BLD.flatten(0, -2), weight_VD, labels_BL.flatten(), z_coefficient, cap, chunk_tokens
    )
    return _token_loss(objective, sums_3, labels_BL)


def global_count(num_valid: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Valid targets of all ranks of `group` (data × context ranks), int64 (); collective.

    Sum over the micro-batches of the step first. A step without any valid target counts 1, so that
    its loss is 0.
    """
    total = num_valid.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(total, group=group)
    return total.clamp(min=1)


def normalised(
    objective_sum: Tensor, num_valid_global: Tensor, *, num_averaged_ranks: int = 1
) -> Tensor:
    """What to call `backward()` on: the sum over the global count.

    `num_averaged_ranks` is the number of ranks over which the framework averages gradients (DDP and
    FSDP: their group's size; a trainer that sums: 1).
    """
    return objective_sum * (num_averaged_ranks / num_valid_global)


def _terms(
    logits_NV: Tensor, labels_N: Tensor, z_coefficient: float, cap: float | None
) -> tuple[Tensor, Tensor]:
    """The objective with its gradient, and the sums of cross-entropy, logZ and logZ², detached."""
    valid_N = labels_N != IGNORE
    wide = torch.promote_types(logits_NV.dtype, torch.float32)
    logits_NV = logits_NV.to(wide).masked_fill(~valid_N[:, None], 0.0)
    if cap is not None:
        logits_NV = cap_logits(logits_NV, cap)
    logz_N = logits_NV.logsumexp(-1)
    # A label that is neither IGNORE nor in the vocabulary stays as it is, and gather refuses it.
    target_N = logits_NV.gather(-1, labels_N.masked_fill(~valid_N, 0)[:, None])[:, 0]
    ce = (logz_N - target_N).masked_fill(~valid_N, 0.0).sum()
    logz_N = logz_N.masked_fill(~valid_N, 0.0)
    square = logz_N.square().sum()
    if z_coefficient:
        objective = ce + z_coefficient * square
    else:
        objective = ce
    return objective, torch.stack([ce, logz_N.sum(), square]).detach()


class _Chunked(torch.autograd.Function):
    """Loss and both gradients, chunk by chunk along N."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        labels_N: Tensor,
        z_coefficient: float,
        cap: float | None,
        chunk_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(weight_VD.dtype, torch.float32)
        weight = weight_VD.detach().requires_grad_()
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=wide)
        grad_hidden_ND = torch.zeros_like(hidden_ND)
        objective, sums_3 = hidden_ND.new_zeros((), dtype=wide), hidden_ND.new_zeros(3, dtype=wide)
        for start in range(0, len(labels_N), chunk_tokens):
            part = slice(start, start + chunk_tokens)
            labels = labels_N[part]
            with torch.enable_grad():
                # Zeroed here too: 0 · NaN of a padded row would otherwise reach the head's
                # gradient.
                hidden = (
                    hidden_ND[part]
                    .detach()
                    .masked_fill((labels == IGNORE)[:, None], 0.0)
                    .requires_grad_()
                )
                value, sums = _terms(F.linear(hidden, weight), labels, z_coefficient, cap)
                grad_hidden_ND[part], grad = torch.autograd.grad(value, (hidden, weight))
            grad_weight_VD += grad
            objective += value.detach()
            sums_3 += sums
        ctx.save_for_backward(grad_hidden_ND, grad_weight_VD.to(weight_VD.dtype))
        ctx.mark_non_differentiable(sums_3)
        return objective, sums_3

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_objective: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden_ND, grad_weight_VD = ctx.saved_tensors
        scaled = (grad_hidden_ND * grad_objective, grad_weight_VD * grad_objective)
        return (
            scaled[0].to(grad_hidden_ND.dtype),
            scaled[1].to(grad_weight_VD.dtype),
            None,
            None,
            None,
            None,
        )


def _same_shape(values: Tensor, labels: Tensor) -> None:
    if values.shape[:-1] != labels.shape:
        raise UsageError(f"labels {tuple(labels.shape)} do not fit rows of {tuple(values.shape)}")


def _token_loss(objective: Tensor, sums_3: Tensor, labels: Tensor) -> TokenLoss:
    return TokenLoss(
        objective_sum=objective,
        ce_sum=sums_3[0],
        logz_sum=sums_3[1],
        logz_square_sum=sums_3[2],
        num_valid=(labels != IGNORE).sum(),
    )
