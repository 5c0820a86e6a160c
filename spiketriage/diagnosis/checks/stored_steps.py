"""Check: every place in a stored generation that states a step states the same one.

A mixture of two generations loads without complaint; it never looks at what the parts hold.
"""

from __future__ import annotations

from spiketriage.diagnosis.findings import agrees, counted, listed, untestable
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.checkpoint import NATIVE
from spiketriage.nouns.incident import Finding, Where
from spiketriage.readers.checkpoints.generations import steps_in_words

NAME = "stored-steps"
# A mixture or a renamed folder says nothing of when the run went wrong.
EMITS = {NAME: Emission(role=AGAINST_THE_RUN)}


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first generation whose parts are not of one step."""
    stating = [one for one in view.generations if len(one.stated_steps) > 1]
    mixed = [one for one in stating if len(set(one.stated_steps.values())) > 1]
    if mixed:
        first = mixed[0]
        told = steps_in_words(first.stated_steps)
        return (
            Finding(
                name=NAME,
                outcome="differs",
                summary=f"{listed([one.name for one in mixed])}: do not resume from there: "
                f"its parts are not of one step: {told}",
                where=Where(step=first.step, path=first.name),
                expected="one step",
                seen=told,
                magnitude=float(
                    max(first.stated_steps.values()) - min(first.stated_steps.values())
                ),
            ),
        )
    if all(one.layout == NATIVE for one in view.generations):
        return ()  # a manifest of ours states one step for all of its files
    if not stating:
        return (untestable(NAME, "no generation states its step in more than one place"),)
    return (
        agrees(NAME, f"all places of {counted(len(stating), 'generation')} state one step each"),
    )
