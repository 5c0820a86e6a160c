"""Series of metrics as a log holds them: columns of steps and values, and where the log went back.

This module holds no behaviour beyond small derived properties and never reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spiketriage.nouns.listing import readable
from spiketriage.nouns.telemetry import Event

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric of one rank and attempt.

    `steps` and `values` are 1-D and equally long, in the order of the source.

    `name` is of `wire.chain.METRICS` where that is known, else as written. Values that a log hides
    (a missing key, a filtered zero) are NaN here, and `reasons` says why by position. `trusted` is
    False when the source cannot show what it claims to; `trust` is the reason, either way.
    """

    source: str
    name: str
    written_as: str
    attempt: int
    rank: int | None
    steps: Integers
    values: Floats
    times_s: Floats | None = None
    reasons: Mapping[int, str] = field(default_factory=dict)
    trusted: bool = True
    trust: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """A restart that went back.

    The attempt that begins, the last step before it, the first step of it.
    """

    attempt: int
    last_step: int
    first_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """One telemetry source.

    `num_near_misses` are lines that look like the format's but could not be read.
    """

    format: str
    path: Path
    series: tuple[Series, ...]
    rollbacks: tuple[Rollback, ...] = ()
    events: tuple[Event, ...] = ()
    identity: Mapping[str, str] = field(default_factory=dict)
    num_lines: int = 0
    num_matched: int = 0
    num_near_misses: int = 0
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Whatever words the sentences quote, they can be read and stored."""
        object.__setattr__(self, "problems", readable(self.problems))
        object.__setattr__(self, "notes", readable(self.notes))
