"""Check: no machine of the run reported an error that can change a number.

It names the worst event that was frozen with the run; it never says that the event caused the spike.
"""

from __future__ import annotations

from spiketriage.diagnosis.findings import agrees, counted, untestable
from spiketriage.diagnosis.view import View
from spiketriage.facts import Event
from spiketriage.records import Finding, Where

NAME = "system-events"
SEVERE = ("fatal", "error")


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first fatal event, else the first error."""
    severe = [event for event in view.events if event.severity in SEVERE]
    if severe:
        worst = min(severe, key=lambda event: SEVERE.index(event.severity))
        return (
            Finding(
                name=NAME,
                outcome="differs",
                summary=f"{_place(worst)}{worst.sentence} ({counted(len(severe), 'severe event')} in all)",
                where=Where(step=worst.step, key=worst.kind, rank=worst.rank, path=worst.source),
                expected="no severe event",
                seen=worst.kind,
                magnitude=float(len(severe)),
            ),
        )
    if not view.events and not view.telemetry.logs:
        return ()  # the logs of our own runs are those of the processes; what they told is in the telemetry
    if not view.events:
        return (untestable(NAME, "no log of a kernel, driver, launcher or scheduler was frozen"),)
    return (agrees(NAME, f"none of {counted(len(view.events), 'event')} is severe"),)


def _place(event: Event) -> str:
    parts = " ".join(part for part in (event.at, event.host, event.device) if part)
    return f"{parts}: " if parts else ""
