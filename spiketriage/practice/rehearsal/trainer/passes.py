"""How one forward pass is computed, and what it leaves behind for those that look at it.

This module holds data alone and computes nothing.
"""

# B rows, T positions, N tokens of a microbatch, E experts, A length of an amax history.

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from spiketriage.train.stabilizers.moe import Routing


@dataclass(frozen=True, slots=True)
class Pass:
    """How a forward pass is computed: its precision and its attention kernel."""

    precision: str
    kernel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Masks:
    """Where a position may attend (`attend_B1TT`) and which positions predict (`valid_BT`).

    What a position that predicts nothing computes reaches no loss: a document's last token is
    attended by none.
    """

    attend_B1TT: Tensor
    valid_BT: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """One tensor on its way into 8 bits; `scale` () and `history_A`, fp32, as they were before."""

    values: Tensor
    scale: Tensor
    history_A: Tensor
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """What one layer's router said (fp32 `logits_NE`), and where its tokens went."""

    logits_NE: Tensor
    routing: Routing


@dataclass(slots=True)
class Trace:
    """By layer: activation, rms, attention maximum, casts to 8 bits, and what the router did."""

    activations: dict[str, Tensor] = field(default_factory=dict)
    rms: list[float] = field(default_factory=list)
    logit_max: list[float] = field(default_factory=list)
    casts: list[Cast] = field(default_factory=list)
    routed: list[Routed] = field(default_factory=list)
