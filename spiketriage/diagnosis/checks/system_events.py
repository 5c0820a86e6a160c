"""Check: no machine of the run reported an error that can change a number.

It names the worst event that was frozen with the run; it never says that the event caused the
spike.
"""

from __future__ import annotations

from collections.abc import Sequence

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted
from spiketriage.nouns.telemetry import Event

NAME = "system-events"
EMITS = {NAME: Emission(role=AGAINST_THE_RUN, dates_onset=True)}
FATAL = "fatal"
SEVERE = (FATAL, "error")
# What corrupts bytes or numbers on its way. A process that died or waited in vain has lost its
# step, not changed it.
HARDWARE = (
    *(
        "xid",
        "sxid",
        "gpu-off-bus",
        "ecc-uncorrectable",
        "row-remap-failure",
        "nvswitch-error",
        "machine-check",
    ),
    *("pcie-error", "pcie-link-down"),
)


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the worst event of a device; without one, what a run outlived as context."""
    severe = [event for event in view.events if event.severity in SEVERE]
    devices = [event for event in severe if event.kind in HARDWARE]
    if devices:
        return (_differs(devices, judged=True),)
    if view.telemetry.is_our_own:
        # the logs of our own runs are those of the processes; what became of those is in the
        # telemetry
        return ()
    outlived = [event for event in severe if event.severity != FATAL]
    if outlived:
        return (_differs(outlived, judged=False),)
    if not view.events:
        return (untestable(NAME, "no log of a kernel, driver, launcher or scheduler was frozen"),)
    return (agrees(NAME, f"none of {counted(len(view.events), 'event')} is of a device"),)


def _differs(severe: Sequence[Event], *, judged: bool) -> Finding:
    worst = min(severe, key=lambda event: SEVERE.index(event.severity))
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"{_place(worst)}{worst.sentence} ({counted(len(severe), 'severe event')} in all)",
        where=Where(step=worst.step, key=worst.kind, rank=worst.rank, path=worst.source),
        expected="no severe event",
        seen=worst.kind,
        magnitude=float(len(severe)),
        judged=judged,
    )


def _place(event: Event) -> str:
    parts = " ".join(part for part in (event.at, event.host, event.device) if part)
    if parts:
        return f"{parts}: "
    return ""
