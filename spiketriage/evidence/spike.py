"""The spike as `freeze` found it, kept apart from the anchors that `check` may have moved since.

This module reads a dossier and never writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from spiketriage.nouns.incident import Dossier

FOUND_BY_FREEZE, WRITTEN_BY_CHECK = "anchors/found-by-freeze", "anchors/written-by-check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """The anchors as `freeze` found them, whatever an earlier `check` made of them."""

    onset: int | None
    suspect: int | None

    def __str__(self) -> str:
        return f"{self.onset} {self.suspect}"


def spike_of(dossier: Dossier) -> Spike:
    """What spiked, or nothing."""
    if dossier.anchors is None:
        return Spike(onset=None, suspect=None)
    now = Spike(onset=dossier.anchors.onset, suspect=dossier.anchors.suspect)
    if dossier.facts.get(WRITTEN_BY_CHECK) != str(now):
        return now
    onset, suspect = dossier.facts[FOUND_BY_FREEZE].split()
    return Spike(onset=_step(onset), suspect=_step(suspect))


def _step(text: str) -> int | None:
    if text == "None":
        return None
    return int(text)
