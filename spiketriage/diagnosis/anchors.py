"""The generations a replay may start from: the newest sound one older than the onset, and the next.

This module never reads a file: it judges by what was measured, and says why it refused each newer
one.
"""

from __future__ import annotations

from collections.abc import Iterable

from spiketriage.nouns.checkpoint import GenerationFacts
from spiketriage.nouns.incident import Anchors
from spiketriage.nouns.listing import joined

NUM_SOUND = 2  # the known-good generation, and an older one for the 2×2


def select_anchors(
    generations: Iterable[GenerationFacts], onset: int | None, suspect: int | None, reason: str
) -> Anchors:
    """The anchors of an incident.

    Without an onset the newest sound generation is the known-good one.
    """
    sound: list[str] = []
    sound_step: int | None = None
    refused: dict[str, str] = {}
    for generation in sorted(generations, key=_age, reverse=True):
        why = refusal(generation, onset)
        if why:
            refused[generation.name] = why
        elif not sound or generation.step != sound_step:
            # A second copy of the same step (`last.ckpt`) would not be an older one.
            sound.append(generation.name)
            sound_step = generation.step
        if len(sound) == NUM_SOUND:
            break
    chosen = [*sound, None, None]  # there may be one, or none
    return Anchors(
        onset=onset,
        suspect=suspect,
        reason=reason,
        known_good=chosen[0],
        older_good=chosen[1],
        refused=refused,
    )


def refusal(generation: GenerationFacts, onset: int | None) -> str:
    """Why a replay may not start from `generation`; empty if it may."""
    if onset is not None and generation.step is not None and generation.step >= onset:
        return f"not older than the onset at step {onset}"
    if generation.problems:
        return joined(generation.problems, most=1)
    if not generation.complete:
        if generation.interrupted:
            return f"incomplete: {generation.interrupted}"
        return "incomplete"
    if generation.nonfinite:
        return f"not finite: {joined(generation.nonfinite, most=1)}"
    if generation.odd:
        return f"not healthy: {joined(generation.odd, most=1)}"
    if generation.step is None:
        return "its step is unknown"
    return ""


def _age(generation: GenerationFacts) -> tuple[int, str]:
    """A key by which newer generations are larger; one of an unknown step counts as the oldest."""
    if generation.step is None:
        return -1, generation.name
    return generation.step, generation.name
