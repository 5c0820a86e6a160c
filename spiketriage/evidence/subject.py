"""What is frozen: a run, its telemetry as far as it can be read, and where the anomaly begins.

This module never writes, and never lets what cannot be read stand in the way of what can.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spiketriage.errors import EvidenceError, UsageError
from spiketriage.evidence.fatal_event import dated_by_event
from spiketriage.evidence.onset import Onset, find_onset
from spiketriage.nouns.incident import RunSettings
from spiketriage.readers.telemetry.run.lineage import Telemetry
from spiketriage.readers.telemetry.run.sources import read_telemetry
from spiketriage.readers.telemetry.series.names import Names

UNKNOWN = "unknown"  # how an incident's name ends when there is no telemetry to find an onset in


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A run, its telemetry as far as it can be read, and where the anomaly begins."""

    settings: RunSettings
    telemetry: Telemetry | None
    onset: Onset
    unreadable: str

    @property
    def ending(self) -> str:
        """How the incident's name ends."""
        if self.onset.step is not None:
            return f"step{self.onset.step}"
        if self.telemetry is None:
            return UNKNOWN
        return "audit"

    @property
    def last_step(self) -> str | None:
        """The last recorded step, in digits."""
        if self.telemetry is not None and self.telemetry.steps:
            return str(self.telemetry.steps[-1])
        return None


def read_subject(settings: RunSettings, step: int | None) -> Subject:
    """The run with its onset: the first anomaly of a series, else the fatal event that ended it.

    A `step` that somebody gives is the onset, whatever was found.

    Raises:
        UsageError: `step` is not a step of this run.
    """
    telemetry: Telemetry | None
    try:
        telemetry = read_telemetry(settings.telemetry, Names(columns=settings.columns))
    except EvidenceError as error:
        # Keeping what is left matters more than finding the onset: the gap is told, the rest is
        # frozen.
        telemetry, unreadable = None, error.message
        reason = f"no telemetry: nothing could be scanned: {error.message}"
        onset = Onset(step=None, reason=reason, alarms=(), points=())
    else:
        onset, unreadable = find_onset(telemetry), ""
    if onset.step is None and step is None:
        onset = dated_by_event(onset, settings, telemetry)
    if telemetry is not None and onset.attempt is not None:
        telemetry = telemetry.until(onset.attempt)
    if step is not None:
        _require_recorded(step, settings, telemetry)
        onset = replace(onset, step=step, reason=f"step {step} was given with --step")
    return Subject(settings=settings, telemetry=telemetry, onset=onset, unreadable=unreadable)


def _require_recorded(step: int, settings: RunSettings, telemetry: Telemetry | None) -> None:
    """Refuse a step that the telemetry does not hold.

    Raises:
        UsageError: there is telemetry, and no such step in it.
    """
    if telemetry is None or step in telemetry.steps:
        return
    span = "none"
    if telemetry.steps:
        span = f"{telemetry.steps[0]} to {telemetry.steps[-1]}"
    raise UsageError(
        f"--step {step}: expected a recorded step, found {span} in {settings.telemetry}"
    )
