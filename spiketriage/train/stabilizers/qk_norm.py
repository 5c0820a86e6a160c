"""QK-norm: queries and keys are RMS-normalised per head, so that attention logits stay bounded.

It never touches the values or the mask, and it changes no sum over positions: each vector is
normalised alone.

- Tensor: q and k after the projection and the split into heads, before rotary embedding (a rotation
  keeps the norm); arXiv 2302.05442 section 2 (ViT-22B), arXiv 2501.00656 section 3 (OLMo 2).
- Precision: mean square and quotient in fp32 (fp64 stays fp64), result in the input's dtype.
- Masking order: before scale, cap and mask. A zero vector (padding) stays zero and its gradient is
  finite.
- Gradient: orthogonal to the input, so q and k no longer grow along themselves. The two gains are
  shared by all heads: under tensor parallelism each rank has a part of their gradient, to be summed
  over the TP group.
"""

# B rows, H heads, T positions, K head width.

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

NAME = "qk-norm"
LIFTS = ("QKNorm",)
REMOVES = (
    "Attention logits that grow without bound with the norms of q and k (entropy collapse, "
    "then a spike)."
)
COST = (
    "Two RMS norms over the head width a layer, and 2·K gains; not free to retrofit into a "
    "trained model."
)
WHEN = (
    "From step 0 when the learning rate is high or the depth large; it cured Marin-32B in mid-run."
)


class QKNorm(nn.Module):
    """Normalises q (B, H, T, K) and k (B, H, S, K), each with a learned gain over K."""

    def __init__(self, head_width: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.q_gain_K = nn.Parameter(torch.ones(head_width))
        self.k_gain_K = nn.Parameter(torch.ones(head_width))

    def forward(self, q_BHTK: Tensor, k_BHSK: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised q and k in their own dtypes."""
        return rms_normalised(q_BHTK, self.q_gain_K, self.eps), rms_normalised(
            k_BHSK, self.k_gain_K, self.eps
        )

    def logit_bound(self) -> Tensor:
        """The largest |q·k|/√K that is possible now, fp32 (): √K · max|q gain · k gain|.

        That is the inequality of Cauchy and Schwarz.
        """
        product_K = (self.q_gain_K.detach().float() * self.k_gain_K.detach().float()).abs()
        return product_K.max() * math.sqrt(product_K.numel())


def rms_normalised(x_K: Tensor, gain_K: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x²) + eps) · gain` over the last axis (arXiv 1910.07467), in `x_K`'s dtype."""
    wide = torch.promote_types(x_K.dtype, torch.float32)
    x = x_K.to(wide)
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain_K.to(wide)).to(
        x_K.dtype
    )
