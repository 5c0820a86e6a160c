"""Every event in a file, or in a folder of frozen evidence, whichever source wrote it.

This module never judges an event; a file that no source claims, or that cannot be read, has none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.telemetry import Event
from spiketriage.readers.look import best, look


def read_events(path: Path, *, at_least: float = 0.0) -> Iterator[Event]:
    """The events of the file at `path`, or of every file below the folder there, file by file.

    A path that is not there has none, and so has a file of which no source is surer than
    `at_least`.
    """
    if path.is_file():
        yield from _of_file(path, at_least)
        return
    for parent, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            yield from _of_file(Path(parent) / name, at_least)


def _of_file(path: Path, at_least: float) -> Iterator[Event]:
    # a run without logs needs none of them
    from spiketriage.readers.events import job_log  # noqa: PLC0415
    from spiketriage.readers.events.sources import SOURCES  # noqa: PLC0415

    try:
        seen = look(path)
        claimed = best(SOURCES, seen)
        if claimed is None or claimed[1] < at_least:
            return
        events = claimed[0].read(path).events
        # A log of one kind of lines may end with others; what both sources see is the same event.
        if claimed[0].NAME != job_log.NAME and job_log.claims(seen) > 0:
            events = (*events, *job_log.read(path).events)
        yield from dict.fromkeys(events)
    except EvidenceError:
        return  # `freeze` and `inspect` say what is wrong with a file
