"""A small GPT: byte-level tokens, RMSNorm, attention inside packed documents, untied head.

Shapes: B rows, T positions, D model width, H heads, K head width, V vocabulary. It never sees a
rank or an optimizer.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiketriage.train.stabilizers.init import initialise_
from spiketriage.train.stabilizers.qk_norm import QKNorm
from spiketriage.train.stabilizers.softcap import capped_attention

from .config import Config
from .experts import Mixture
from .fp8_linear import linear_class
from .passes import Masks, Pass, Trace
from .widths import Readout, scale_initial_

EOS, PAD = 256, 257
VOCABULARY = 258
ATTENTION_CAP = 50.0


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last axis (arXiv 1910.07467)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Normalised input, same shape."""
        return x_BTD * torch.rsqrt(x_BTD.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale


def fused_attention(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, mask_B1TT: Tensor) -> Tensor:
    """Attention by the fused kernel."""
    return F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=mask_B1TT)


def math_attention(
    q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, mask_B1TT: Tensor, cap: float | None = None
) -> Tensor:
    """Attention written out, as the reference for the fused kernel and for the capped one."""
    logits_BHTT = q_BHTK @ k_BHTK.transpose(-1, -2) / math.sqrt(q_BHTK.shape[-1])
    if cap is not None:
        logits_BHTT = (logits_BHTT / cap).tanh() * cap
    return logits_BHTT.masked_fill(~mask_B1TT, float("-inf")).softmax(-1) @ v_BHTK


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, config: Config, place: str) -> None:
        super().__init__()
        width, linear = config.d_model, linear_class(config)
        self.num_heads = config.num_heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.qkv = linear(width, 3 * width, f"{place}.qkv")
        self.out = linear(width, width, f"{place}.out")
        self.up = linear(width, 4 * width, f"{place}.up")
        self.down = linear(4 * width, width, f"{place}.down")
        self.mixture: Mixture | None = None
        if "router-balance" in config.stabilizers:
            self.mixture = Mixture(config)
        self.qk_norm: QKNorm | None = None
        if "qk-norm" in config.stabilizers:
            self.qk_norm = QKNorm(width // config.num_heads)
        self.capped = "softcap" in config.stabilizers

    def forward(self, x_BTD: Tensor, masks: Masks, how: Pass, trace: Trace) -> Tensor:
        """The residual stream after this block."""
        h_BTD = x_BTD + self._attention(self.norm1(x_BTD), masks.attend_B1TT, how, trace)
        normed_BTD = self.norm2(h_BTD)
        hidden_BTF = F.gelu(self.up(normed_BTD, how, trace))
        if self.mixture is not None:
            hidden_BTF = self.mixture(hidden_BTF, normed_BTD, masks.valid_BT, trace)
        down_BTD: Tensor = self.down(hidden_BTF, how, trace)
        return h_BTD + down_BTD

    def _attention(self, x_BTD: Tensor, mask_B1TT: Tensor, how: Pass, trace: Trace) -> Tensor:
        B, T, D = x_BTD.shape
        qkv = self.qkv(x_BTD, how, trace)
        q_BHTK, k_BHTK, v_BHTK = (
            qkv.view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        )
        if self.qk_norm is not None:
            q_BHTK, k_BHTK = self.qk_norm(q_BHTK, k_BHTK)
        with torch.no_grad():
            logits_BHTT = q_BHTK @ k_BHTK.transpose(-1, -2) / math.sqrt(q_BHTK.shape[-1])
            trace.logit_max.append(float(logits_BHTT.masked_fill(~mask_B1TT, float("-inf")).max()))
        attend = math_attention if how.kernel == "math" else fused_attention
        if self.capped:
            attend = partial(
                math_attention if how.kernel == "math" else capped_attention, cap=ATTENTION_CAP
            )
        mixed_BTD = attend(q_BHTK, k_BHTK, v_BHTK, mask_B1TT).transpose(1, 2).reshape(B, T, D)
        out_BTD: Tensor = self.out(mixed_BTD, how, trace)
        return out_BTD


class GPT(nn.Module):
    """Embedding, blocks, final norm, head."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, config.d_model)
        self.position = nn.Embedding(config.pack_tokens, config.d_model)
        self.blocks = nn.ModuleList(Block(config, f"blocks.{n}") for n in range(config.num_layers))
        self.norm = RMSNorm(config.d_model)
        self.head = Readout(config, VOCABULARY)
        generator = torch.Generator().manual_seed(config.seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                if name.endswith(("out.weight", "down.weight")):
                    scale = 0.02 / math.sqrt(2 * config.num_layers)
                else:
                    scale = 0.02
                nn.init.normal_(parameter, std=scale, generator=generator)
        if "scaled-init" in config.stabilizers:
            named = self.named_parameters()
            initialise_(
                named,
                num_layers=config.num_layers,
                residual=("out.weight", "down.weight"),
                seed=config.seed,
            )
        scale_initial_(self.named_parameters(), config)

    @property
    def mixtures(self) -> list[Mixture]:
        """The mixtures of experts in the order of the layers; none in a dense model."""
        return [module for module in self.modules() if isinstance(module, Mixture)]

    def forward(self, tokens_BT: Tensor, masks: Masks, how: Pass, trace: Trace) -> Tensor:
        """Logits (B, T, V) in fp32."""
        positions_T = torch.arange(tokens_BT.shape[1])
        x_BTD = self.embed(tokens_BT) + self.position(positions_T)
        trace.activations["embed"] = x_BTD
        for number, block in enumerate(self.blocks):
            x_BTD = block(x_BTD, masks, how, trace)
            trace.activations[f"blocks.{number}"] = x_BTD
            trace.rms.append(float(x_BTD.detach().pow(2).mean().sqrt()))
        logits_BTV: Tensor = self.head(self.norm(x_BTD))
        trace.activations["logits"] = logits_BTV
        return logits_BTV
