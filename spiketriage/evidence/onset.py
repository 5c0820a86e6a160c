"""Production as one line of global values: what is scanned for spikes, and what plots show.

This module never reads a file and never decides which generation is good.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spiketriage.detect import detector as detect
from spiketriage.diagnosis.findings import ranks_text
from spiketriage.evidence import judged as judging
from spiketriage.evidence.judged import Judged
from spiketriage.evidence.restarts import behind_restart
from spiketriage.nouns.incident import StepPoint
from spiketriage.nouns.series import Floats
from spiketriage.nouns.telemetry import MetricColumn, StepRecord
from spiketriage.readers.telemetry.run.lineage import Abandoned, Telemetry

MAX_ROWS = 5000  # points that an incident's tables hold; the Parquet file has them all
NOTHING = "nothing spiked: audit"
NOT_JUDGED = "no series was judged"
ROLLED_BACK = " (rolled back since)"
STARTED_OVER = " (a later attempt started over from the first step)"
_ROWS_AFTER_ONSET = 500
_METRICS = {
    "loss": "loss/mean",
    "grad_norm": "grad/norm",
    "update_norm": "update/norm",
    "lr": "lr",
    "rms_t": "rms_t/max",
    "logz": "logz/mean",
    "loss_scale": "loss_scale",
}
_SKIPPED, _SKIPPED_TOTAL = "loss_scale/skipped", "loss_scale/skipped_total"
_SHOWN = ("loss", "grad_norm", "update_norm", "lr")  # what tables and plots show
_ATTENTION = "attention/logit_max"
_PER_LAYER = "attention_max"

Scan = Callable[[detect.Trace], tuple[detect.Alarm, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """The first anomaly of a run, if any, every alarm, and what was judged.

    `attempt` is the last one that counts: of an onset in steps that were rolled back since, the one
    that took them. `history` says what was rolled back and whether anything was wrong with it.
    """

    step: int | None
    reason: str
    alarms: tuple[detect.Alarm, ...]
    points: tuple[StepPoint, ...]
    attempt: int | None = None
    judged: tuple[Judged, ...] = ()
    history: tuple[str, ...] = ()


def find_onset(telemetry: Telemetry, *, scan: Scan = detect.scan) -> Onset:
    """Scan production, and what was rolled back; a spike of production comes first.

    Loss, gradient norm, and whatever else of `detect.Row` was recorded are scanned.
    """
    onset = _onset_of(telemetry, scan, since=None)
    history: list[str] = []
    for tail in telemetry.abandoned:
        then = telemetry.until(tail.attempt)
        past = _onset_of(then, scan, since=tail.first_step)
        again = "" if tail.is_all else _taken_again(telemetry, past, onset.alarms)
        history.append(f"{_rolled_back(tail, past)}{again}")
        if onset.step is None and past.step is not None:
            since = STARTED_OVER if tail.is_all else ROLLED_BACK
            onset = replace(past, attempt=tail.attempt, reason=f"{past.reason}{since}")
    return replace(onset, history=tuple(history))


def _onset_of(telemetry: Telemetry, scan: Scan, *, since: int | None) -> Onset:
    """The first anomaly of production, or of its steps from `since` on."""
    steps = telemetry.steps
    columns = _columns(telemetry)
    alarms = scan(_trace(telemetry, steps, columns))
    if since is not None:
        alarms = tuple(alarm for alarm in alarms if alarm.step >= since)
    judged = tuple(judging.what_was_judged(columns))
    if not alarms:
        points = tuple(_points(telemetry, steps, columns, onset=None, sentences={}))
        reason = _why_none(telemetry, judged)
        return Onset(step=None, reason=reason, alarms=(), points=points, judged=judged)
    sentences: dict[int, str] = {}
    for alarm in alarms:
        sentences.setdefault(alarm.step, alarm.sentence)
    onset = alarms[0].step
    sentence = f"{alarms[0].sentence}{_nonfinite_ranks(telemetry, steps.index(onset))}"
    return Onset(
        step=onset,
        reason=behind_restart(telemetry, onset, sentence),
        alarms=alarms,
        points=tuple(_points(telemetry, steps, columns, onset=onset, sentences=sentences)),
        judged=judged,
    )


def _why_none(telemetry: Telemetry, judged: Collection[Judged]) -> str:
    """Nothing spiked, unless nothing was judged, or a loss is logged that nobody knows as such."""
    keys = judging.candidates(telemetry.logs)
    if not judged:
        return f"{NOT_JUDGED}; {judging.question(keys)}"
    if keys and not judging.is_loss_among(judged):
        return f"{NOT_JUDGED} as the loss; {judging.question(keys)}"
    return NOTHING


def _rolled_back(tail: Abandoned, past: Onset) -> str:
    """What is said of steps that are no production any more."""
    if tail.first_step == tail.last_step:
        span, verb, fate = f"step {tail.first_step}", "is", "was rolled back"
    else:
        span = f"steps {tail.first_step} to {tail.last_step}"
        verb, fate = "are", "were rolled back"
    if tail.is_all:
        fate = f"{verb} another run, or one that was given up: a later attempt starts over"
    span = f"attempt {tail.attempt}: {span} {fate}"
    if past.step is None:
        return f"{span}; nothing spiked there"
    return f"{span}; {past.reason}"


def _taken_again(telemetry: Telemetry, past: Onset, alarms: Collection[detect.Alarm]) -> str:
    """Whether the step of an onset that was rolled back spiked when production took it again."""
    if past.step is None:
        return ""
    attempt = telemetry.attempt_of(past.step)
    if attempt is None:
        return ""
    if any(alarm.step == past.step for alarm in alarms):
        return f"; attempt {attempt} took it again and spiked there too"
    return f"; attempt {attempt} took it again and did not spike there"


def rows_at(telemetry: Telemetry, steps: Sequence[int]) -> Iterator[detect.Row]:
    """Production at these steps as a detector is fed it; what no rank recorded is None."""
    if not steps:
        return
    columns = _columns(telemetry)
    places = np.searchsorted(np.array(telemetry.steps), np.array(steps)).tolist()
    for step, at in zip(steps, places, strict=True):
        values: dict[str, Any] = {}
        for name, column in columns.items():
            if column.is_logged[at]:
                values[name] = float(column.values[at])
        if math.isnan(values.get(_PER_LAYER, 0.0)):
            values[_PER_LAYER] = None
        yield detect.Row(step=step, **values)


def _columns(telemetry: Telemetry) -> dict[str, MetricColumn]:
    """The global values of production along its steps, by field of `detect.Row`."""
    columns: dict[str, MetricColumn] = {}
    for name, metric in _METRICS.items():
        columns[name] = _lowest_rank(telemetry, metric)
    columns["skipped"] = _skipped(telemetry)
    columns[_PER_LAYER] = _attention_max(telemetry)
    return columns


def _lowest_rank(telemetry: Telemetry, metric: str) -> MetricColumn:
    """The global value: the lowest rank's that has one, unless some rank's is nonfinite."""
    values = np.full(telemetry.num_steps, np.nan)
    is_logged = np.zeros(len(values), dtype=np.bool_)
    is_bad = np.zeros(len(values), dtype=np.bool_)
    for rank in telemetry.ranks:
        column = telemetry.metric(rank, metric)
        is_first = column.is_logged & ~is_logged
        is_first_bad = column.is_logged & ~np.isfinite(column.values) & ~is_bad
        is_taken = is_first | is_first_bad
        values[is_taken] = column.values[is_taken]
        is_logged |= column.is_logged
        is_bad |= is_first_bad
    return MetricColumn(values=values, is_logged=is_logged)


def _skipped(telemetry: Telemetry) -> MetricColumn:
    """Updates that loss scaling left out since the row before, also where the log has a total."""
    since = _lowest_rank(telemetry, _SKIPPED)
    total = _lowest_rank(telemetry, _SKIPPED_TOTAL)
    if since.is_logged.any() or not total.is_logged.any():
        return since
    values = total.values.copy()
    counts = values[total.is_logged]
    # A total that falls is that of an attempt that counts anew.
    values[total.is_logged] = np.maximum(0.0, np.diff(counts, prepend=0.0))
    return MetricColumn(values=values, is_logged=total.is_logged)


def _attention_max(telemetry: Telemetry) -> MetricColumn:
    """The largest over ranks and layers, or the first nonfinite one; only our recorder has it."""
    values = np.full(telemetry.num_steps, np.nan)
    is_logged = np.zeros(len(values), dtype=np.bool_)
    is_bad = np.zeros(len(values), dtype=np.bool_)
    if _is_others(telemetry):
        return MetricColumn(values=values, is_logged=is_logged)
    for rank in telemetry.ranks:
        column = telemetry.reading(rank, _largest_over_layers)
        is_first_bad = column.is_logged & ~np.isfinite(column.values) & ~is_bad
        is_larger = column.is_logged & ~is_bad & (~is_logged | (column.values > values))
        is_taken = is_larger | is_first_bad
        values[is_taken] = column.values[is_taken]
        is_logged |= column.is_logged
        is_bad |= is_first_bad
    return MetricColumn(values=values, is_logged=is_logged)


def _largest_over_layers(record: StepRecord) -> float | None:
    layers = record.series.get(_ATTENTION, ())
    for value in layers:
        if not math.isfinite(value):
            return value
    return max(layers, default=None)


def _is_others(telemetry: Telemetry) -> bool:
    """Whether another tool wrote all of it: such a log holds a value when it likes."""
    return all(segment.identity is None for segment in telemetry.segments)


def _trace(
    telemetry: Telemetry, steps: Sequence[int], columns: Mapping[str, MetricColumn]
) -> detect.Trace:
    not_logged = {}
    if _is_others(telemetry):  # our recorder writes every metric: one that vanishes is an anomaly
        for name in _METRICS:
            not_logged[name] = ~columns[name].is_logged
    return detect.Trace(
        steps=np.array(steps, dtype=np.float64),
        loss=_unless_never(columns["loss"]),
        grad_norm=_unless_never(columns["grad_norm"]),
        update_norm=_unless_never(columns["update_norm"]),
        lr=_unless_never(columns["lr"]),
        rms_t=columns["rms_t"].values,
        logz=columns["logz"].values,
        attention_max=columns[_PER_LAYER].values,
        loss_scale=columns["loss_scale"].values,
        skipped=columns["skipped"].values,
        not_logged=not_logged,
    )


def _unless_never(column: MetricColumn) -> Floats:
    """A harness may not record a value at all, which is no anomaly; one that vanishes is.

    A value that is recorded as NaN, from the first step on too, is recorded.
    """
    if column.is_logged.any():
        return column.values
    return np.ones_like(column.values)


def _nonfinite_ranks(telemetry: Telemetry, at: int) -> str:
    """Which ranks' own losses are not finite, where every rank logs one: there it began."""
    losses: dict[int, float] = {}
    for rank in telemetry.ranks:
        column = telemetry.metric(rank, _METRICS["loss"])
        if column.is_logged[at]:
            losses[rank] = float(column.values[at])
    bad = [rank for rank, loss in losses.items() if not math.isfinite(loss)]
    if not 0 < len(bad) < len(losses):
        return ""
    return f"; of {len(losses)} ranks' losses only that of {ranks_text(bad)} is not finite"


