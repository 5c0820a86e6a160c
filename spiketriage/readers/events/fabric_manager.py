"""Reads the log of NVIDIA's fabric manager: what it reports of NVSwitches, links and partitions.

This module never interprets an NVSwitch error number beyond what the line itself says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from spiketriage.nouns.telemetry import Event, EventFacts, Severity
from spiketriage.readers.events.pci import ADDRESS, pci_device
from spiketriage.readers.events.text_lines import TextLine, head_lines, integer, scan, short
from spiketriage.readers.look import Look

NAME = "fabric-manager"
TELLS = "Errors and warnings of NVSwitches and NVLinks, with switch, port and error number."
CANNOT = "Which ranks used a switch, and the time zone of its stamps."
_LINE = re.compile(
    r"\[([A-Z][a-z]{2} [ \d]\d \d{4} \d\d:\d\d:\d\d)\] \[([A-Z]{3,10})\] (?:\[tid "
    r"(\d{1,10})\] )?(.*)",
    re.S,
)
_NUMBER = re.compile(r"(?:SXid|error) (\d{1,10})\b")
_DEVICE = re.compile(rf"pci bus id ({ADDRESS})", re.I)
_SEVERITIES: Mapping[str, Severity] = {
    "WARNING": "warning",
    "WARN": "warning",
    "ERROR": "error",
    "CRITICAL": "fatal",
    "FATAL": "fatal",
}


_QUIET = ("INFO", "DEBUG", "NOTICE")
_FATAL = re.compile(r"(?<!non-)\bfatal\b", re.I)


class FabricScanner:
    """Keeps what is worse than INFO and counts the rest."""

    def __init__(self) -> None:
        self._levels: Counter[str] = Counter()

    def feed(self, line: TextLine, /) -> Iterator[Event]:
        """The event of a line above INFO."""
        match = _LINE.match(line.text)
        if match is None:
            return
        at, level, _, message = match.groups()
        severity = _SEVERITIES.get(level)
        if severity is None:
            self._levels[level if level in _QUIET else "other"] += 1
            return
        self._levels[level] += 1
        if _FATAL.search(message[:4096]):
            severity = "fatal"
        number, device = _NUMBER.search(message), _DEVICE.search(message)
        yield Event(
            kind="nvswitch-error" if "NVSwitch" in message else "fabric-manager",
            severity=severity,
            sentence=short(f"fabric manager: {message}"),
            source=line.source,
            line=line.number,
            at=at,
            device=pci_device(device[1]) if device else "",
            code=integer(number[1]) if number else None,
        )

    def finish(self, events: list[Event], /) -> list[Event]:
        """Nothing depends on the end of the log."""
        return events

    def identity(self) -> Mapping[str, str]:
        """How many lines of each level there are."""
        return {f"num_{level.lower()}": str(count) for level, count in sorted(self._levels.items())}

    def problems(self) -> tuple[str, ...]:
        """A file without a single line of the format."""
        if self._levels:
            return ()
        return ("expected lines '[Feb 27 2025 15:10:02] [ERROR] …', found none",)

    def notes(self) -> tuple[str, ...]:
        """That its stamps are no points in time."""
        return ("the fabric manager's stamps name no time zone, so no UNIX time",)


def claims(look: Look, /) -> float:
    """Sure where several lines have stamp, level and thread id."""
    lines = head_lines(look)
    matches = list(filter(None, map(_LINE.match, lines)))
    if any(match[3] for match in matches):
        return 0.95
    if matches:
        return 0.7
    if lines and "fabricmanager" in look.path.name:
        return 0.3
    return 0.0


def read(path: Path, /) -> EventFacts:
    """Every warning and error.

    Raises:
        EvidenceError: it cannot be read.
    """
    return scan(path, NAME, (FabricScanner(),))
