"""What a run itself shows of its stabilizers: metrics as applied, state they leave, tensor names.

This module never takes silence for an answer: a signal that was not recorded gives no evidence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from spiketriage.defenses.weigh import Evidence, Mark
from spiketriage.nouns.telemetry import StepRecord

_QK_NORM = re.compile(
    r"(?:^|[._])"
    r"(?:q_norm|k_norm|qk_norm|q_layernorm|k_layernorm|q_ln|k_ln|query_norm|key_norm)"
    r"(?:[._]|$)",
    re.IGNORECASE,
)
_EXPERT = re.compile(r"expert|router|moe", re.IGNORECASE)
FIRST_STEPS = 2  # a run whose log begins later may have warmed up before it
MIN_STEPS = 20  # in fewer, a slow warm-up may not have moved the rate yet
RISE = 2.0  # a rate that at least doubles from its first step on has been warmed up


def from_steps(records: Sequence[StepRecord]) -> list[Evidence]:
    """Evidence in the records of one rank, in the order of steps."""
    return [
        *_clip(records),
        *_loss_scale(records),
        *_warmup(records),
        *_fp8(records),
        *_experts(records),
        *_guard(records),
    ]


def from_tensors(names: Iterable[str], where: str) -> list[Evidence]:
    """Evidence in the names of a generation's parameters; a norm without a gain leaves no name."""
    names = sorted(set(names))
    evidence = []
    for name in names:
        if _QK_NORM.search(name):
            evidence.append(_seen("qk-norm", "on", f"parameter {name}", where))
            break
    if names and not any(map(_EXPERT.search, names)):
        text = f"none of {len(names)} parameters is named after an expert or a router"
        evidence.append(_seen("router-balance", "unneeded", text, where))
    return evidence


def from_scaler(state: Mapping[str, object], where: str) -> list[Evidence]:
    """Evidence in the state of a loss scale; a scale of 1 is none."""
    for name in ("scale", "cur_scale", "_scale"):
        value = state.get(name)
        if isinstance(value, int | float) and value > 1:
            return [_seen("loss-scale", "on", f"state of a loss scale, {name} = {value:g}", where)]
    return []


def _clip(records: Sequence[StepRecord]) -> Iterator[Evidence]:
    """The newest threshold: an infinite one clips nothing."""
    for record in reversed(records):
        threshold = record.metrics.get("clip/threshold")
        if threshold is None:
            continue
        mark: Mark = "off"
        if math.isfinite(threshold) and threshold > 0:
            mark = "on"
        yield _seen("global-clip", mark, f"clip/threshold = {threshold:g}", _at(record))
        return


def _loss_scale(records: Sequence[StepRecord]) -> Iterator[Evidence]:
    """A scale that moves is dynamic; a constant one may be that or not."""
    steps, scales = [], set()
    for record in records:
        scale = record.metrics.get("loss_scale")
        if scale is None:
            continue
        steps.append(record.step)
        if math.isfinite(scale):
            scales.add(scale)
    if not scales:
        return
    low, high = min(scales), max(scales)
    span = f"telemetry, steps {steps[0]} to {steps[-1]}"
    if low < high:
        yield _seen("loss-scale", "on", f"loss_scale moves between {low:g} and {high:g}", span)
    elif low == 1.0:
        yield _seen("loss-scale", "off", "loss_scale = 1 throughout", span)
    else:
        text = f"loss_scale = {low:g} throughout, constant or not moved yet"
        yield _seen("loss-scale", "hint", text, span)


def _warmup(records: Sequence[StepRecord]) -> Iterator[Evidence]:
    """A warm-up is a rate that rises from the first step on.

    A constant rate counts only where the log begins at the run's first steps.
    """
    points = []
    for record in records:
        rate = record.metrics.get("lr", math.nan)
        if math.isfinite(rate):
            points.append((record.step, rate))
    if len(points) < MIN_STEPS or points[0][0] > FIRST_STEPS:
        return
    first_step, first_rate = points[0]
    top_step, top_rate = max(points, key=lambda point: point[1])
    if top_rate >= RISE * first_rate and top_rate > 0:
        text = (
            f"lr rises from {first_rate:.3g} at step {first_step} "
            f"to {top_rate:.3g} at step {top_step}"
        )
        yield _seen("schedule", "on", text, "telemetry")
    elif all(rate == first_rate for _, rate in points):
        text = f"lr = {first_rate:.3g} at every step from {first_step} to {points[-1][0]}"
        yield _seen("schedule", "off", text, "telemetry")


def _fp8(records: Sequence[StepRecord]) -> Iterator[Evidence]:
    for record in reversed(records):
        if record.series.get("fp8/scale"):
            yield _seen("fp8-scaling", "on", "fp8/scale is recorded", _at(record))
            return


def _experts(records: Sequence[StepRecord]) -> Iterator[Evidence]:
    """A bias that has moved balances; loads alone say that there are experts to balance."""
    for record in reversed(records):
        if any(record.series.get("moe/bias", ())):
            yield _seen("router-balance", "on", "moe/bias has moved", _at(record))
            return
    for record in reversed(records):
        if record.series.get("moe/load"):
            text = "there are experts: moe/load is recorded"
            yield _seen("router-balance", "hint", text, _at(record))
            return


def _guard(records: Sequence[StepRecord]) -> Iterator[Evidence]:
    for record in reversed(records):
        if "guard/action" in record.metrics:
            yield _seen("guard", "on", "guard/action is recorded", _at(record))
            return


def _at(record: StepRecord) -> str:
    return f"telemetry, step {record.step}"


def _seen(stabilizer: str, mark: Mark, text: str, where: str) -> Evidence:
    return Evidence(stabilizer=stabilizer, mark=mark, layer="seen", text=text, where=where)
