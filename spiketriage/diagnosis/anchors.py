"""The generations a replay may start from: the newest sound one older than the onset, and the next.

This module never reads a file: it judges by what was measured, and says why it refused each newer
one.
"""

from __future__ import annotations

from collections.abc import Iterable

from spiketriage.nouns.checkpoint import GenerationFacts
from spiketriage.nouns.incident import Anchors


def select_anchors(
    generations: Iterable[GenerationFacts], onset: int | None, suspect: int | None, reason: str
) -> Anchors:
    """The anchors of an incident.

    Without an onset the newest sound generation is the known-good one.
    """
    newest_first = sorted(
        generations, key=lambda one: (-1 if one.step is None else one.step, one.name), reverse=True
    )
    good: list[str] = []
    at: int | None = None
    refused: dict[str, str] = {}
    for generation in newest_first:
        why = refusal(generation, onset)
        if why:
            refused[generation.name] = why
        elif (
            not good or generation.step != at
        ):  # a second copy of the same step (`last.ckpt`) is not an older one
            good.append(generation.name)
            at = generation.step
        if len(good) == 2:
            break
    return Anchors(
        onset=onset,
        suspect=suspect,
        reason=reason,
        known_good=good[0] if good else None,
        older_good=good[1] if len(good) > 1 else None,
        refused=refused,
    )


def refusal(generation: GenerationFacts, onset: int | None) -> str:
    """Why a replay may not start from `generation`; empty if it may."""
    if onset is not None and generation.step is not None and generation.step >= onset:
        return f"not older than the onset at step {onset}"
    if generation.problems:
        more = len(generation.problems) - 1
        return generation.problems[0] + (f" (and {more} more)" if more else "")
    if not generation.complete:
        if generation.interrupted:
            return f"incomplete: {generation.interrupted}"
        return "incomplete"
    if generation.nonfinite:
        more = len(generation.nonfinite) - 1
        return f"not finite: {generation.nonfinite[0]}" + (f" (and {more} more)" if more else "")
    if generation.odd:
        more = len(generation.odd) - 1
        return f"not healthy: {generation.odd[0]}" + (f" (and {more} more)" if more else "")
    if generation.step is not None:
        return ""
    return "its step is unknown"
