"""Small constructors for the findings of checks, so that a check reads as its assertion.

This module never decides anything and never reads evidence.
"""

from __future__ import annotations

from collections.abc import Sequence

from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import listed

NOWHERE = Where()


def agrees(name: str, summary: str, *, judged: bool = True) -> Finding:
    """The assertion holds wherever it could be tested."""
    return Finding(name=name, outcome="agrees", summary=summary, judged=judged)


def untestable(name: str, reason: str, *, where: Where = NOWHERE, judged: bool = True) -> Finding:
    """The assertion could not be tested; `reason` completes the sentence."""
    return Finding(name=name, outcome="not testable", summary=reason, where=where, judged=judged)


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 1`, or `ranks 0, 1 and 5 more`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {listed([str(rank) for rank in ranks])}"
