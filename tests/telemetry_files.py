"""What tests of telemetry readers share: where the fixtures lie, and a series by its name.

This module never writes into `fixtures/`.
"""

from __future__ import annotations

import math
from pathlib import Path

from spiketriage.nouns.series import LogFacts, Series

FIXTURES = Path(__file__).parents[1] / "fixtures" / "telemetry"
CORPUS = Path(__file__).parents[2] / "shared" / "corpus"
NUM_STEPS = 20
LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4" * 64 + b"\nsize 12345\n"
)


def loss(step: int) -> float:
    """The loss that `fixtures/make_telemetry.py` gives a step, written down once more."""
    return math.nan if step == 18 else 8.0 / (1 + step)


def one(facts: LogFacts, name: str, attempt: int = 0, rank: int | None = None) -> Series:
    """The only series of that name, attempt and rank."""
    found = [s for s in facts.series if s.name == name and s.attempt == attempt and s.rank == rank]
    assert len(found) == 1, [(s.name, s.attempt, s.rank) for s in facts.series]
    return found[0]


def points(series: Series) -> list[tuple[int, float]]:
    """A series as pairs; NaN becomes None so that pairs can be compared."""
    return [
        (step, None if math.isnan(value) else value)
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True)
    ]
