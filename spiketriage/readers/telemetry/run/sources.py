"""Reads a run's telemetry: our recorder's segments, else the logs of a known format.

This module never judges a value; a source that cannot be read becomes a problem in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from spiketriage.errors import EvidenceError
from spiketriage.nouns.listing import listed
from spiketriage.nouns.series import LogFacts
from spiketriage.nouns.telemetry import Segment
from spiketriage.readers.discover import CONVINCED, GUESS, Claim, claims_on, discover
from spiketriage.readers.look import look
from spiketriage.readers.telemetry.run.foreign import choose
from spiketriage.readers.telemetry.run.lineage import Telemetry
from spiketriage.readers.telemetry.series.names import DEFAULT, Names
from spiketriage.readers.telemetry.series.points import FROM_ZERO
from spiketriage.readers.telemetry.stores import native

# kinds of notices that a person should see
TELLING = ("off", "thinning", "in-flight", "fp8-fallback", "anomaly")

# The table of formats imports every one of them, which our own segments do not need.
if TYPE_CHECKING:
    from spiketriage.readers.telemetry.formats import LogFormat


def read_telemetry(folder: Path, names: Names = DEFAULT) -> Telemetry:
    """Everything that was recorded in `folder`.

    `names` maps the keys of logs that our recorder did not write.

    Raises:
        EvidenceError: the folder is missing or unreadable, holds no telemetry, or none that can be
        read.
    """
    try:
        paths: list[Path] = []
        if not folder.is_file():
            paths = sorted(path for path in folder.iterdir() if path.suffix == native.SUFFIX)
    except OSError as error:
        raise EvidenceError(
            f"{folder}: telemetry cannot be read: {error.strerror or error}"
        ) from error
    if paths:
        return _native(folder, paths)
    return _foreign(folder, names)


def _native(folder: Path, paths: list[Path]) -> Telemetry:
    segments: list[Segment] = []
    problems: list[str] = []
    for path in paths:
        try:
            segments.append(native.read_segment(path))
        except EvidenceError as error:
            problems.append(error.message)
    if not segments:
        raise EvidenceError(f"{folder}: no telemetry segment can be read: {'; '.join(problems)}")
    problems += [segment.problem for segment in segments if segment.problem]
    ordered = sorted(segments, key=lambda segment: (segment.attempt, segment.rank))
    return Telemetry(
        segments=tuple(ordered), problems=tuple(problems), notes=tuple(_notes(ordered))
    )


def _notes(segments: list[Segment]) -> Iterator[str]:
    """What the recorders themselves say they left out; the same words of many ranks once."""
    for segment in segments:
        if segment.num_dropped:
            yield (
                f"{segment.path.name}: {segment.num_dropped} records were dropped while the "
                "run went on"
            )
    ranks: dict[str, list[int]] = {}
    for segment in segments:
        for notice in segment.notices:
            if notice.kind in TELLING:
                ranks.setdefault(notice.text, []).append(segment.rank)
    for text, speakers in ranks.items():
        yield f"rank {listed([str(rank) for rank in speakers], most=1)}: {text}"


def find_logs(folder: Path, names: Names) -> tuple[Claim, ...]:
    """The logs that other people's code wrote in `folder`, or at it.

    Who says what the columns are called, or names the very file, has looked: then a guess is good
    enough.

    Raises:
        EvidenceError: the folder cannot be read.
    """
    at_least = GUESS if names.columns or folder.is_file() else CONVINCED
    return discover(
        folder, wanted=lambda claim: claim.kind == "telemetry", at_least=at_least
    ).claims


def _foreign(folder: Path, names: Names) -> Telemetry:
    claims = find_logs(folder, names)
    logs: list[LogFacts] = []
    problems: list[str] = []
    for claim in claims:
        log = _read(claim, names, problems)
        if log is None:
            continue
        logs.append(log)
        problems += log.problems
    if not logs:
        causes = f": {'; '.join(problems)}" if problems else ""
        expected = f"telemetry segments (*{native.SUFFIX}) or a log of a known format"
        raise EvidenceError(f"{folder}: expected {expected}, found none{causes}")
    chosen = choose(logs, names)
    used = {segment.path for segment in chosen.segments}
    renumbered = [
        f"{log.path}: {FROM_ZERO}" for log in logs if FROM_ZERO in log.notes and log.path in used
    ]
    notes = tuple(_within(folder, note) for note in (*chosen.notes, *renumbered))
    return Telemetry(
        segments=chosen.segments, problems=tuple(problems), notes=notes, logs=tuple(logs)
    )


def _read(claim: Claim, names: Names, problems: list[str]) -> LogFacts | None:
    """What a claim's format reads; where it reads nothing, what the next that claims the path does.

    A file that is of no format in the end is a problem, in the words of the surest.
    """
    words = ""
    others = [other for other in claims_on(look(claim.path)) if other.kind == claim.kind]
    for candidate in (claim, *(other for other in others if other.format is not claim.format)):
        try:
            return cast("LogFormat", candidate.format).read(claim.path, names)
        except EvidenceError as error:
            words = words or error.message
    problems.append(words)
    return None


def _within(folder: Path, note: str) -> str:
    """A note that begins with a path, without the way to it."""
    own = f"{folder} "
    if note.startswith(own):
        return f"the folder itself {note.removeprefix(own)}"
    return note.removeprefix(f"{folder}/")
