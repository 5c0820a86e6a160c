"""The event that ended a run: its onset where no series has one.

This module never takes what a run outlived for its end, and says where the step comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from spiketriage.diagnosis.checks.fatal_event import first_of
from spiketriage.diagnosis.checks.system_events import FATAL, SEVERE
from spiketriage.evidence.onset import Onset
from spiketriage.nouns.incident import RunSettings
from spiketriage.nouns.listing import counted
from spiketriage.nouns.telemetry import Event
from spiketriage.readers.discover import GUESS
from spiketriage.readers.events.folder import read_events
from spiketriage.readers.telemetry.run.lineage import Telemetry


def dated_by_event(onset: Onset, settings: RunSettings, telemetry: Telemetry | None) -> Onset:
    """`onset` of a run whose series show none, with the run's first fatal event for a reason.

    Its step is that of the event, else the last of the series; without series the worst event is
    named even if the run may have outlived it.
    """
    if telemetry is not None and telemetry.is_our_own:
        return onset  # it says what became of its processes
    severe = [event for event in _events(settings, telemetry) if event.severity in SEVERE]
    fatal = [event for event in severe if event.severity == FATAL]
    if fatal:
        first = first_of(fatal)
        return replace(onset, step=_step(first, telemetry), reason=_reason(first, fatal, telemetry))
    if severe and telemetry is None:
        return replace(onset, reason=_reason(first_of(severe), severe, None))
    return onset


def _events(settings: RunSettings, telemetry: Telemetry | None) -> Iterator[Event]:
    """What the run's logs report, those that hold series too."""
    paths: dict[Path, None] = dict.fromkeys(settings.logs)
    if telemetry is not None:
        paths |= dict.fromkeys(log.path for log in telemetry.logs)
    for path in paths:
        yield from read_events(path, at_least=GUESS)


def _step(event: Event, telemetry: Telemetry | None) -> int | None:
    if event.step is not None:
        return event.step
    if telemetry is not None and telemetry.steps:
        return telemetry.steps[-1]
    return None


def _reason(event: Event, alike: Sequence[Event], telemetry: Telemetry | None) -> str:
    text = replace(event, step=None).headline  # the sentence begins with the step
    others = counted(len(alike), f"{event.severity} event")
    place = event.source if event.line is None else f"{event.source}, line {event.line}"
    text = f"{text} ({place}; {others} in all)"
    step = _step(event, telemetry)
    if step is None:
        return text
    if event.step is None:
        text = f"the last recorded step before {text}"
    return f"step {step}: {text}"
