"""Initial weights whose variance neither grows nor dies with width and depth.

They are 1/fan_in, 1/√(2L) and DeepNorm's constants.

It never draws from the global generator: each tensor's values follow from the seed and its own
name, so that adding a layer or changing the order of construction changes no other tensor.

- Tensor: weights (out, in) of at least two dimensions; gains and biases are left alone. Draw the
  full tensor, then shard: two ranks that draw their own shards from one seed hold the same numbers.
- Precision: drawn in fp32 on the CPU, rounded once to the parameter's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from spiketriage.digests import raw_of_bytes
from spiketriage.errors import UsageError

NAME = "scaled-init"
LIFTS = ("initialise_",)
REMOVES = (
    "Residual streams that grow with depth, and logits or gradients that start too large for "
    "the learning rate."
)
COST = "Nothing after step 0."
WHEN = "At step 0 only; DeepNorm for post-norm models deeper than about 30 layers."


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepNorm:
    """`LayerNorm(alpha · x + sublayer(x))`; `beta` scales value, output and MLP weights."""

    alpha: float
    beta: float


def variance_preserving_std(fan_in: int, *, gain: float = 1.0) -> float:
    """Gain / √fan_in, which keeps a linear layer's variance (arXiv 1502.01852, eq. 10).

    Gain 1 for linear outputs, √2 behind a ReLU.
    """
    if fan_in < 1:
        raise UsageError(f"a fan-in is positive, not {fan_in}")
    return gain / math.sqrt(fan_in)


def residual_gain(num_layers: int) -> float:
    """1/√(2L): gain of the projections that write into the residual stream (GPT-2, 2.3)."""
    if num_layers < 1:
        raise UsageError(f"a number of layers is positive, not {num_layers}")
    return 1 / math.sqrt(2 * num_layers)


def deepnorm_decoder(num_layers: int) -> DeepNorm:
    """Constants of a model with a decoder or an encoder alone: (2L)^¼ and (8L)^-¼.

    Source: arXiv 2203.00555, figure 2.
    """
    return DeepNorm(alpha=(2.0 * num_layers) ** 0.25, beta=(8.0 * num_layers) ** -0.25)


def deepnorm_encoder_decoder(num_encoder: int, num_decoder: int) -> tuple[DeepNorm, DeepNorm]:
    """Constants of encoder and decoder of a model that has both (arXiv 2203.00555, figure 2)."""
    mixed = float(num_encoder) ** 4 * num_decoder
    encoder = DeepNorm(alpha=0.81 * mixed ** (1 / 16), beta=0.87 * mixed ** (-1 / 16))
    return encoder, DeepNorm(alpha=(3.0 * num_decoder) ** 0.25, beta=(12.0 * num_decoder) ** -0.25)


@torch.no_grad()
def draw_(name: str, weight: Tensor, std: float, *, seed: int) -> None:
    """Fill `weight` with N(0, std²), truncated at 3 std, in place.

    The values are a function of seed, name and shape alone.
    """
    digest = raw_of_bytes(f"{seed}/{name}".encode())
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    values = torch.empty(weight.shape)
    torch.nn.init.trunc_normal_(values, std=std, a=-3 * std, b=3 * std, generator=generator)
    weight.copy_(values)


def initialise_(
    named: Iterable[tuple[str, Tensor]],
    *,
    num_layers: int,
    residual: tuple[str, ...],
    seed: int,
    gain: float = 1.0,
) -> dict[str, float]:
    """Draw every weight of two or more dimensions, and return the std that each was given, by name.

    A name that ends in one of `residual` gets the residual gain on top. Embeddings count as linear
    layers over one-hot inputs here, so their fan-in is their width (last axis), as for every other
    weight.

    Raises:
        UsageError: a suffix in `residual` fits no weight: a renamed layer must not lose its gain
        silently.
    """
    weights = {name: tensor for name, tensor in named if tensor.dim() >= 2}
    for suffix in residual:
        if not any(name.endswith(suffix) for name in weights):
            raise UsageError(f"no weight's name ends in {suffix!r}")
    stds = {}
    for name, weight in weights.items():
        fan_in = weight[0].numel()
        stds[name] = variance_preserving_std(fan_in, gain=gain)
        if name.endswith(residual):
            stds[name] *= residual_gain(num_layers)
        draw_(name, weight, stds[name], seed=seed)
    return stds
