"""What is lost of a run, in sentences: an index, damaged generations, unreadable telemetry.

This module never decides what follows from a gap, and never opens a file: it looks whether one is
there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from spiketriage.evidence import layout
from spiketriage.nouns.checkpoint import NATIVE, GenerationFacts, Manifest
from spiketriage.nouns.incident import RunSettings
from spiketriage.nouns.listing import counted, joined, listed
from spiketriage.readers.telemetry.run.lineage import Telemetry
from spiketriage.wire.generation import COMPLETE_NAME, rank_disagreements

DEFAULT_INDEX = "data/index.json"


def lost_index(settings: RunSettings, manifests: Iterable[Manifest | None]) -> str:
    """A sentence when no index is named or at the usual place, but manifests hold its digest."""
    if settings.data_index is not None:
        return ""
    naming = [manifest for manifest in manifests if manifest is not None and manifest.index_digest]
    if not naming:
        return ""
    newest = max(naming, key=lambda manifest: manifest.step)
    if len(naming) == 1:
        names = "manifest names"
    else:
        names = "manifests name"
    return f"is missing; {len(naming)} {names} its digest, the newest {newest.index_digest}"


def unfinished(generation: GenerationFacts) -> bool:
    """Whether a generation was never completed: it has no mark of it, and nothing is damaged."""
    if generation.layout != NATIVE:
        return not generation.complete and not generation.problems
    try:
        (generation.path / COMPLETE_NAME).lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # it cannot be looked at, which is a gap of another kind
    return False


def damage(generation: GenerationFacts) -> str:
    """What is wrong with the files of a finished generation; ranks that disagree are no damage."""
    if unfinished(generation):
        return ""
    if generation.manifest is not None:
        disagree = set(rank_disagreements(generation.manifest))
    else:
        disagree = set()
    damaged = [problem for problem in generation.problems if problem not in disagree]
    return joined([within(generation, problem) for problem in damaged])


def within(generation: GenerationFacts, sentence: str) -> str:
    """A sentence about a generation that is named already: without the way to it."""
    return sentence.removeprefix(f"{generation.path}: ").replace(f"{generation.path}/", "")


def telemetry_gaps(settings: RunSettings, telemetry: Telemetry) -> Iterator[tuple[str, str]]:
    """Name and sentence for every segment that is damaged beyond the torn record of a crash.

    Of a log that somebody else wrote, the lines that are none cost themselves and nothing more.
    """
    for lost in telemetry.lost:
        if not lost.is_torn_tail:
            name = layout.artifact_path(settings.run, lost.path.with_suffix(""))
            yield name, f"{lost.span} unreadable: {lost.problem}"
    for log in telemetry.logs:
        for problem in log.problems:
            yield layout.artifact_path(settings.run, log.path.with_suffix("")), problem
    for message in telemetry.unread:
        path, _, why = message.partition(": ")
        yield (
            layout.artifact_path(settings.run, Path(path).with_suffix("")),
            f"the whole segment is unreadable: {why}",
        )


def counted_unfinished(generations: Sequence[GenerationFacts]) -> str:
    """`2 unfinished generations (step-000240, step-000260)`."""
    names = [generation.name for generation in generations]
    return f"{counted(len(names), 'unfinished generation')} ({listed(names)})"
