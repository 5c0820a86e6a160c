"""What counts as a spike: one rule set that the guard feeds row by row and the desk over arrays.

This module needs numpy only, never learns from an outlier, and never alarms on what a log did not
mean to hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spiketriage.detect.alarms import Alarm, Trigger, alarm
from spiketriage.detect.loss_scale import Scaling
from spiketriage.detect.rules import HABIT_ROWS, LEAST_LOSS, Judge, Signal

__all__ = ["Alarm", "Array", "Detector", "Row", "Trace", "Trigger", "Verdict", "scan"]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

SCHEMA = 2  # of Detector.state()

# Floors and widths were tuned on two seeds of tests/bench/bench_detection.py, measured on a third.
# The gradient norm's floor makes its band at least 2.9 times its median: at 3 a healthy history of
# the prototype was quiet, at 2.5 it was not.
_SIGNALS: Mapping[str, Signal] = {
    # A loss that falls lastingly is learning, or the next epoch; what falls out of the band is an
    # alarm all the same.
    "loss": Signal(
        name="loss",
        floor=0.03,
        far=0.5,
        sure=15.0,
        shifts=(1,),
        trend=True,
        start=1.0,
        climb=0.12,
        zeros=True,
    ),
    "grad_norm": Signal(
        name="grad_norm",
        logarithmic=True,
        floor=0.15,
        far=math.log(8),
        sure=15.0,
        far_scales=4.0,
        shifts=(1, -1),
        start=math.log(30),
        zeros=True,
    ),
    "update_norm": Signal(name="update_norm / lr", logarithmic=True, floor=0.045, width=6.0),
    "rms_t": Signal(name="rms_t", logarithmic=True, floor=0.06, width=6.0, shifts=(1, -1)),
    "logz": Signal(name="logz", floor=0.05, shifts=(1, -1), climb=3.0),
    "attention_max": Signal(name="attention_max", logarithmic=True, floor=0.1),
}
# of a step without an update
_OF_THE_UPDATE = ("update_norm", "rms_t")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Global values of one step. None was not logged; NaN and infinities were, and are anomalies.

    `loss` in nats per valid token (any unit does); `grad_norm` before clipping; `rms_t`, `logz` and
    `attention_max` as `wire.chain` names them. `skipped` is how many updates loss scaling left out
    since the row before (True is one): a row may stand for an interval of steps.
    """

    step: int
    loss: float | None = None
    grad_norm: float | None = None
    update_norm: float | None = None
    lr: float | None = None
    rms_t: float | None = None
    logz: float | None = None
    attention_max: float | None = None
    loss_scale: float | None = None
    skipped: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Global values of production by step, 1-D and of equal length; NaN where nonfinite or missing.

    `not_logged` says by field where a log never meant to hold a value: those rows are passed over.
    NaN counts as an anomaly in `loss` and `grad_norm` only, since every run has those; `skipped` is
    a count, as in a `Row`.
    """

    steps: Array
    loss: Array
    grad_norm: Array
    update_norm: Array
    lr: Array
    rms_t: Array | None = None
    logz: Array | None = None
    attention_max: Array | None = None
    loss_scale: Array | None = None
    skipped: Array | None = None
    not_logged: Mapping[str, Flags] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one row came to: its alarms, gravest first; none is the usual case."""

    step: int
    alarms: tuple[Alarm, ...]

    @property
    def is_anomalous(self) -> bool:
        """Whether there is any alarm."""
        return bool(self.alarms)

    @property
    def is_nonfinite(self) -> bool:
        """Whether some value is not a number that training can go on from."""
        hopeless = ("nonfinite", "missing", "vanished")
        return any(raised.trigger in hopeless for raised in self.alarms)


