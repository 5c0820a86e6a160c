"""`spiketriage inspect`: what a folder or a file is, how sure that is, and what is wrong with it.

This module needs no incident, writes nothing, and never unpickles or executes what it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from spiketriage.errors import EvidenceError
from spiketriage.facts import CheckpointFacts
from spiketriage.readers.checkpoints.layouts import Layout
from spiketriage.readers.data.stores import DataStore
from spiketriage.readers.discover import KINDS, Claim, claims_on, discover
from spiketriage.readers.events.sources import EventSource
from spiketriage.readers.look import Look, look
from spiketriage.readers.scan.run import measure
from spiketriage.readers.telemetry.formats import LogFormat
from spiketriage.readers.telemetry.names import DEFAULT
from spiketriage.records import StepResult
from spiketriage.runbook import describe, typed

SMALL_BYTES = 256_000_000  # below this every byte is read without being asked, which takes well under a second
INTEGRITY, UNKNOWN = 4, 5
_TROUBLE = ("PROBLEM", "NONFINITE", "ODD", "NOT complete")
MAX_FOUND = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """The lines about one path."""

    lines: tuple[str, ...]

    @property
    def is_trouble(self) -> bool:
        return any(line.startswith(_TROUBLE) for line in self.lines)


def run(path: Path, *, deep: bool = False) -> StepResult:
    """Say what is at `path`; `deep` reads every byte of a checkpoint however large it is.

    Raises:
        EvidenceError: the path is missing or cannot be read.
    """
    seen = look(path)
    claims = claims_on(seen)
    if not claims:
        inside = discover(path).claims if seen.is_folder else ()
        return _inside(path, inside) if inside else _unknown(seen)
    best = claims[0]
    lines = [f"{path}: {best.kind}: {best.format.NAME} (confidence {best.confidence:.2f})"]
    try:
        told = _Told(lines=tuple(_lines(best, deep=deep)))
    except EvidenceError as error:
        told = _Told(lines=(f"PROBLEM {error.message}", *([f"hint: {error.hint}"] if error.hint else [])))
    lines += [f"  {line}" for line in told.lines]
    lines += [f"  tells: {best.format.TELLS}", f"  cannot tell: {best.format.CANNOT}"]
    others = [f"{one.format.NAME} ({one.confidence:.2f})" for one in claims[1:4]]
    if others:
        lines.append(f"  less likely: {', '.join(others)}")
    return StepResult(
        incident="",
        exit_code=INTEGRITY if told.is_trouble else 0,
        verdict="damaged" if told.is_trouble else "clean",
        lines=tuple(lines),
        data=_data(best, told),
        next_commands=(typed.command("freeze", path if seen.is_folder else path.parent, None, None),),
    )


def _lines(claim: Claim, *, deep: bool) -> Iterator[str]:
    if claim.kind == "checkpoint":
        yield from _checkpoint(cast(Layout, claim.format).read(claim.path), deep=deep)
    elif claim.kind == "telemetry":
        yield from describe.log(cast(LogFormat, claim.format).read(claim.path, DEFAULT))
    elif claim.kind == "events":
        yield from describe.event_file(cast(EventSource, claim.format).read(claim.path))
    else:
        yield from describe.data(cast(DataStore, claim.format).read(claim.path))


def _checkpoint(facts: CheckpointFacts, *, deep: bool) -> Iterator[str]:
    num_bytes = sum(file.size_bytes for file in facts.files)
    is_read = deep or num_bytes <= SMALL_BYTES
    yield from describe.checkpoint(facts, measure(facts, is_full=True, is_digested=False) if is_read else None)
    if not is_read:
        again = f"spiketriage inspect --deep {facts.path}"
        yield f"its {describe.size(num_bytes)} were not read: `{again}` looks at every element and checksum"


def _inside(path: Path, claims: tuple[Claim, ...]) -> StepResult:
    shown = [
        f"  {one.path.relative_to(path)}: {one.kind}: {one.format.NAME} ({one.confidence:.2f})"
        for one in claims[:MAX_FOUND]
    ]
    more = [f"  … and {len(claims) - MAX_FOUND} more"] if len(claims) > MAX_FOUND else []
    kinds = ", ".join(f"{sum(one.kind == kind for one in claims)} {kind}" for kind, _ in KINDS)
    return StepResult(
        incident="",
        exit_code=0,
        verdict="clean",
        lines=(f"{path}: a folder that holds: {kinds}", *shown, *more),
        data={"claims": [{"path": str(one.path), "kind": one.kind, "format": one.format.NAME} for one in claims]},
        next_commands=(typed.command("freeze", path, None, None),),
    )


def _unknown(seen: Look) -> StepResult:
    tried = [one.NAME for _, formats in KINDS for one in formats]
    if seen.is_folder:
        what = (
            f"a folder with {len(seen.names)} entries: {', '.join(seen.names[:8])}{' …' if len(seen.names) > 8 else ''}"
        )
    else:
        what = f"a file of {seen.size_bytes} bytes that begins with {seen.head[:24]!r}"
    if seen.is_lfs_pointer:
        what += "; it is a Git-LFS pointer: the file itself was never fetched (`git lfs pull`)"
    return StepResult(
        incident="",
        exit_code=UNKNOWN,
        verdict="unknown",
        lines=(f"{seen.path}: of no known format", f"  seen: {what}", f"  tried: {', '.join(tried)}"),
        data={"seen": what, "tried": tried},
        next_commands=(),
    )


def _data(claim: Claim, told: _Told) -> dict[str, Any]:
    return {
        "path": str(claim.path),
        "kind": claim.kind,
        "format": claim.format.NAME,
        "confidence": claim.confidence,
        "lines": list(told.lines),
    }
