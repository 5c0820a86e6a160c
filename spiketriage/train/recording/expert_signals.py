"""What a mixture of experts does in a step, router by router, as vectors of `wire.chain.SERIES`.

It never routes a token, and never communicates: load and drops are this rank's, or global when the
loads given are.
"""

# N tokens, E experts, C chosen experts a token.

from __future__ import annotations

import torch
from torch import Tensor

from spiketriage.train.recording.step_recorder import StepRecorder


@torch.no_grad()
def record_router(
    record: StepRecorder,
    logits_NE: Tensor,
    expert_NC: Tensor,
    *,
    valid_N: Tensor | None = None,
    kept_NC: Tensor | None = None,
    bias_E: Tensor | None = None,
    is_sigmoid: bool = False,
) -> None:
    """Load, drops, entropies and bias state of one router; called layer by layer, in order.

    `expert_NC` are the experts asked for, `kept_NC` (bool) those that had room. The entropy is that
    of softmax(logits), or of sigmoid scores normalised to 1 (DeepSeek-V3, arXiv 2412.19437, section
    2.1.2). All in fp32.
    """
    with record.clock:
        num_experts = logits_NE.shape[-1]
        if valid_N is None:
            valid = torch.ones_like(expert_NC[:, 0], dtype=torch.bool)
        else:
            valid = valid_N
        asked_NC = valid[:, None].expand_as(expert_NC)
        kept = asked_NC if kept_NC is None else kept_NC & asked_NC
        load_E = torch.zeros(num_experts, device=logits_NE.device)
        load_E.scatter_add_(0, expert_NC.reshape(-1), kept.reshape(-1).float())
        wide_NE = logits_NE.detach().float()
        if is_sigmoid:
            score_NE = wide_NE.sigmoid()
        else:
            score_NE = wide_NE.softmax(-1)
        share_NE = score_NE / score_NE.sum(-1, keepdim=True)
        entropy_N = -torch.special.xlogy(share_NE, share_NE).sum(-1)
        load_share_E = load_E / load_E.sum().clamp(min=1)
        record.series("moe/load", load_E)
        record.series("moe/drop_share", 1 - kept.sum() / asked_NC.sum().clamp(min=1))
        record.series(
            "moe/router_entropy",
            entropy_N.masked_fill(~valid, 0.0).sum() / valid.sum().clamp(min=1),
        )
        record.series("moe/load_entropy", -torch.special.xlogy(load_share_E, load_share_E).sum())
        if bias_E is not None:
            # A copy: the balancing step may move the bias before this step ends.
            record.series("moe/bias", bias_E.detach().clone())
