"""Check: nothing that trainer, launcher or machine reported ended the run.

It names the first event that did, on which rank, device and step; it never says what caused it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from spiketriage.diagnosis.checks.system_events import FATAL, HARDWARE
from spiketriage.diagnosis.findings import agrees
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted
from spiketriage.nouns.telemetry import Event

NAME = "fatal-event"
# It dates no onset: many a run ends, is started again, and spikes at a later step.
EMITS = {NAME: Emission(role=AGAINST_THE_RUN)}


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first fatal event; none without events, and none of a run we recorded.

    The latter's telemetry says what became of its processes. Devices are `system-events`' own.
    """
    if not view.events or view.telemetry.is_our_own:
        return ()
    fatal = []
    for event in view.events:
        if event.severity == FATAL and event.kind not in HARDWARE:
            fatal.append(event)
    if not fatal:
        return (agrees(NAME, f"none of {counted(len(view.events), 'event')} ended the run"),)
    first = first_of(fatal)
    return (
        Finding(
            name=NAME,
            outcome="differs",
            summary=f"{first.headline} ({counted(len(fatal), 'fatal event')} in all)",
            where=Where(step=first.step, key=first.kind, rank=first.rank, path=first.source),
            expected="no fatal event",
            seen=first.kind,
            magnitude=float(len(fatal)),
        ),
    )


def first_of(events: Iterable[Event]) -> Event:
    """The event to be named: of those that know their step the earliest, else the first by time."""

    def age(event: Event) -> tuple[float, float]:
        step = math.inf if event.step is None else event.step
        return step, math.inf if event.time_s is None else event.time_s

    return min(events, key=age)
