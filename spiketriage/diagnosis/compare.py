"""Compare two chains link by link and name the first link that differs.

The comparison is exact on digests; it never decides whether a difference matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
    steps = sorted(set(left) & set(right))
    num_links = 0
    for prefix_steps, step in enumerate(steps):
        num_shared, differing = _compare_step(left[step], right[step])
        num_links += num_shared
        if not differing:
            continue
        stage = min(differing, key=lambda name: (position(name), name))
        by_rank = differing[stage]
        rank, ranks = min(by_rank), tuple(by_rank)
        return Comparison(
            num_links=num_links,
            num_steps=len(steps),
            prefix_steps=prefix_steps,
            where=Where(step=step, stage=stage, key=by_rank[rank][0], rank=_alone(ranks)),
            keys=tuple(by_rank[rank]),
            ranks=ranks,
        )
    return Comparison(
        num_links=num_links, num_steps=len(steps), prefix_steps=len(steps), where=None
    )


def _compare_step(
    left: Mapping[int, StepRecord], right: Mapping[int, StepRecord]
) -> tuple[int, dict[str, dict[int, list[str]]]]:
    """How many links two records of a step share, and which keys differ, by stage and rank."""
    num_links = 0
    differing: dict[str, dict[int, list[str]]] = {}
    for rank in sorted(set(left) & set(right)):
        ours, theirs = left[rank], right[rank]
        # NaN has many bit patterns: a link that is nonfinite on both sides has nothing to compare.
        incomparable = set(ours.nonfinite) & set(theirs.nonfinite)
        for link, digest in ours.digests.items():
            if link not in theirs.digests or link in incomparable:
                continue
            num_links += 1
            if theirs.digests[link] != digest:
                differing.setdefault(link.stage, {}).setdefault(rank, []).append(link.key)
    return num_links, differing


def _alone(ranks: Sequence[int]) -> int | None:
    """The rank, if it is the only one that differs."""
    if len(ranks) == 1:
        return ranks[0]
    return None


def compare_loads(left: Iterable[LoadRecord], right: Iterable[LoadRecord]) -> Where | None:
    """First state field that two loads of the same generation left different."""
    ours = {(load.rank, load.generation): load for load in left}
    theirs = {(load.rank, load.generation): load for load in right}
    shared = sorted(set(ours) & set(theirs))
    for name in STATE_FIELDS:
        ranks: list[int] = []
        for key in shared:
            if _is_other(ours[key].fields.get(name), theirs[key].fields.get(name)):
                ranks.append(key[0])
        if ranks:
            step = next(iter(ours.values())).step
            return Where(step=step + 1, stage="restored", key=name, rank=_alone(ranks))
    return None


def _is_other(ours: str | None, theirs: str | None) -> bool:
    """Whether both loads state a digest, and not the same.

    After a rollback production states none of its guard.
    """
    return bool(ours and theirs and ours != theirs)


def relative_noise(left: Chain, right: Chain) -> float:
    """Largest relative difference of the scalar stages of two chains.

    Nonfinite against the same nonfinite is none.
    """
    worst = 0.0
    for step in set(left) & set(right):
        for rank in set(left[step]) & set(right[step]):
            ours, theirs = left[step][rank].metrics, right[step][rank].metrics
            for name in SCALARS:
                if name in ours and name in theirs:
                    worst = max(worst, relative(ours[name], theirs[name]))
    return worst


def relative(left: float, right: float) -> float:
    """|left − right| over the larger magnitude; 0 for two values nonfinite in the same way."""
    if left == right or (math.isnan(left) and math.isnan(right)):
        return 0.0
    if math.isfinite(left) and math.isfinite(right):
        return abs(left - right) / max(abs(left), abs(right))
    return math.inf
