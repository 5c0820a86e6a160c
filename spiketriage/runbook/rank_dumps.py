"""Flight-recorder dumps among the frozen logs, put together again by the folder of the run that they lay in.

Freeze copies each log on its own; this module never compares the dumps of two folders, which are two moments.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from spiketriage.diagnosis.view import RankDumps
from spiketriage.errors import EvidenceError
from spiketriage.readers.look import look
from spiketriage.records import Artifact

CONVINCED = 0.5


def rank_dumps(logs: Path, artifacts: Iterable[Artifact]) -> tuple[RankDumps, ...]:
    """The dumps below `logs`, a group for each folder of the run; a group that cannot be read is left out."""
    from spiketriage.readers.events.desync import disagreement_among  # noqa: PLC0415  # most runs have no dump

    found: list[RankDumps] = []
    for folder, paths in sorted(_by_folder(logs, artifacts).items()):
        try:
            first = disagreement_among(paths, Path(folder))
        except EvidenceError:
            continue  # `inspect` says what is wrong with a dump
        found.append(RankDumps(folder=folder, num_dumps=len(paths), disagreement=first))
    return tuple(found)


def _by_folder(logs: Path, artifacts: Iterable[Artifact]) -> dict[str, list[Path]]:
    """The frozen dumps by the folder that they were copied from: what was copied keeps its name, size and time."""
    origin = {
        (PurePosixPath(one.path).name, one.size_bytes, one.mtime_ns): PurePosixPath(one.path).parent.as_posix()
        for one in artifacts
        if one.kind == "log"
    }
    groups: defaultdict[str, list[Path]] = defaultdict(list)
    for path in _dumps(logs):
        state = path.stat()
        beside = path.parent.relative_to(logs).as_posix()  # where no artifact tells, they stay as they lie
        groups[origin.get((path.name, state.st_size, state.st_mtime_ns), beside)].append(path)
    return groups


def _dumps(logs: Path) -> Iterator[Path]:
    from spiketriage.readers.events import flight_recorder  # noqa: PLC0415  # a run without logs does not need it

    for parent, folders, names in os.walk(logs):
        folders.sort()
        for name in sorted(names):
            path = Path(parent) / name
            try:
                if flight_recorder.claims(look(path)) >= CONVINCED:
                    yield path
            except EvidenceError:
                continue