def _points(
    telemetry: Telemetry,
    steps: Sequence[int],
    columns: Mapping[str, MetricColumn],
    *,
    onset: int | None,
    sentences: Mapping[int, str],
) -> Iterator[StepPoint]:
    """The points that tables and plots show: all of them, or those around the onset."""
    window = _window(steps, onset)
    shown = {name: columns[name].values[window].tolist() for name in _SHOWN}
    for at, step in enumerate(steps[window]):
        attempt = telemetry.attempt_of(step)
        assert attempt is not None, "telemetry.steps holds recorded steps only"
        yield StepPoint(
            attempt=attempt,
            step=step,
            loss=shown["loss"][at],
            grad_norm=shown["grad_norm"][at],
            update_norm=shown["update_norm"][at],
            lr=shown["lr"][at],
            alarm=sentences.get(step, ""),
        )


def _window(steps: Sequence[int], onset: int | None) -> slice:
    """At most `MAX_ROWS` steps: those up to a little behind the onset, or the last ones."""
    last = len(steps)
    if last <= MAX_ROWS:
        return slice(0, last)
    if onset is not None:
        last = min(last, steps.index(onset) + _ROWS_AFTER_ONSET)
    return slice(max(0, last - MAX_ROWS), max(last, MAX_ROWS))
