"""What depends on the model's width: first weights, the optimizer's rates, and readouts.

It never scales attention: models of this family keep their head width, so 1/√K is that of the base
model too.
"""

# D model width, O outputs, m = width / base width.

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiketriage.train.stabilizers.mup import param_groups, role_of, scaling

from .config import Config

BASE_WIDTH = 24
INPUTS = ("embed.", "position.")


class Readout(nn.Module):
    """A projection out of the width (…, D) to a fixed number of outputs (…, O), times 1/m."""

    def __init__(self, config: Config, num_outputs: int) -> None:
        super().__init__()
        self.factor = scaling("output", width=config.d_model, base_width=base_width(config)).output
        self.weight = nn.Parameter(torch.empty(num_outputs, config.d_model))

    def forward(self, inputs: Tensor) -> Tensor:
        """The scaled product."""
        return F.linear(inputs, self.weight) * self.factor


def base_width(config: Config) -> int:
    """The width whose settings the run takes over: its own without μP, with factors of 1."""
    if "mup" in config.stabilizers:
        return BASE_WIDTH
    return config.d_model


def outputs(config: Config) -> tuple[str, ...]:
    """Prefixes of the names of readouts."""
    return ("head.", *(f"blocks.{number}.mixture.router." for number in range(config.num_layers)))


@torch.no_grad()
def scale_initial_(named: Iterable[tuple[str, Tensor]], config: Config) -> None:
    """Turn first weights into those of the base model, scaled to this width, in place."""
    base = base_width(config)
    # Scaled init knows the fan-in of this width: the base model would have drawn with √m times its
    # std.
    to_base = 1.0
    if "scaled-init" in config.stabilizers:
        to_base = math.sqrt(config.d_model / base)
    for name, weight in named:
        if weight.dim() >= 2:
            role = role_of(name, weight, inputs=INPUTS, outputs=outputs(config))
            weight *= to_base * scaling(role, width=config.d_model, base_width=base).init_std


def optimizer_groups(
    named: Iterable[tuple[str, nn.Parameter]], config: Config
) -> list[dict[str, Any]]:
    """Groups for AdamW; each has `lr_factor`, by which a step multiplies the schedule's rate."""
    if "mup" not in config.stabilizers:
        parameters = [parameter for _, parameter in named]
        return [{"params": parameters, "lr_factor": 1.0, "weight_decay": config.weight_decay}]
    groups = param_groups(
        named,
        lr=1.0,
        weight_decay=config.weight_decay,
        width=config.d_model,
        base_width=BASE_WIDTH,
        inputs=INPUTS,
        outputs=outputs(config),
    )
    return [{**group, "lr_factor": group["lr"]} for group in groups]
