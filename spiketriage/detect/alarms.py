"""What a rule raises: one anomaly, with what was expected and a sentence for a person.

This module judges nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Trigger = Literal[
    "nonfinite",
    "missing",
    "vanished",
    "band",
    "ratio",
    "start-up",
    "lasting",
    "climb",
    "loss-scale",
]
# The end of an episode, which is no anomaly of its own and no rule's.
Over = Literal["over"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One anomaly; `score` is the distance from `expected` in scales, infinite if nonfinite.

    `step` is where it began, `raised_at` the step whose row made it known: later for a lasting
    shift only.
    """

    step: int
    signal: str
    value: float
    expected: float
    score: float
    sentence: str
    trigger: Trigger | Over
    raised_at: int


def alarm(
    signal: str,
    trigger: Trigger | Over,
    step: int,
    sentence: str,
    *,
    value: float = math.nan,
    expected: float = math.nan,
    score: float = math.inf,
    began: int | None = None,
) -> Alarm:
    """An alarm raised at `step`; `began` is where it began, if earlier."""
    return Alarm(
        step=step if began is None else began,
        signal=signal,
        value=value,
        expected=expected,
        score=score,
        sentence=sentence,
        trigger=trigger,
        raised_at=step,
    )
