"""One logged number over a run's production, from the series of its attempts.

This module never judges a value: it says in which order the run went through them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from spiketriage.nouns.series import Floats, Integers, Series

CONSUMED = (
    *("consumed samples", "consumed_samples", "consumed_train_samples", "samples_seen"),
    *("consumed tokens", "consumed_tokens", "tokens/total", "total_tokens", "tokens_seen"),
    *("num_tokens", "num_input_tokens_seen", "throughput/total_tokens"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A number along production; the arrays are 1-D, equally long, and `steps` grow."""

    written_as: str
    source: str
    steps: Integers
    values: Floats
    attempts: Integers


def logged(series: Iterable[Series], wanted: Iterable[str]) -> tuple[Logged, ...]:
    """Every number that is called one of `wanted` (in lower case), by source and spelling."""
    names = frozenset(wanted)
    groups: dict[tuple[str, str, int | None], list[Series]] = {}
    for part in series:
        if part.written_as.strip().lower() in names or part.name in names:
            groups.setdefault((part.source, part.written_as, part.rank), []).append(part)
    numbers = []
    for parts in groups.values():
        production = _production(parts)
        if len(production.steps):
            numbers.append(production)
    return tuple(numbers)


def _production(parts: list[Series]) -> Logged:
    """What stands after every rollback: an attempt ends where a later one began."""
    steps: list[Integers] = []
    values: list[Floats] = []
    attempts: list[Integers] = []
    end: int | None = None
    for part in sorted(parts, key=lambda part: -part.attempt):
        kept = np.isfinite(part.values)
        if end is not None:
            kept &= part.steps < end
        steps.insert(0, part.steps[kept])
        values.insert(0, part.values[kept])
        attempts.insert(0, np.full(int(kept.sum()), part.attempt, dtype=np.int64))
        if len(part.steps):
            first = int(part.steps.min())
            end = first if end is None else min(first, end)
    all_steps, all_values = np.concatenate(steps), np.concatenate(values)
    all_attempts = np.concatenate(attempts)
    # Of two rows of one step the later counts: `unique` keeps the first of the reversed array.
    unique, last = np.unique(all_steps[::-1], return_index=True)
    places = len(all_steps) - 1 - last
    return Logged(
        written_as=parts[0].written_as,
        source=parts[0].source,
        steps=unique,
        values=all_values[places],
        attempts=all_attempts[places],
    )
