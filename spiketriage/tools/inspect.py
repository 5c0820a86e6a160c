"""`spiketriage inspect`: what a folder or a file is, how sure that is, and what is wrong with it.

This module needs no incident, writes nothing, and never unpickles or executes what it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from spiketriage.errors import EvidenceError, Exit
from spiketriage.incident import next_step
from spiketriage.nouns.checkpoint import CheckpointFacts
from spiketriage.nouns.incident import StepResult
from spiketriage.readers.checkpoints.formats import Layout
from spiketriage.readers.data.stores import DataStore
from spiketriage.readers.discover import CONVINCED, GUESS, Claim, claims_on, discover, kinds
from spiketriage.readers.events.folder import read_events
from spiketriage.readers.events.sources import EventSource
from spiketriage.readers.look import Look, look
from spiketriage.readers.scan.run import measure
from spiketriage.readers.scan.spread import NOT_MEASURED
from spiketriage.readers.telemetry.formats import LogFormat
from spiketriage.readers.telemetry.series.names import DEFAULT
from spiketriage.tools import describe
from spiketriage.tools.inventory import inventory

# below this every byte is read without being asked, which takes well under a second
SMALL_BYTES = 256_000_000
VERDICTS = {Exit.DONE: "clean", Exit.INTEGRITY: "damaged", Exit.PARTIAL: "partial"}
_TROUBLE = ("PROBLEM", "NONFINITE", "ODD", "NOT complete")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Description:
    """The lines about one path; it is empty where there is nothing of the format in it."""

    lines: tuple[str, ...]
    is_empty: bool

    @property
    def is_trouble(self) -> bool:
        return any(line.startswith(_TROUBLE) for line in self.lines)

    @property
    def exit_code(self) -> Exit:
        if self.is_trouble:
            return Exit.INTEGRITY
        if any(line.startswith(NOT_MEASURED) for line in self.lines):
            return Exit.PARTIAL
        return Exit.DONE


def run(path: Path, *, deep: bool = False, executor: Executor | None = None) -> StepResult:
    """Say what is at `path`.

    `deep` reads every byte of a checkpoint however large it is, on `executor` if given.

    Raises:
        EvidenceError: the path is missing or cannot be read.
    """
    if executor is not None:
        path = path.absolute()  # its workers have other current folders
    seen = look(path)
    claims = claims_on(seen)
    if seen.is_folder and not any(map(_is_whole_folder, claims)):
        discovery = discover(path)
        if any(claim.path != path for claim in discovery.claims):
            return inventory(path, discovery)
    refuted: list[str] = []
    for at, claim in enumerate(claims):
        described = _described(claim, deep=deep, executor=executor)
        if (
            described.is_empty and claim.confidence < CONVINCED
        ):  # a guess that reading does not bear out
            refuted.append(f"{claim.format.NAME} ({claim.confidence:.2f}): {_why(described)}")
        else:
            return _known(seen, claim, described, claims[at + 1 :])
    return _unknown(seen, refuted)


def _is_whole_folder(claim: Claim) -> bool:
    """Whether a folder is surely one checkpoint or store, and not a place that holds several."""
    return claim.kind in ("checkpoint", "data") and claim.confidence >= CONVINCED


def _known(
    seen: Look, best: Claim, described: _Description, others: tuple[Claim, ...]
) -> StepResult:
    path = seen.path
    lines = [f"{path}: {best.kind}: {best.format.NAME} (confidence {best.confidence:.2f})"]
    lines += [f"  {line}" for line in described.lines]
    lines += [f"  tells: {best.format.TELLS}", f"  cannot tell: {best.format.CANNOT}"]
    if others:
        names = [f"{other.format.NAME} ({other.confidence:.2f})" for other in others[:3]]
        lines.append(f"  less likely: {', '.join(names)}")
    folder = path if seen.is_folder else path.parent
    return StepResult(
        incident="",
        exit_code=described.exit_code,
        verdict=VERDICTS[described.exit_code],
        lines=tuple(lines),
        data=_data(best, described),
        next_commands=(next_step.command("freeze", folder, None, None),),
    )


def _described(claim: Claim, *, deep: bool, executor: Executor | None) -> _Description:
    """What the claim's reader says of its path."""
    try:
        if claim.kind == "checkpoint":
            stored = cast(Layout, claim.format).read(claim.path)
            is_empty = not stored.tensors and not stored.fields
            return _Description(
                lines=tuple(_checkpoint(stored, deep=deep, executor=executor)), is_empty=is_empty
            )
        if claim.kind == "telemetry":
            log = cast(LogFormat, claim.format).read(claim.path, DEFAULT)
            reported = read_events(claim.path, at_least=GUESS)
            return _Description(
                lines=tuple(describe.log(log, reported)),
                is_empty=not log.series and not log.events,
            )
        if claim.kind == "events":
            file = cast(EventSource, claim.format).read(claim.path)
            return _Description(lines=tuple(describe.event_file(file)), is_empty=not file.events)
        store = cast(DataStore, claim.format).read(claim.path)
        return _Description(lines=tuple(describe.data(store)), is_empty=not store.num_documents)
    except EvidenceError as error:
        lines = [f"PROBLEM {error.message}"]
        if error.hint:
            lines.append(f"hint: {error.hint}")
        return _Description(lines=tuple(lines), is_empty=True)


def _why(described: _Description) -> str:
    for line in described.lines:
        if line.startswith("PROBLEM "):
            return line.removeprefix("PROBLEM ")
    return "reading it does not bear that out"


def _checkpoint(facts: CheckpointFacts, *, deep: bool, executor: Executor | None) -> Iterator[str]:
    num_bytes = sum(file.size_bytes for file in facts.files)
    if deep or num_bytes <= SMALL_BYTES:
        measured = measure(facts, is_full=True, is_digested=False, executor=executor)
        yield from describe.checkpoint(facts, measured)
        return
    yield from describe.checkpoint(facts, None)
    again = f"spiketriage inspect --deep {facts.path}"
    yield (
        f"its {describe.size(num_bytes)} were not read: `{again}` looks at every element and "
        "checksum"
    )


def _unknown(seen: Look, refuted: list[str]) -> StepResult:
    tried = []
    for formats in kinds().values():
        tried += [known.NAME for known in formats]
    if seen.is_folder:
        what = f"a folder with {len(seen.names)} entries: {', '.join(seen.names[:8])}"
        if len(seen.names) > 8:
            what += " …"
    else:
        what = f"a file of {seen.size_bytes} bytes that begins with {seen.head[:24]!r}"
    if seen.is_lfs_pointer:
        what += "; it is a Git-LFS pointer: the file itself was never fetched (`git lfs pull`)"
    return StepResult(
        incident="",
        exit_code=Exit.INCONCLUSIVE,
        verdict="unknown",
        lines=(
            f"{seen.path}: of no known format",
            f"  seen: {what}",
            *(f"  not {reason}" for reason in refuted),
            f"  tried: {', '.join(tried)}",
        ),
        data={"seen": what, "refuted": refuted, "tried": tried},
        next_commands=(),
    )


def _data(claim: Claim, described: _Description) -> dict[str, Any]:
    return {
        "path": str(claim.path),
        "kind": claim.kind,
        "format": claim.format.NAME,
        "confidence": claim.confidence,
        "lines": list(described.lines),
    }
