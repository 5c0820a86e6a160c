"""Mixture of experts.

Router z-loss, load balancing by a bias, and the statistics that show a router going wrong.

It never lets the bias into a gate's weight or a gradient: it moves the choice of experts and
nothing else.

- Tensor: router logits (N, E) before sigmoid or softmax; padding tokens are left out of loss, load
  and entropy.
- Precision: everything in fp32 (fp64 stays fp64), loads int64, the bias fp32.
- Distribution: losses are sum and count, to be divided by the global count as in `cross_entropy`;
  loads are summed over the data ranks before the bias moves, so the bias is equal on all of them.
- Gradient: z-loss through log-sum-exp; gate weights through the chosen scores alone. The bias has
  state, no gradient, and belongs in the generation: a run that forgets it routes by other experts
  from the first step on.
"""

# N tokens, E experts, C chosen experts a token.

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from spiketriage.errors import UsageError

NAME = "router-balance"
LIFTS = ("BalanceBias", "router_z_loss_sum")
REMOVES = (
    "Router logits that blow up, experts that starve while others drop tokens, and aux losses "
    "that fight the LM loss."
)
COST = "A log-sum-exp over the experts, and one all-reduce of E numbers a layer and step."
WHEN = (
    "With experts only, from step 0; z = 1e-3, bias speed 1e-3, and 0 for the last steps of "
    "the run."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Where each token goes: `expert_NC` int64, `gate_NC` fp32 summing to 1 (0: padding)."""

    expert_NC: Tensor
    gate_NC: Tensor
    valid_N: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStatistics:
    """`load_E` assignments, int64; shares and entropies (nats) fp32 ().

    `max_violation` is (largest load - mean) / mean (arXiv 2408.15664, equation 4); `token_entropy`
    the mean over tokens of the router's entropy; `load_entropy` that of the load, log(E) when
    balanced.
    """

    load_E: Tensor
    dropped_share: Tensor
    max_violation: Tensor
    token_entropy: Tensor
    load_entropy: Tensor


def router_z_loss_sum(logits_NE: Tensor, valid_N: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of (log Σ exp logits)² over valid tokens, and their number (arXiv 2202.08906, eq. 5)."""
    wide = torch.promote_types(logits_NE.dtype, torch.float32)
    logz_N = logits_NE.to(wide).masked_fill(~valid_N[:, None], 0.0).logsumexp(-1)
    return logz_N.masked_fill(~valid_N, 0.0).square().sum(), valid_N.sum()


class BalanceBias(nn.Module):
    """Bias-based balancing without an auxiliary loss (arXiv 2408.15664, algorithm 1).

    `bias_E` fp32 and `num_updates` int64 are buffers and so part of `state_dict()`.
    """

    bias_E: Tensor
    num_updates: Tensor

    def __init__(self, num_experts: int, *, speed: float = 1e-3) -> None:
        super().__init__()
        self.speed = speed
        self.register_buffer("bias_E", torch.zeros(num_experts))
        self.register_buffer("num_updates", torch.zeros((), dtype=torch.int64))

    def route(self, logits_NE: Tensor, valid_N: Tensor, num_chosen: int) -> Routing:
        """The experts with the largest sigmoid(logit) + bias, weighted by sigmoid(logit) alone.

        Raises:
            UsageError: more experts are asked for than there are.
        """
        if not 1 <= num_chosen <= len(self.bias_E):
            raise UsageError(f"{num_chosen} of {len(self.bias_E)} experts cannot be chosen")
        wide = torch.promote_types(logits_NE.dtype, torch.float32)
        score_NE = logits_NE.to(wide).masked_fill(~valid_N[:, None], 0.0).sigmoid()
        expert_NC = (score_NE.detach() + self.bias_E).topk(num_chosen, dim=-1).indices
        gate_NC = score_NE.gather(-1, expert_NC)
        gate_NC = gate_NC / gate_NC.sum(-1, keepdim=True).clamp(min=torch.finfo(wide).tiny)
        return Routing(
            expert_NC=expert_NC,
            gate_NC=gate_NC.masked_fill(~valid_N[:, None], 0.0),
            valid_N=valid_N,
        )

    @torch.no_grad()
    def update(self, load_E: Tensor, *, group: dist.ProcessGroup | None = None) -> None:
        """Move each bias by `speed` towards the mean load; once an optimizer step, after it.

        `load_E` counts this rank's step (all micro-batches); collective over `group` when a process
        group exists. Not called in a step that is skipped.
        """
        total_E = load_E.detach().clone()
        if dist.is_initialized():
            dist.all_reduce(total_E, group=group)
        # Whole numbers: sign(sum - E · load) is exact, where a mean in floats may miss the tie.
        self.bias_E += self.speed * torch.sign(total_E.sum() - total_E * len(total_E))
        self.num_updates += 1


def load(routing: Routing, num_experts: int) -> Tensor:
    """Assignments of valid tokens to each expert, int64 (E,)."""
    chosen = routing.expert_NC[routing.valid_N].flatten()
    return torch.bincount(chosen, minlength=num_experts)


def kept(routing: Routing, num_experts: int, capacity: int) -> Tensor:
    """Which assignments fit when an expert takes `capacity` of them, bool (N, C).

    First choices go before second ones, earlier tokens before later ones (GShard, arXiv 2006.16668,
    algorithm 1); padding takes no room and is not kept.
    """
    num_tokens, num_chosen = routing.expert_NC.shape
    order = routing.expert_NC.T.reshape(-1)
    wanted = (
        torch.nn.functional.one_hot(order, num_experts)
        * routing.valid_N.repeat(num_chosen)[:, None]
    )
    place = (wanted.cumsum(0) * wanted).sum(-1)
    return ((place >= 1) & (place <= capacity)).view(num_chosen, num_tokens).T


def statistics(
    routing: Routing, logits_NE: Tensor, kept_NC: Tensor | None = None
) -> RouterStatistics:
    """Load, drops and entropies of this rank's valid tokens, without a gradient.

    Without `kept_NC` nothing was dropped.
    """
    num_experts = logits_NE.shape[-1]
    load_E = load(routing, num_experts)
    num = load_E.sum().clamp(min=1).float()
    if kept_NC is None:
        num_kept = load_E.sum()
    else:
        num_kept = (kept_NC & routing.valid_N[:, None]).sum()
    chance_NE = logits_NE.detach()[routing.valid_N].float().softmax(-1)
    entropy_N = torch.special.entr(chance_NE).sum(-1)
    return RouterStatistics(
        load_E=load_E,
        dropped_share=1 - num_kept / num if bool(load_E.any()) else torch.zeros(()),
        max_violation=load_E.max() * num_experts / num - 1,
        token_entropy=entropy_N.sum() / max(len(entropy_N), 1),
        load_entropy=torch.special.entr(load_E / num).sum(),
    )
