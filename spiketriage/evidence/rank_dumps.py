"""Flight-recorder dumps among the frozen logs, by the folder that they lie in.

This module never compares the dumps of two folders, which are two moments.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from spiketriage.diagnosis.view import RankDumps
from spiketriage.errors import EvidenceError
from spiketriage.readers.look import look

CONVINCED = 0.5


def rank_dumps(logs: Path) -> tuple[RankDumps, ...]:
    """The dumps below `logs`, a group for each folder; a group that cannot be read is left out."""
    # most runs have no dump
    from spiketriage.readers.events.desync import disagreement_among  # noqa: PLC0415

    groups: defaultdict[str, list[Path]] = defaultdict(list)
    for path in _dumps(logs):
        groups[path.parent.relative_to(logs).as_posix()].append(path)
    groups_read: list[RankDumps] = []
    for folder, paths in sorted(groups.items()):
        try:
            first = disagreement_among(paths, Path(folder))
        except EvidenceError:
            continue  # `inspect` says what is wrong with a dump
        groups_read.append(RankDumps(folder=folder, num_dumps=len(paths), disagreement=first))
    return tuple(groups_read)


def _dumps(logs: Path) -> Iterator[Path]:
    # a run without logs does not need it
    from spiketriage.readers.events import flight_recorder  # noqa: PLC0415

    for parent, folders, names in os.walk(logs):
        folders.sort()
        for name in sorted(names):
            path = Path(parent) / name
            try:
                if flight_recorder.claims(look(path)) >= CONVINCED:
                    yield path
            except EvidenceError:
                continue
