"""The event sources that can be read.

This module never opens a file: each source has a file of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, cast

from spiketriage.facts import EventFacts
from spiketriage.readers.look import Format


class EventSource(Format, Protocol):
    """A format of system evidence."""

    def read(self, path: Path, /) -> EventFacts:
        """Every event of the file; what is damaged is in `problems`.

        Raises:
            EvidenceError: it cannot be read at all, or is not of this format.
        """
        ...


SOURCES: tuple[EventSource, ...] = cast("tuple[EventSource, ...]", ())
