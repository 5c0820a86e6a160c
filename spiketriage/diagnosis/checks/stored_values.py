"""Check: no stored generation holds finite values that no healthy state has.

Negative sums of squares, absurd or denormal weights, pages of zeros; it never calls a value odd by
comparison.
"""

from __future__ import annotations

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.checkpoint import NATIVE
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted, listed

NAME = "stored-values"
EMITS = {NAME: Emission(role=AGAINST_THE_RUN, dates_onset=True)}


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first generation with an odd tensor, and how many there are."""
    foreign = [generation for generation in view.generations if generation.layout != NATIVE]
    measured = [generation for generation in foreign if generation.file_digests]
    odd = [generation for generation in measured if generation.odd]
    if odd:
        first = odd[0]
        names = listed([generation.name for generation in odd])
        return (
            Finding(
                name=NAME,
                outcome="differs",
                summary=f"{names}: {first.odd[0]}",
                where=Where(step=first.step, key=first.odd[0].partition(": ")[0], path=first.name),
                expected="values of a healthy state",
                seen=f"{counted(len(first.odd), 'odd tensor')} in {first.name}",
                magnitude=float(len(odd)),
            ),
        )
    if not foreign:
        return ()  # a generation of ours was saved by code that knows what it saved
    if not measured:
        return (untestable(NAME, "no generation's bytes were read"),)
    return (
        agrees(
            NAME, f"no tensor of {counted(len(measured), 'generation')} that was read is absurd"
        ),
    )
