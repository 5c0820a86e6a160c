"""What a folder of somebody else's run holds.

One line for each checkpoint, log, event file and data store in it.

This module reads metadata only and never a tensor; `spiketriage inspect` on one of the lines' paths
reads on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from spiketriage.errors import EvidenceError
from spiketriage.incident import next_step
from spiketriage.nouns.incident import StepResult
from spiketriage.readers.discover import Claim, Discovery, kinds
from spiketriage.readers.telemetry.series.names import DEFAULT
from spiketriage.tools import describe

if TYPE_CHECKING:
    from spiketriage.readers.checkpoints.formats import Layout
    from spiketriage.readers.data.stores import DataStore
    from spiketriage.readers.events.sources import EventSource
    from spiketriage.readers.telemetry.formats import LogFormat

INTEGRITY = 4
MAX_FOUND = 40


def inventory(folder: Path, found: Discovery) -> StepResult:
    """The result of `inspect` on a folder that is no single thing.

    It is trouble where a line tells of damage.
    """
    claims = sorted(found.claims, key=lambda one: list(kinds()).index(one.kind))
    told = [_brief(one) for one in claims[:MAX_FOUND]]
    counts = [
        f"{number} {kind}"
        for kind in kinds()
        if (number := sum(one.kind == kind for one in claims))
    ]
    lines = [f"{folder}: a folder that holds {', '.join(counts)}"]
    for one, text in zip(claims, told, strict=False):
        lines.append(
            f"  {one.path.relative_to(folder)}: {one.kind}: {one.format.NAME} "
            f"({one.confidence:.2f}): {text}"
        )
    if len(claims) > MAX_FOUND:
        lines.append(f"  … and {len(claims) - MAX_FOUND} more")
    lines += [f"  collectives: {sentence}" for sentence in _disagreements(folder, found)]
    has_trouble = any(text.startswith("PROBLEM") for text in told)
    return StepResult(
        incident="",
        exit_code=INTEGRITY if has_trouble else 0,
        verdict="damaged" if has_trouble else "clean",
        lines=(*lines, *(f"  note: {note}" for note in found.notes)),
        data={
            "claims": [
                {"path": str(one.path), "kind": one.kind, "format": one.format.NAME}
                for one in claims
            ]
        },
        next_commands=(next_step.command("freeze", folder, None, None),),
    )


def _disagreements(folder: Path, found: Discovery) -> Iterator[str]:
    """The first collective on which ranks disagree, for each folder with the dumps of several ranks."""
    dumps = Counter(
        one.path.parent for one in found.of("events") if one.format.NAME == "flight-recorder"
    )
    several = [parent for parent, number in sorted(dumps.items()) if number > 1]
    if not several:
        return
    # most folders have no dump
    from spiketriage.readers.events.desync import first_disagreement

    for parent in several[:MAX_FOUND]:
        try:
            first = first_disagreement(parent)
        except EvidenceError as error:
            yield f"PROBLEM {error.message}"
            continue
        if first is not None:
            told = first.sentence
        else:
            told = f"the dumps of {dumps[parent]} ranks show no disagreement"
        yield f"{parent.relative_to(folder)}: {told}"


def _brief(claim: Claim) -> str:
    try:
        if claim.kind == "checkpoint":
            return describe.brief_checkpoint(cast("Layout", claim.format).read(claim.path))
        if claim.kind == "telemetry":
            return describe.brief_log(cast("LogFormat", claim.format).read(claim.path, DEFAULT))
        if claim.kind == "events":
            return describe.brief_events(cast("EventSource", claim.format).read(claim.path).events)
        return next(describe.data(cast("DataStore", claim.format).read(claim.path)))
    except EvidenceError as error:
        return f"PROBLEM {error.message}"
