"""What a folder of somebody else's run holds: a line for each checkpoint, log and data store.

This module reads metadata only and never a tensor; `spiketriage inspect` on one of the lines' paths
reads on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from spiketriage.errors import EvidenceError, Exit
from spiketriage.incident import next_step
from spiketriage.nouns.incident import StepResult
from spiketriage.readers.discover import GUESS, Claim, Discovery, kinds
from spiketriage.readers.events.folder import read_events
from spiketriage.readers.telemetry.series.names import DEFAULT
from spiketriage.tools import describe

if TYPE_CHECKING:
    from spiketriage.readers.checkpoints.formats import Layout
    from spiketriage.readers.data.stores import DataStore
    from spiketriage.readers.events.sources import EventSource
    from spiketriage.readers.telemetry.formats import LogFormat

MAX_CLAIMS = 40


def inventory(folder: Path, discovery: Discovery) -> StepResult:
    """The result of `inspect` on a folder that is no single thing; damage in a line is trouble."""
    order = list(kinds())
    claims = sorted(discovery.claims, key=lambda claim: order.index(claim.kind))
    notes: dict[str, Sequence[str]] = {}
    texts = [_brief(claim, folder, notes) for claim in claims[:MAX_CLAIMS]]
    lines = [f"{folder}: a folder that holds {_counts(claims)}"]
    for claim, text in zip(claims, texts, strict=False):
        name = f"{claim.format.NAME} ({claim.confidence:.2f})"
        lines.append(f"  {claim.path.relative_to(folder)}: {claim.kind}: {name}: {text}")
    if len(claims) > MAX_CLAIMS:
        lines.append(f"  … and {len(claims) - MAX_CLAIMS} more")
    lines += [f"  collectives: {sentence}" for sentence in _disagreements(folder, discovery)]
    lines += [f"  {note}" for note in describe.notes(notes)]
    lines += [f"  note: {note}" for note in discovery.notes]
    exit_code, verdict = Exit.DONE, "clean"
    if any(text.startswith("PROBLEM") for text in texts):
        exit_code, verdict = Exit.INTEGRITY, "damaged"
    listed = []
    for claim in claims:
        listed.append({"path": str(claim.path), "kind": claim.kind, "format": claim.format.NAME})
    return StepResult(
        incident="",
        exit_code=exit_code,
        verdict=verdict,
        lines=tuple(lines),
        data={"claims": listed},
        next_commands=(next_step.command("freeze", folder, None, None),),
    )


def _counts(claims: Iterable[Claim]) -> str:
    """`2 checkpoint, 1 telemetry`: how many of each kind that is there."""
    numbers = Counter(claim.kind for claim in claims)
    return ", ".join(f"{numbers[kind]} {kind}" for kind in kinds() if numbers[kind])


def _disagreements(folder: Path, discovery: Discovery) -> Iterator[str]:
    """The first collective on which ranks disagree, for each folder with dumps of several ranks."""
    dumps: Counter[Path] = Counter()
    for claim in discovery.of("events"):
        if claim.format.NAME == "flight-recorder":
            dumps[claim.path.parent] += 1
    several = [parent for parent, number in sorted(dumps.items()) if number > 1]
    if not several:
        return
    # most folders have no dump
    from spiketriage.readers.events.desync import first_disagreement  # noqa: PLC0415

    for parent in several[:MAX_CLAIMS]:
        try:
            first = first_disagreement(parent)
        except EvidenceError as error:
            yield f"PROBLEM {error.message}"
            continue
        if first is None:
            sentence = f"the dumps of {dumps[parent]} ranks show no disagreement"
            yield f"{parent.relative_to(folder)}: {sentence}"
            continue
        yield f"{parent.relative_to(folder)}: {first.sentence}"
        for problem in first.problems:
            yield f"not compared: {problem}"


def _brief(claim: Claim, folder: Path, notes: dict[str, Sequence[str]]) -> str:
    """One line of what a claim's reader says; what it notes of a checkpoint goes into `notes`."""
    try:
        if claim.kind == "checkpoint":
            stored = cast("Layout", claim.format).read(claim.path)
            notes[claim.path.relative_to(folder).as_posix()] = stored.notes
            return describe.brief_checkpoint(stored)
        if claim.kind == "telemetry":
            log = cast("LogFormat", claim.format).read(claim.path, DEFAULT)
            return describe.brief_log(log, read_events(claim.path, at_least=GUESS))
        if claim.kind == "events":
            return describe.brief_events(cast("EventSource", claim.format).read(claim.path).events)
        return next(describe.data(cast("DataStore", claim.format).read(claim.path)))
    except EvidenceError as error:
        return f"PROBLEM {error.message}"
