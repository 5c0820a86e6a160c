"""Check: tensors whose hashes somebody recorded on every rank are equal on all of them.

It looks at replicas alone and never says which rank is right.
"""

from __future__ import annotations

from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.telemetry import Event
from spiketriage.readers.events.tensor_hashes import DIFFER, DIFFER_AT_START

NAME = "replica-hashes"
EMITS = {NAME: Emission(role=AGAINST_THE_RUN, dates_onset=True)}


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first step that parted replicas, else as context what never was equal."""
    for event in view.events:
        if event.kind == DIFFER:
            return (_finding(event, step=event.step, judged=True),)
    for event in view.events:
        if event.kind == DIFFER_AT_START:
            return (_finding(event, step=None, judged=False),)
    return ()


def _finding(event: Event, *, step: int | None, judged: bool) -> Finding:
    return Finding(
        name=NAME,
        outcome="differs",
        summary=event.sentence,
        where=Where(step=step, rank=event.rank, path=event.source),
        expected="equal on all ranks",
        seen=event.kind,
        judged=judged,
    )
