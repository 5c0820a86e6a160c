"""Check: no stored generation holds a NaN or an infinity in its weights or its optimizer.

It judges generations whose bytes were read, and never opens one itself.
"""

from __future__ import annotations

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted, listed

NAME = "stored-finiteness"
EMITS = {NAME: Emission(role=AGAINST_THE_RUN, dates_onset=True)}


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first generation that is not finite, and how many are not."""
    measured = [generation for generation in view.generations if generation.file_digests]
    bad = [generation for generation in measured if generation.nonfinite]
    if bad:
        first = bad[0]
        names = listed([generation.name for generation in bad])
        return (
            Finding(
                name=NAME,
                outcome="nonfinite",
                summary=f"NaN or infinities in {names}: do not resume "
                "from there; "
                f"first: {first.nonfinite[0]}",
                where=Where(
                    step=first.step, key=first.nonfinite[0].partition(": ")[0], path=first.name
                ),
                expected="finite",
                seen=f"{counted(len(first.nonfinite), 'tensor')} nonfinite in {first.name}",
                magnitude=float(len(bad)),
            ),
        )
    if not measured:
        return (untestable(NAME, "no generation's bytes were read"),)
    return (
        agrees(
            NAME, f"every element of {counted(len(measured), 'generation')} that was read is finite"
        ),
    )
