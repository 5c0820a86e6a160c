"""The link of the chain between gradients and update: what clipping and the schedule came to.

It never clips and never steps a schedule; it writes down what both will do with a step.
"""

from __future__ import annotations

import math
import struct

from torch import Tensor

from spiketriage.nouns.telemetry import Link
from spiketriage.train.adapters.state import Parts
from spiketriage.train.recording.observer import CLIP_EPS, Observer
from spiketriage.train.recording.step_recorder import StepRecorder


def record_clip(record: StepRecorder, observer: Observer, parts: Parts, norm: Tensor) -> None:
    """Record coefficient, learning rate, the scheduler's counter and the loss scale of a step."""
    max_norm, lr = parts.max_norm, learning_rate(parts)
    if max_norm > 0:
        observer.clipped(record, norm, max_norm)
    counter = getattr(parts.scheduler, "last_epoch", None)
    if isinstance(counter, int):
        record.log({"scheduler/step": counter})
    scale = getattr(parts.scaler, "_scale", None)
    if isinstance(scale, Tensor):
        record.log({"loss_scale": scale.clone()})
    link = Link("clip_lr", "all")
    record.links[link] = bytes(16)  # its place; the numbers come with the step's copy

    def seal(numbers: list[float]) -> None:
        coefficient = 1.0
        if math.isnan(numbers[0]):
            coefficient = numbers[0]
        elif max_norm > 0:
            coefficient = min(1.0, max_norm / (numbers[0] + CLIP_EPS))
        record.links[link] = struct.pack("<2d", coefficient, lr)

    record.defer(norm, seal)


def learning_rate(parts: Parts) -> float:
    """The rate that the optimizer holds for its first group."""
    return float(parts.optimizer.param_groups[0]["lr"])
