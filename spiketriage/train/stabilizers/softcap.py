"""Soft-capping of LM logits and attention logits: `cap · tanh(x / cap)`, smooth and monotone.

It never sees a masked value: the cap comes first and the mask after it, because tanh would lift
-inf to -cap.

- Tensor: LM logits before log-sum-exp, or q·k/√K before the mask (Gemma 2, arXiv 2408.00118,
  section 2: 30 and 50).
- Precision: tanh in fp32 (fp64 stays fp64); capped logits are returned wide, attention output in
  the dtype of q.
- Masking order: scale, cap, mask, softmax; a masked key weighs exactly 0. A query without any key
  gives 0 and a gradient of 0.
- Gradient: 1 - (y / cap)², so it dies where |x| ≫ cap. A cap holds logits, it does not bring them
  back: watch their maximum.
"""

# B rows, H heads, T queries, S keys, K head width.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spiketriage.errors import UsageError

NAME = "softcap"
LIFTS = ("cap_logits", "capped_attention", "score_mod")
REMOVES = (
    "LM or attention logits that run away until softmax is one-hot and its gradient is zero or "
    "infinite."
)
COST = (
    "A tanh a logit; attention needs a kernel that knows it (FlexAttention) or the written-out "
    "form here."
)
WHEN = (
    "When the attention maximum or logZ grows although QK-norm or z-loss is on, or when the "
    "architecture has it."
)


def cap_logits(logits: Tensor, cap: float) -> Tensor:
    """`cap · tanh(logits / cap)`, any shape, fp32 (fp64 for fp64 input); |result| ≤ cap.

    Raises:
        UsageError: `cap` is not positive.
    """
    if not cap > 0:
        raise UsageError(f"a soft-cap is positive, not {cap}")
    wide = torch.promote_types(logits.dtype, torch.float32)
    return torch.tanh(logits.to(wide) / cap) * cap


def capped_attention(
    q_BHTK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    mask_B1TS: Tensor,
    *,
    cap: float,
    scale: float | None = None,
) -> Tensor:
    """Attention (B, H, T, K) with capped logits, written out.

    `mask_B1TS` is True where a query may attend.

    `scale` defaults to 1/√K. Logits and softmax are fp32; O(T · S) memory.
    """
    wide = torch.promote_types(q_BHTK.dtype, torch.float32)
    scale = q_BHTK.shape[-1] ** -0.5 if scale is None else scale
    logits_BHTS = cap_logits(q_BHTK.to(wide) @ k_BHSK.to(wide).transpose(-1, -2) * scale, cap)
    # A large negative number in place of -inf: a row of nothing but -inf would be NaN, forward and
    # backward.
    lowest = torch.finfo(wide).min
    weights_BHTS = (
        logits_BHTS.masked_fill(~mask_B1TS, lowest).softmax(-1).masked_fill(~mask_B1TS, 0.0)
    )
    return (weights_BHTS @ v_BHSK.to(wide)).to(q_BHTK.dtype)


def score_mod(cap: float) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The same cap for torch's `flex_attention`, which applies `score_mod` before its block mask.

    Its compiled kernel on an accelerator is not tested here; the uncompiled form is.
    """

    def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return cap_logits(score, cap)

    return capped