class Detector:
    """The rules with their memory.

    `logs_at_will` is a log in which a key may be absent without meaning anything.
    """

    def __init__(self, *, logs_at_will: bool = False) -> None:
        self._logs_at_will = logs_at_will
        self._judges = {name: Judge(signal) for name, signal in _SIGNALS.items()}
        self._scaling = Scaling()
        self._loss_habit = 0  # training rows in a row with a loss

    def feed(self, row: Row) -> Verdict:
        """Judge a row and learn from it; rows come in the order in which they happened."""
        is_skip = self._scaling.is_skip(row.loss_scale, num_skipped=row.skipped)
        alarms = [
            *self._missing(row, is_skip=is_skip),
            *self._scaling.feed(row.step, row.loss_scale, is_skip=is_skip, num_skipped=row.skipped),
        ]
        for name, value in _judged(row, is_skip=is_skip):
            alarms += self._judges[name].feed(row.step, value)
        if row.loss is not None:
            self._loss_habit += 1
        elif not is_skip and _is_training(row):
            self._loss_habit = 0
        return _verdict(row, alarms)

    def peek(self, row: Row) -> Verdict:
        """Judge a row of which not all may be known yet, and remember nothing of it."""
        is_skip = self._scaling.is_skip(row.loss_scale, num_skipped=row.skipped)
        alarms = self._missing(row, is_skip=is_skip)
        for name, value in _judged(row, is_skip=is_skip):
            alarms += self._judges[name].peek(row.step, value)
        return _verdict(row, alarms)

    def state(self) -> dict[str, Any]:
        """All that later verdicts rest on, as plain JSON (at most 60 kB).

        `restore` goes on from it bit for bit.
        """
        return {
            "schema": SCHEMA,
            "logs_at_will": self._logs_at_will,
            "loss_habit": self._loss_habit,
            "scaling": self._scaling.state(),
            "signals": {name: judge.state() for name, judge in self._judges.items()},
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Detector:
        """The detector whose `state()` this is.

        Raises:
            ValueError: the state is of another version of the rules; begin anew then.
        """
        if state.get("schema") != SCHEMA or set(state["signals"]) != set(_SIGNALS):
            raise ValueError(f"detector state of schema {state.get('schema')!r}, expected {SCHEMA}")
        made = cls(logs_at_will=state["logs_at_will"])
        made._loss_habit = state["loss_habit"]
        made._scaling.restore(state["scaling"])
        for name, judge in made._judges.items():
            judge.restore(state["signals"][name])
        return made

    def _missing(self, row: Row, *, is_skip: bool) -> list[Alarm]:
        """A loss that is absent where every training row held one.

        A skip of fp16 has none in some trainers.
        """
        if row.loss is not None or is_skip or self._logs_at_will or not _is_training(row):
            return []
        if self._loss_habit < HABIT_ROWS:
            return []
        sentence = f"step {row.step}: loss is missing, which the {HABIT_ROWS} rows before held"
        return [alarm("loss", "missing", row.step, sentence)]


def scan(trace: Trace) -> tuple[Alarm, ...]:
    """Every alarm of the trace, by step; the first one's step is the onset."""
    detector = Detector(logs_at_will=bool(trace.not_logged))
    alarms: list[Alarm] = []
    for row in _rows(trace):
        alarms += detector.feed(row).alarms
    return tuple(sorted(alarms, key=_by_step))


def _rows(trace: Trace) -> Iterator[Row]:
    columns: dict[str, list[float | None]] = {}
    for name in ("lr", "loss_scale", "skipped", *_SIGNALS):
        cells = _column(trace, name)
        if cells is not None:
            columns[name] = cells
    for at, step in enumerate(np.asarray(trace.steps).tolist()):
        row: dict[str, Any] = {name: cells[at] for name, cells in columns.items()}
        yield Row(step=int(step), **row)


def _column(trace: Trace, name: str) -> list[float | None] | None:
    """The cells of a field as rows hold them; a NaN that is no anomaly is None, as not logged."""
    values = getattr(trace, name)
    if values is None:
        return None
    values = np.asarray(values, dtype=np.float64)
    is_absent = trace.not_logged.get(name, np.zeros(len(values), dtype=np.bool_))
    if name not in ("loss", "grad_norm"):
        is_absent = is_absent | np.isnan(values)
    cells: list[float | None] = values.tolist()
    for at in np.flatnonzero(is_absent).tolist():
        cells[at] = None
    return cells


def _is_training(row: Row) -> bool:
    """Whether a training step wrote the row; an evaluation has neither."""
    values = (row.grad_norm, row.lr, row.loss_scale, row.loss)
    return any(value is not None for value in values)


def _judged(row: Row, *, is_skip: bool) -> Iterator[tuple[str, float]]:
    for name in _SIGNALS:
        value = getattr(row, name)
        if value is None or (is_skip and _is_of_a_skip(name, value)):
            continue
        if name == "grad_norm" and value == 0 and _is_nothing(row.loss):
            continue  # all rewards of a group agree: no advantage, no gradient
        if name == "update_norm" and math.isfinite(value):
            # Adam's update is proportional to the learning rate; at 0 or unknown nothing is
            # expected of it.
            if row.lr is None or not row.lr > 0 or row.skipped:
                continue
            value /= row.lr
        yield name, float(value)


def _is_nothing(loss: float | None) -> bool:
    return loss is not None and abs(loss) <= LEAST_LOSS


def _is_of_a_skip(name: str, value: float) -> bool:
    """Whether this is what an overflow of fp16 gradients leaves of a value.

    The norm is nonfinite, zero or -1; a row of several steps may show that of one that was taken.
    """
    if name == "grad_norm":
        return not (0 < value < math.inf)
    return name in _OF_THE_UPDATE


def _verdict(row: Row, alarms: list[Alarm]) -> Verdict:
    return Verdict(step=row.step, alarms=tuple(sorted(alarms, key=_by_gravity)))


def _by_gravity(raised: Alarm) -> tuple[float, str]:
    return -raised.score, raised.signal


def _by_step(raised: Alarm) -> tuple[int, float, str]:
    return raised.step, -raised.score, raised.signal
