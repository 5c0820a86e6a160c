"""Production as one line of global values: what is scanned for spikes, and what tables and plots show.

This module never reads a file and never decides which generation is good.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from spiketriage import detect
from spiketriage.diagnosis.findings import ranks_text
from spiketriage.readers.telemetry.lineage import Telemetry
from spiketriage.records import StepPoint

MAX_ROWS = 5000
NOTHING = "nothing spiked: audit"
_ROWS_AFTER_ONSET = 500
_METRICS = ("loss/mean", "grad/norm", "update/norm", "lr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """The first anomaly of production, if any, and every alarm."""

    step: int | None
    reason: str
    alarms: tuple[detect.Alarm, ...]
    points: tuple[StepPoint, ...]


def find_onset(telemetry: Telemetry) -> Onset:
    """Scan production's loss, gradient norm and update norm."""
    points = [_point(telemetry, step) for step in telemetry.steps]
    alarms = detect.scan(_trace(points, _not_logged(telemetry)))
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
    """Which ranks' own losses are not finite, where every rank logs one and some are: there it began."""
    losses = {
        rank: record.metrics["loss/mean"]
        for rank in telemetry.ranks
        if (record := telemetry.at(rank, step)) is not None and "loss/mean" in record.metrics
    }
    bad = [rank for rank, loss in losses.items() if not math.isfinite(loss)]
    if not 0 < len(bad) < len(losses):
        return ""
    return f"; of {len(losses)} ranks' losses only that of {ranks_text(bad)} is not finite"


def _point(telemetry: Telemetry, step: int) -> StepPoint:
    loss, grad_norm, update_norm, lr = (_value(telemetry, step, name) for name in _METRICS)
    attempt = telemetry.attempt_of(step)
    assert attempt is not None, "telemetry.steps holds recorded steps only"
    return StepPoint(
        attempt=attempt, step=step, loss=loss, grad_norm=grad_norm, update_norm=update_norm, lr=lr, alarm=""
    )


def _value(telemetry: Telemetry, step: int, name: str) -> float:
    """The global value: the lowest rank's, unless some rank's is nonfinite; NaN where no rank recorded it."""
    records = [record for rank in telemetry.ranks if (record := telemetry.at(rank, step)) is not None]
    values = [record.metrics[name] for record in records if name in record.metrics]
    return next((value for value in values if not math.isfinite(value)), values[0] if values else math.nan)


def _not_logged(telemetry: Telemetry) -> dict[str, frozenset[int]]:
    """Where a log that other people's code wrote holds no value: it logs when it likes, so that is no anomaly."""
    if any(segment.identity is not None for segment in telemetry.segments):
        return {}  # our recorder writes every metric at every step: one that vanishes is an anomaly
    return {
        column: frozenset(at for at, step in enumerate(telemetry.steps) if not _is_logged(telemetry, step, name))
        for name, column in zip(_METRICS, ("loss", "grad_norm", "update_norm", "lr"), strict=True)
    }


def _is_logged(telemetry: Telemetry, step: int, name: str) -> bool:
    records = (telemetry.at(rank, step) for rank in telemetry.ranks)
    return any(record is not None and name in record.metrics for record in records)


def _trace(points: list[StepPoint], not_logged: dict[str, frozenset[int]]) -> detect.Trace:
    def column(name: str) -> detect.Array:
        values = np.array([getattr(point, name) for point in points], dtype=np.float64)
        # A harness may not record a value at all, which is no anomaly; one that vanishes is.
        return np.ones_like(values) if values.size and np.isnan(values).all() else values

    return detect.Trace(
        steps=np.array([point.step for point in points], dtype=np.float64),
        loss=column("loss"),
        grad_norm=column("grad_norm"),
        update_norm=column("update_norm"),
        lr=column("lr"),
        not_logged=not_logged,
    )


def _window(points: list[StepPoint], onset: int | None, sentences: dict[int, str]) -> list[StepPoint]:
    if len(points) > MAX_ROWS:
        last = len(points)
        if onset is not None:
            at = next(number for number, point in enumerate(points) if point.step == onset)
            last = min(last, at + _ROWS_AFTER_ONSET)
        points = points[max(0, last - MAX_ROWS) : max(last, MAX_ROWS)]
    return [_with_alarm(point, sentences[point.step]) if point.step in sentences else point for point in points]


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
