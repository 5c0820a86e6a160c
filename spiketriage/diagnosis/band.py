"""What production looked like before the incident, and how far outside it a step lies.

The unit is a robust scale of loss or gradient norm. This module never reads evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spiketriage.nouns.telemetry import StepRecord

# The band is made of at least 32 steps, since a scale of fewer is a guess, and of at most 64.
MIN_HISTORY_STEPS, HISTORY_STEPS = 32, 64
# Half of what production showed counts as anomalous, within limits: of healthy steps one in eighty
# lies beyond 2.5 scales, and practically none beyond 5.
MIN_THRESHOLD, MAX_THRESHOLD = 2.5, 5.0
MIN_SCALE = 0.01  # a run whose loss hardly moves must not make every step an outlier
MIN_NORM = 1e-30  # keeps the logarithm of a gradient norm of zero finite
FALSE_ALARM_QUANTILE = 95  # percent of a normal distribution lie within 1.96 deviations
DEVIATIONS_AT_QUANTILE = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Centre and robust scale of loss and log gradient norm, before the incident."""

    loss: float
    loss_scale: float
    log_norm: float
    log_norm_scale: float


def distance(record: StepRecord, band: Band) -> float:
    """How far a step lies outside the band: in scales of loss or gradient norm, the larger one.

    Infinite when the step is not finite.
    """
    loss = record.metrics.get("loss/mean", math.nan)
    norm = record.metrics.get("grad/norm", math.nan)
    if record.nonfinite or not (math.isfinite(loss) and math.isfinite(norm)):
        return math.inf
    by_loss = abs(loss - band.loss) / band.loss_scale
    by_norm = abs(math.log(max(norm, MIN_NORM)) - band.log_norm) / band.log_norm_scale
    return max(by_loss, by_norm)


def make_band(history: Sequence[StepRecord], oldest_step: int) -> Band:
    """The band of the steps since the oldest state under test.

    A young run's loss falls so fast that a longer history would hide a spike.
    """
    num_recent = sum(record.step > oldest_step for record in history)
    num_steps = min(HISTORY_STEPS, max(MIN_HISTORY_STEPS, num_recent))
    window = history[-num_steps:]
    losses = np.array([record.metrics.get("loss/mean", math.nan) for record in window])
    norms = np.array([record.metrics.get("grad/norm", math.nan) for record in window])
    loss, loss_scale = _robust(losses)
    log_norm, log_norm_scale = _robust(np.log(np.maximum(norms, MIN_NORM)))
    return Band(loss=loss, loss_scale=loss_scale, log_norm=log_norm, log_norm_scale=log_norm_scale)


def make_threshold(suspect: StepRecord | None, band: Band) -> float:
    """How many scales count as anomalous: half of what production showed at the suspect step."""
    if suspect is None:
        return MAX_THRESHOLD
    return min(MAX_THRESHOLD, max(MIN_THRESHOLD, distance(suspect, band) / 2))


def _robust(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, float]:
    """Median and scale of the finite values.

    The scale is the 95th percentile of the deviations over 1.96: a median of the deviations would
    double the false alarms.
    """
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return math.nan, math.nan
    centre = float(np.median(finite))
    spread = float(np.percentile(np.abs(finite - centre), FALSE_ALARM_QUANTILE))
    return centre, max(spread / DEVIATIONS_AT_QUANTILE, MIN_SCALE)
