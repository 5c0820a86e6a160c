"""Every event in a folder of frozen evidence, whichever source wrote it.

This module never judges an event; a file that no source claims, or that cannot be read, has none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.telemetry import Event
from spiketriage.readers.look import best, look


def read_events(folder: Path) -> Iterator[Event]:
    """The events of every file below `folder`, file by file.

    A folder that is not there has none.
    """
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            yield from _of_file(Path(parent) / name)


def _of_file(path: Path) -> Iterator[Event]:
    # a run without logs needs none of them
    from spiketriage.readers.events import job_log  # noqa: PLC0415
    from spiketriage.readers.events.sources import SOURCES  # noqa: PLC0415

    try:
        seen = look(path)
        claimed = best(SOURCES, seen)
        if claimed is None:
            return
        events = claimed[0].read(path).events
        # A log of one kind of lines may end with others; what both sources see is the same event.
        if claimed[0].NAME != job_log.NAME and job_log.claims(seen) > 0:
            events = (*events, *job_log.read(path).events)
        yield from dict.fromkeys(events)
    except EvidenceError:
        return  # `freeze` and `inspect` say what is wrong with a file
