"""Check: every place in a stored generation that states a step states the same one.

A mixture of two generations loads without complaint; it never looks at what the parts hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.checkpoint import NATIVE, GenerationFacts
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted, listed
from spiketriage.readers.checkpoints.generations import steps_in_words

NAME = "stored-steps"
# A mixture or a renamed folder says nothing of when the run went wrong.
EMITS = {NAME: Emission(role=AGAINST_THE_RUN)}


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first generation whose parts are not of one step."""
    stating = [generation for generation in view.generations if len(generation.stated_steps) > 1]
    mixed: list[GenerationFacts] = []
    for generation in stating:
        if len(set(generation.stated_steps.values())) > 1:
            mixed.append(generation)
    if mixed:
        first = mixed[0]
        names = listed([generation.name for generation in mixed])
        stated = steps_in_words(first.stated_steps)
        since = _since(stating, mixed)
        return (
            Finding(
                name=NAME,
                outcome="differs",
                summary=f"{names}: do not resume from there: "
                f"its parts are not of one step: {stated}{since}",
                where=Where(step=first.step, path=first.name),
                expected="one step",
                seen=stated,
                magnitude=float(_lag(first)),
            ),
        )
    if all(generation.layout == NATIVE for generation in view.generations):
        return ()  # a manifest of ours states one step for all of its files
    if not stating:
        return (untestable(NAME, "no generation states its step in more than one place"),)
    return (
        agrees(NAME, f"all places of {counted(len(stating), 'generation')} state one step each"),
    )


def _since(stating: Sequence[GenerationFacts], mixed: Sequence[GenerationFacts]) -> str:
    """Where counters that stay apart by one number parted: at a load, not in a save."""
    lags = {_lag(generation) for generation in mixed}
    if len(mixed) < 2 or len(lags) > 1:
        return ""
    before = [facts.name for facts in stating[: stating.index(mixed[0])]]
    since = f"since after {before[-1]}" if before else "in every generation that there is"
    return (
        f"; they are apart by the same {lags.pop()} in {listed([facts.name for facts in mixed])}, "
        f"{since}: a load set one of them, no save mixed them up"
    )


def _lag(generation: GenerationFacts) -> int:
    return max(generation.stated_steps.values()) - min(generation.stated_steps.values())
