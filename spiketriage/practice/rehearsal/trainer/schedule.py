"""Learning rate by step.

Linear warm-up, then cosine to a floor (arXiv 1608.03983, without restarts).
"""

from __future__ import annotations

import math

from .config import Config


def learning_rate(config: Config, step: int) -> float:
    """Learning rate of the `step`-th update, counted from 1."""
    if step <= config.warmup_steps:
        return config.peak_lr * step / config.warmup_steps
    progress = (step - config.warmup_steps) / (config.schedule_steps - config.warmup_steps)
    return config.floor_lr + (config.peak_lr - config.floor_lr) * 0.5 * (
        1 + math.cos(math.pi * min(progress, 1.0))
    )
