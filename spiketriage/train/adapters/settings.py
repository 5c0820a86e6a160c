"""Hyper-parameters as a torch optimizer holds them, in this package's words.

It never changes a setting.
"""

from __future__ import annotations

from typing import Any

import torch


def hparams_of(
    optimizer: torch.optim.Optimizer, *, clip: float, num_micro: int, seed: int
) -> dict[str, Any]:
    """Plain JSON, as the hyper-parameters of a generation's manifest."""
    group = optimizer.param_groups[0]
    settings = {}
    for name in ("eps", "weight_decay"):
        if isinstance(group.get(name), int | float):
            settings[name] = float(group[name])
    if "betas" in group:
        settings["beta1"], settings["beta2"] = (float(beta) for beta in group["betas"])
    return {**settings, "clip": clip, "num_micro": num_micro, "seed": seed}
