"""The rules that judge one signal of a run against its own past.

This module never looks at two signals at once and never learns from an outlier; `detector` puts
the rules together.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from spiketriage.detect.alarms import Alarm, Trigger, alarm
from spiketriage.detect.bands import BEFORE_ROWS, Band, Sorted

# eight of the last ten beyond 2.5 scales on one side
SHIFT_COUNT, SHIFT_ROWS, SHIFT_SCALES = 8, BEFORE_ROWS, 2.5
START_ROWS, START_LAST, START_JUMPS = 16, 3, 3.0  # see Judge._starting
# of the first rows: more than 1.6 times the largest so far and 2 nats
FIRST_RATIO, FIRST_STEP = 1.6, 2.0
SURPRISE = 5.0  # scales from which a value is a surprise, and is not learned
SURPRISE_FACTOR, SURPRISE_ROWS, SURPRISES_KEPT = 1.6, 10_000, 8  # see Judge._bar
AGAIN_ROWS = 3  # two surprises on one side within so many rows are no chance
# of magnitudes that are taken for numbers; fp32 ends at 3.4e38, and squares must stay finite
LARGEST = 1e100
HABIT_ROWS = 8  # rows in a row in which a nonzero value was there before its absence means anything
ZEROS_REMEMBERED = 10_000  # rows after which a zero is forgotten
LEAST_LOSS = 0.1  # a loss that may round to zero, or have no gradient, is below this
CLIMB_ROWS, CLIMB_SCALES = 100, 2.0  # the median of 100 above its own minimum by this many scales


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A judged series: `floor` is the smallest scale that is believed, `width` the band in scales.

    From `sure` scales on, no surprise before excuses a value (see Judge._bar). A value `far` off
    the median, in the space in which the signal is judged, is out from `far_scales` on, whatever
    the run got away with before: for a logarithmic signal that is k × running median. `shifts` are
    the sides (1 up, -1 down) on which a lasting shift within the band is an alarm. `trend` says
    that the signal goes somewhere, so that its median lags behind it. `start` is the least jump
    that the start-up rule believes, `climb` the least slow climb; 0 switches a rule off. `zeros`
    says whether a vanished value is an anomaly.
    """

    name: str
    floor: float
    logarithmic: bool = False
    width: float = 7.0
    sure: float = 12.0
    far: float = math.inf
    far_scales: float = 6.5
    shifts: tuple[int, ...] = ()
    trend: bool = False
    start: float = 0.0
    climb: float = 0.0
    zeros: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A recent value and how far out it was: in scales of then, and of before a possible shift."""

    step: int
    value: float
    score: float
    shift: float


class Judge:
    """The rules of one signal with their memory."""

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self._band = Band(signal.floor, trend=signal.trend)
        self._recent: deque[_Seen] = deque(maxlen=SHIFT_ROWS)
        self._is_shifted = False
        self._num_rows = 0
        self._surprises: list[tuple[int, float]] = []  # row and score of the largest
        self._has_zero = False  # a zero that the run has shown is no news
        self._num_nonzero = 0  # nonzero values since the last zero
        self._num_large = 0  # of them, values in a row that could not round to zero
        self._climb = Sorted(CLIMB_ROWS)
        self._lowest = math.inf

    def peek(self, step: int, value: float) -> list[Alarm]:
        """What is wrong with the value alone; nothing is remembered."""
        odd = self._odd(step, value)
        if odd:
            return [odd]
        if self._is_judged(value):
            return self._outside(self._look(step, value))
        return []

    def feed(self, step: int, value: float) -> list[Alarm]:
        """Judge the next value and learn from it."""
        odd = self._odd(step, value)
        if _is_number(value):
            self._remember_zero(value)
        if odd:
            return [odd]
        if not self._is_judged(value):
            return []
        seen = self._look(step, value)
        outside = self._outside(seen)
        is_outlier = bool(outside) or abs(seen.score) > SURPRISE
        self._remember_surprise(seen)
        self._recent.append(seen)
        alarms = [*outside, *self._lasting(step, is_reported=bool(outside))]
        self._band.learn(self._inner(value), is_outlier=is_outlier)
        if is_outlier:
            return alarms
        return [*alarms, *self._climbing(step, value)]

    def state(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "band": self._band.state(),
            "recent": [asdict(seen) for seen in self._recent],
            "is_shifted": self._is_shifted,
            "num_rows": self._num_rows,
            "surprises": [list(surprise) for surprise in self._surprises],
            "has_zero": self._has_zero,
            "num_nonzero": self._num_nonzero,
            "num_large": self._num_large,
            "climb": self._climb.values,
            "lowest": None if math.isinf(self._lowest) else self._lowest,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self._band.restore(state["band"])
        self._recent = deque((_Seen(**seen) for seen in state["recent"]), maxlen=SHIFT_ROWS)
        self._is_shifted = state["is_shifted"]
        self._num_rows = state["num_rows"]
        self._surprises = [(int(at), float(score)) for at, score in state["surprises"]]
        self._has_zero = state["has_zero"]
        self._num_nonzero, self._num_large = state["num_nonzero"], state["num_large"]
        self._climb = Sorted(CLIMB_ROWS, state["climb"])
        self._lowest = math.inf if state["lowest"] is None else state["lowest"]

    def _inner(self, value: float) -> float:
        if self.signal.logarithmic:
            return math.log(value)
        return value

    def _outer(self, inner: float) -> float:
        if self.signal.logarithmic:
            return math.exp(inner)
        return inner

    def _is_judged(self, value: float) -> bool:
        """Whether the value belongs to the band: of a signal with zeros, the others do."""
        if not _is_number(value) or (value == 0 and self.signal.zeros):
            return False
        return value > 0 or not self.signal.logarithmic

    def _odd(self, step: int, value: float) -> Alarm | None:
        """A value that no healthy step has, whatever came before; or a zero where none ever was."""
        name = self.signal.name
        if not _is_number(value):
            return alarm(
                name, "nonfinite", step, f"step {step}: {name} is not a finite number", value=value
            )
        if not self.signal.zeros:
            return None
        if value < 0 and self.signal.logarithmic and self._num_nonzero > 0:
            # DeepSpeed writes -1 for the norm of a gradient that overflowed.
            return alarm(
                name,
                "nonfinite",
                step,
                f"step {step}: {name} is {value:.4g}, which no norm is",
                value=value,
            )
        habit = self._num_nonzero if self.signal.logarithmic else self._num_large
        if value == 0 and habit >= HABIT_ROWS and not self._has_zero:
            # HF Trainer's NaN filter writes 0.0 for a loss that was NaN.
            sentence = f"step {step}: {name} is exactly zero, which none of the last {habit} was"
            return alarm(name, "vanished", step, sentence, value=value)
        return None

    def _remember_zero(self, value: float) -> None:
        is_zero = value == 0 or (self.signal.logarithmic and value < 0)
        self._num_nonzero = _in_a_row(self._num_nonzero, not is_zero)
        if value == 0:
            self._has_zero = True
        elif self._num_nonzero == ZEROS_REMEMBERED:
            self._has_zero = False
        self._num_large = _in_a_row(self._num_large, abs(value) > LEAST_LOSS)

    def _remember_surprise(self, seen: _Seen) -> None:
        self._num_rows += 1
        if abs(seen.score) > SURPRISE:
            self._surprises.append((self._num_rows, min(abs(seen.score), self.signal.sure)))
            self._surprises = sorted(self._surprises, key=lambda surprise: surprise[1])[
                -SURPRISES_KEPT:
            ]

    def _look(self, step: int, value: float) -> _Seen:
        if not self._band.is_ready:
            return _Seen(step=step, value=value, score=0.0, shift=0.0)
        distance = self._inner(value) - self._band.centre
        score, shift = distance / self._band.scale, distance / self._band.scale_before
        return _Seen(step=step, value=value, score=score, shift=shift)

    def _outside(self, seen: _Seen) -> list[Alarm]:
        """Out is what is beyond the bar, far off, or a second surprise on its side in 3 rows."""
        if not self._band.is_ready:
            return self._starting(seen.step, seen.value)
        score, name, expected = abs(seen.score), self.signal.name, self._expected()
        is_far = (
            score > self.signal.far_scales
            and abs(self._inner(seen.value) - self._band.centre) > self.signal.far
        )
        if score > self._bar() or self._is_again(seen):
            trigger: Trigger = "band"
        elif is_far:
            trigger = "ratio" if self.signal.logarithmic else "band"
        else:
            return []
        side = _side(seen.score)
        sentence = (
            f"step {seen.step}: {name} {seen.value:.4g} is {score:.1f} scales {side} the "
            f"running median {expected:.4g}"
        )
        return [
            alarm(
                name, trigger, seen.step, sentence, value=seen.value, expected=expected, score=score
            )
        ]

    def _bar(self) -> float:
        """How far out a value has to be: 1.6 times the largest surprise of the last 10,000 rows.

        Healthy runs have lone outliers, some runs none and some one in a hundred rows, and no
        window that is short enough to follow a run knows which. The bar never rises above `sure`,
        so one huge spike hides no other.
        """
        largest = 0.0
        for at, score in self._surprises:
            if self._num_rows - at <= SURPRISE_ROWS:
                largest = max(largest, score)
        return min(self.signal.sure, max(self.signal.width, SURPRISE_FACTOR * largest))

    def _is_again(self, seen: _Seen) -> bool:
        if len(self._surprises) == SURPRISES_KEPT:
            return False  # of a run with so many of them, two at a time are no news
        side = math.copysign(1.0, seen.score)
        before = list(self._recent)[-AGAIN_ROWS + 1 :]
        return side * seen.score > SURPRISE and any(
            side * earlier.score > SURPRISE for earlier in before
        )

    def _starting(self, step: int, value: float) -> list[Alarm]:
        """The coarse upward rule of a run's first rows, of which only is known that they go down.

        A value is out if it exceeds the last three by three times the largest jump so far, and by
        `start`.
        """
        if not self.signal.start:
            return []
        last = self._band.last(START_ROWS)
        if len(last) <= START_LAST:
            return self._first(step, value, last)
        jumps = max(abs(b - a) for a, b in itertools.pairwise(last))
        reach = max(last[-START_LAST:]) + max(self.signal.start, START_JUMPS * jumps)
        if self._inner(value) > reach:
            return self._started(step, value, last)
        return []

    def _first(self, step: int, value: float, last: list[float]) -> list[Alarm]:
        """Of the second to fourth row: out if it is far above every one before, as no start is."""
        if not last:
            return []
        most = max(last)
        if self.signal.logarithmic:
            reach = most + 2 * self.signal.start
        else:
            reach = FIRST_RATIO * max(most, 0.0) + FIRST_STEP
        if self._inner(value) > reach:
            return self._started(step, value, last)
        return []

    def _started(self, step: int, value: float, last: list[float]) -> list[Alarm]:
        name, recent = self.signal.name, max(last[-START_LAST:])
        expected = self._outer(recent)
        score = (self._inner(value) - recent) / self.signal.start
        sentence = (
            f"step {step}: {name} {value:.4g} jumps above the {expected:.4g} of the rows "
            "before, at the start"
        )
        return [
            alarm(name, "start-up", step, sentence, value=value, expected=expected, score=score)
        ]

    def _lasting(self, step: int, *, is_reported: bool) -> list[Alarm]:
        """A shift within the band, said once: eight of the last ten rows on one side."""
        first = self._shift()
        is_new = first is not None and not self._is_shifted and not is_reported
        self._is_shifted = first is not None
        if first is None or not is_new:
            return []
        name, expected, score = self.signal.name, self._expected(), abs(first.shift)
        side = _side(first.shift)
        sentence = (
            f"step {first.step}: {name} stays {side} the running median {expected:.4g}:"
            f" {SHIFT_COUNT} of {SHIFT_ROWS} steps beyond {SHIFT_SCALES} scales"
        )
        return [
            alarm(
                name,
                "lasting",
                step,
                sentence,
                value=first.value,
                expected=expected,
                score=score,
                began=first.step,
            )
        ]

    def _shift(self) -> _Seen | None:
        """The first of the rows that are far out on one side, if they are eight of the last ten."""
        for side in self.signal.shifts:
            beyond = [seen for seen in self._recent if side * seen.shift > SHIFT_SCALES]
            if len(beyond) >= SHIFT_COUNT:
                return beyond[0]
        return None

    def _climbing(self, step: int, value: float) -> list[Alarm]:
        """A slow climb: the median of the last 100 accepted values above the lowest such median."""
        if not self.signal.climb:
            return []
        self._climb.append(value)
        if not self._climb.is_full:
            return []
        median, lowest = self._climb.quantile(0.5), self._lowest
        self._lowest = min(lowest, median)
        score = (median - lowest) / max(self.signal.climb, CLIMB_SCALES * self._band.scale)
        if not score > 1:
            return []
        self._lowest = median  # said once, and again only after as much more
        name = self.signal.name
        sentence = (
            f"step {step}: {name} climbs slowly: its median of {CLIMB_ROWS} is {median:.4g} "
            f"and was {lowest:.4g}"
        )
        return [alarm(name, "climb", step, sentence, value=median, expected=lowest, score=score)]

    def _expected(self) -> float:
        return self._outer(self._band.centre)


def _side(distance: float) -> str:
    if distance > 0:
        return "above"
    return "below"


def _in_a_row(count: int, is_one_more: bool) -> int:
    """The count of rows in a row, which ends where one is none of them."""
    if not is_one_more:
        return 0
    return min(count + 1, ZEROS_REMEMBERED)


def _is_number(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= LARGEST
