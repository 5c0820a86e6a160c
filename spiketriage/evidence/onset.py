"""Production as one line of global values.

What is scanned for spikes, and what tables and plots show.

This module never reads a file and never decides which generation is good.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from spiketriage.detect import detector as detect
from spiketriage.diagnosis.findings import ranks_text
from spiketriage.nouns.incident import StepPoint
from spiketriage.readers.telemetry.run.lineage import Telemetry

MAX_ROWS = 5000
NOTHING = "nothing spiked: audit"
_ROWS_AFTER_ONSET = 500
_POINT = ("loss", "grad_norm", "update_norm", "lr")  # what tables and plots show
_METRICS = {
    "loss": "loss/mean",
    "grad_norm": "grad/norm",
    "update_norm": "update/norm",
    "lr": "lr",
    "rms_t": "rms_t/max",
    "logz": "logz/mean",
    "loss_scale": "loss_scale",
}
_ATTENTION = "attention/logit_max"


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """The first anomaly of production, if any, and every alarm."""

    step: int | None
    reason: str
    alarms: tuple[detect.Alarm, ...]
    points: tuple[StepPoint, ...]


def find_onset(telemetry: Telemetry) -> Onset:
    """Scan production: loss, gradient norm, and whatever else of `detect.Row` was recorded."""
    points = [_point(telemetry, step) for step in telemetry.steps]
    alarms = detect.scan(_trace(telemetry, points))
    sentences: dict[int, str] = {}
    for alarm in alarms:
        sentences.setdefault(alarm.step, alarm.sentence)
    step = alarms[0].step if alarms else None
    return Onset(
        step=step,
        reason=f"{alarms[0].sentence}{_ranks(telemetry, alarms[0].step)}" if alarms else NOTHING,
        alarms=alarms,
        points=tuple(_window(points, step, sentences)),
    )


def _ranks(telemetry: Telemetry, step: int) -> str:
    """Which ranks' own losses are not finite, where every rank logs one and some are.

    There it began.
    """
    losses = {
        rank: record.metrics["loss/mean"]
        for rank in telemetry.ranks
        if (record := telemetry.at(rank, step)) is not None and "loss/mean" in record.metrics
    }
    bad = [rank for rank, loss in losses.items() if not math.isfinite(loss)]
    if not 0 < len(bad) < len(losses):
        return ""
    return f"; of {len(losses)} ranks' losses only that of {ranks_text(bad)} is not finite"


def row_at(telemetry: Telemetry, step: int) -> detect.Row:
    """Production at a step as a detector is fed it; what no rank recorded is None."""
    values: dict[str, Any] = {}
    for name, metric in _METRICS.items():
        values[name] = (
            _value(telemetry, step, metric) if _is_logged(telemetry, step, metric) else None
        )
    attention = _attention_max(telemetry, step)
    return detect.Row(
        step=step, attention_max=None if math.isnan(attention) else attention, **values
    )


def _point(telemetry: Telemetry, step: int) -> StepPoint:
    loss, grad_norm, update_norm, lr = (_value(telemetry, step, _METRICS[name]) for name in _POINT)
    attempt = telemetry.attempt_of(step)
    assert attempt is not None, "telemetry.steps holds recorded steps only"
    return StepPoint(
        attempt=attempt,
        step=step,
        loss=loss,
        grad_norm=grad_norm,
        update_norm=update_norm,
        lr=lr,
        alarm="",
    )


def _value(telemetry: Telemetry, step: int, name: str) -> float:
    """The global value: the lowest rank's, unless some rank's is nonfinite.

    NaN where no rank recorded it.
    """
    records = [
        record for rank in telemetry.ranks if (record := telemetry.at(rank, step)) is not None
    ]
    values = [record.metrics[name] for record in records if name in record.metrics]
    return next(
        (value for value in values if not math.isfinite(value)), values[0] if values else math.nan
    )


def _attention_max(telemetry: Telemetry, step: int) -> float:
    """The largest over ranks and layers; NaN where none recorded it."""
    records = (telemetry.at(rank, step) for rank in telemetry.ranks)
    values = [
        value
        for record in records
        if record is not None
        for value in record.series.get(_ATTENTION, ())
    ]
    return next(
        (value for value in values if not math.isfinite(value)), max(values, default=math.nan)
    )


def _not_logged(telemetry: Telemetry) -> dict[str, frozenset[int]]:
    """Where a log that other people's code wrote holds no value.

    It logs when it likes, so that is no anomaly.
    """
    if any(segment.identity is not None for segment in telemetry.segments):
        return {}  # our recorder writes every metric at every step: one that vanishes is an anomaly
    result: dict[str, frozenset[int]] = {}
    for column, name in _METRICS.items():
        result[column] = frozenset(
            at for at, step in enumerate(telemetry.steps) if not _is_logged(telemetry, step, name)
        )
    return result


def _is_logged(telemetry: Telemetry, step: int, name: str) -> bool:
    records = (telemetry.at(rank, step) for rank in telemetry.ranks)
    return any(record is not None and name in record.metrics for record in records)


def _trace(telemetry: Telemetry, points: list[StepPoint]) -> detect.Trace:
    def point(name: str) -> detect.Array:
        values = np.array([getattr(point, name) for point in points], dtype=np.float64)
        # A harness may not record a value at all, which is no anomaly; one that vanishes is.
        if values.size and np.isnan(values).all():
            return np.ones_like(values)
        return values

    def metric(name: str) -> detect.Array:
        return np.array(
            [_value(telemetry, step, _METRICS[name]) for step in telemetry.steps], dtype=np.float64
        )

    return detect.Trace(
        steps=np.array([point.step for point in points], dtype=np.float64),
        loss=point("loss"),
        grad_norm=point("grad_norm"),
        update_norm=point("update_norm"),
        lr=point("lr"),
        rms_t=metric("rms_t"),
        logz=metric("logz"),
        attention_max=np.array(
            [_attention_max(telemetry, step) for step in telemetry.steps], dtype=np.float64
        ),
        loss_scale=metric("loss_scale"),
        not_logged=_not_logged(telemetry),
    )


def _window(
    points: list[StepPoint], onset: int | None, sentences: dict[int, str]
) -> list[StepPoint]:
    if len(points) > MAX_ROWS:
        last = len(points)
        if onset is not None:
            at = next(number for number, point in enumerate(points) if point.step == onset)
            last = min(last, at + _ROWS_AFTER_ONSET)
        points = points[max(0, last - MAX_ROWS) : max(last, MAX_ROWS)]
    return [
        _with_alarm(point, sentences[point.step]) if point.step in sentences else point
        for point in points
    ]


def _with_alarm(point: StepPoint, sentence: str) -> StepPoint:
    return StepPoint(
        attempt=point.attempt,
        step=point.step,
        loss=point.loss,
        grad_norm=point.grad_norm,
        update_norm=point.update_norm,
        lr=point.lr,
        alarm=sentence,
    )
