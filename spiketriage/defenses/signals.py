"""What a run itself shows of its defences.

Metrics as applied, state that only a defence leaves, names of tensors.

It never takes silence for an answer: a signal that was not recorded gives no evidence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from spiketriage.defenses.keys import Mark
from spiketriage.defenses.weigh import Evidence
from spiketriage.nouns.telemetry import StepRecord

_QK = re.compile(
    r"(?:^|[._])(?:q_norm|k_norm|qk_norm|q_layernorm|k_layernorm|q_ln|k_ln|query_norm|key_norm)(?:[._]|$)",
    re.I,
)
_EXPERT = re.compile(r"expert|router|moe", re.I)
FIRST_STEPS = 2  # a run whose log begins later may have warmed up before it
MIN_STEPS = 20
RISE = 2.0


def from_steps(records: Sequence[StepRecord]) -> list[Evidence]:
    """Evidence in the records of one rank, in the order of steps."""
    return [
        *_clip(records),
        *_loss_scale(records),
        *_rate(records),
        *_series(records),
        *_guard(records),
    ]


def from_tensors(names: Iterable[str], where: str) -> list[Evidence]:
    """Evidence in the names of a generation's parameters; a norm without a gain leaves no name."""
    names = sorted(set(names))
    found = [
        _seen("qk-norm", "on", f"parameter {name}", where) for name in names if _QK.search(name)
    ][:1]
    if names and not any(_EXPERT.search(name) for name in names):
        text = f"none of {len(names)} parameters is named after an expert or a router"
        found.append(_seen("router-balance", "unneeded", text, where))
    return found


def from_scaler(state: Mapping[str, object], where: str) -> list[Evidence]:
    """Evidence in the state of a loss scale; a scale of 1 is none."""
    for name in ("scale", "cur_scale", "_scale"):
        value = state.get(name)
        if isinstance(value, int | float) and value > 1:
            return [_seen("loss-scale", "on", f"state of a loss scale, {name} = {value:g}", where)]
    return []


def _clip(records: Sequence[StepRecord]) -> Iterator[Evidence]:
    for record in reversed(records):
        if "clip/threshold" in record.metrics:
            value = record.metrics["clip/threshold"]
            is_on = math.isfinite(value) and value > 0
            yield _seen(
                "global-clip", "on" if is_on else "off", f"clip/threshold = {value:g}", _at(record)
            )
            return


def _loss_scale(records: Sequence[StepRecord]) -> Iterator[Evidence]:
    points = []
    for record in records:
        if "loss_scale" in record.metrics:
            points.append((record.metrics["loss_scale"], record))
    values = {value for value, _ in points if math.isfinite(value)}
    if not values:
        return
    span = f"telemetry, steps {points[0][1].step} to {points[-1][1].step}"
    if values == {1.0}:
        yield _seen("loss-scale", "off", "loss_scale = 1 throughout", span)
    elif len(values) == 1:
        yield _seen(
            "loss-scale",
            "hint",
            f"loss_scale = {values.pop():g} throughout, constant or not moved yet",
            span,
        )
    else:
        yield _seen(
            "loss-scale",
            "on",
            f"loss_scale moves between {min(values):g} and {max(values):g}",
            span,
        )


def _rate(records: Sequence[StepRecord]) -> Iterator[Evidence]:
    """A warm-up is a rate that rises from the first step on.

    A constant one is told only where the log begins there.
    """
    points = []
    for record in records:
        if math.isfinite(record.metrics.get("lr", math.nan)):
            points.append((record.step, record.metrics["lr"]))
    if len(points) < MIN_STEPS or points[0][0] > FIRST_STEPS:
        return
    (first, began), (top, peak) = points[0], max(points, key=lambda point: point[1])
    if peak >= RISE * began and peak > 0:
        yield _seen(
            "schedule",
            "on",
            f"lr rises from {began:.3g} at step {first} to {peak:.3g} at step {top}",
            "telemetry",
        )
    elif len({rate for _, rate in points}) == 1:
        yield _seen(
            "schedule",
            "off",
            f"lr = {began:.3g} at every step from {first} to {points[-1][0]}",
            "telemetry",
        )


def _series(records: Sequence[StepRecord]) -> Iterator[Evidence]:
    """Vectors that only FP8 or experts have."""
    for record in reversed(records):
        if record.series.get("fp8/scale"):
            yield _seen("fp8-scaling", "on", "fp8/scale is recorded", _at(record))
            break
    for record in reversed(records):
        if any(record.series.get("moe/bias", ())):
            yield _seen("router-balance", "on", "moe/bias has moved", _at(record))
            break
    else:
        loads = [record for record in records if record.series.get("moe/load")]
        if loads:
            yield _seen(
                "router-balance", "hint", "there are experts: moe/load is recorded", _at(loads[-1])
            )


def _guard(records: Sequence[StepRecord]) -> Iterator[Evidence]:
    for record in reversed(records):
        if "guard/action" in record.metrics:
            yield _seen("guard", "on", "guard/action is recorded", _at(record))
            return


def _at(record: StepRecord) -> str:
    return f"telemetry, step {record.step}"


def _seen(defense: str, mark: Mark, text: str, where: str) -> Evidence:
    return Evidence(defense=defense, mark=mark, layer="seen", text=text, where=where)
