"""Compare two chains link by link and name the first link that differs.

The comparison is exact on digests; it never decides whether a difference matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spiketriage.nouns.incident import Where
from spiketriage.nouns.telemetry import LoadRecord, StepRecord
from spiketriage.wire.chain import STATE_FIELDS, position

SCALARS = ("loss/sum", "loss/mean", "grad/norm", "update/norm")

Chain = Mapping[int, Mapping[int, StepRecord]]  # step → rank → record


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two chains side by side: how much was compared, and where they part first.

    `prefix_steps` counts the steps before the first difference; `keys` are all links of the first
    differing stage that differ, on the rank of `where`; `ranks` every rank on which that stage
    differs.
    """

    num_links: int
    num_steps: int
    prefix_steps: int
    where: Where | None
    keys: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()


def by_step(records: Iterable[StepRecord]) -> dict[int, dict[int, StepRecord]]:
    """Records as a chain."""
    chain: dict[int, dict[int, StepRecord]] = {}
    for record in records:
        chain.setdefault(record.step, {})[record.rank] = record
    return chain


def compare(left: Chain, right: Chain) -> Comparison:
    """First difference over the steps and ranks that both chains have, in chain order."""
    num_links, prefix = 0, 0
    steps = sorted(set(left) & set(right))
    for step in steps:
        found: dict[tuple[int, str], dict[int, list[str]]] = {}
        for rank in sorted(set(left[step]) & set(right[step])):
            ours, theirs = left[step][rank].digests, right[step][rank].digests
            # NaN has many bit patterns: a link that is nonfinite on both sides has nothing to
            # compare.
            silent = set(left[step][rank].nonfinite) & set(right[step][rank].nonfinite)
            for link, digest in ours.items():
                if link not in theirs or link in silent:
                    continue
                num_links += 1
                if theirs[link] != digest:
                    found.setdefault((position(link.stage), link.stage), {}).setdefault(
                        rank, []
                    ).append(link.key)
        if found:
            (_, stage), ranks = min(found.items())
            rank = min(ranks)
            return Comparison(
                num_links=num_links,
                num_steps=len(steps),
                prefix_steps=prefix,
                where=Where(
                    step=step,
                    stage=stage,
                    key=ranks[rank][0],
                    rank=rank if len(ranks) == 1 else None,
                ),
                keys=tuple(ranks[rank]),
                ranks=tuple(ranks),
            )
        prefix += 1
    return Comparison(num_links=num_links, num_steps=len(steps), prefix_steps=prefix, where=None)


def compare_loads(left: Iterable[LoadRecord], right: Iterable[LoadRecord]) -> Where | None:
    """First state field that two loads of the same generation left different."""
    ours = {(load.rank, load.generation): load for load in left}
    theirs = {(load.rank, load.generation): load for load in right}
    for name in STATE_FIELDS:
        ranks = []
        for key in sorted(set(ours) & set(theirs)):
            if _is_other(ours[key].fields.get(name), theirs[key].fields.get(name)):
                ranks.append(key[0])
        if ranks:
            step = next(load.step for load in ours.values())
            return Where(
                step=step + 1,
                stage="restored",
                key=name,
                rank=ranks[0] if len(ranks) == 1 else None,
            )
    return None


def _is_other(one: str | None, other: str | None) -> bool:
    """Whether both loads state a digest, and not the same.

    After a rollback production states none of its guard.
    """
    return bool(one and other and one != other)


def relative_noise(left: Chain, right: Chain) -> float:
    """Largest relative difference of the scalar stages of two chains.

    Nonfinite against the same nonfinite is none.
    """
    worst = 0.0
    for step in set(left) & set(right):
        for rank in set(left[step]) & set(right[step]):
            for name in SCALARS:
                ours, theirs = (
                    left[step][rank].metrics.get(name),
                    right[step][rank].metrics.get(name),
                )
                if ours is not None and theirs is not None:
                    worst = max(worst, relative(ours, theirs))
    return worst


def relative(left: float, right: float) -> float:
    """|left − right| over the larger magnitude.

    0 for two values that are nonfinite in the same way.
    """
    if math.isfinite(left) and math.isfinite(right):
        scale = max(abs(left), abs(right))
        if scale:
            return abs(left - right) / scale
        return 0.0
    same = (math.isnan(left) and math.isnan(right)) or left == right
    if same:
        return 0.0
    return math.inf
