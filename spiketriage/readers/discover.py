"""Finds the checkpoints, telemetry, system events and data stores in a folder of somebody's run.

This module never follows a link to a folder, and stops looking at a bound that it names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from spiketriage.errors import EvidenceError
from spiketriage.readers.look import Format, Look, look

Kind = Literal["checkpoint", "telemetry", "events", "data"]
MAX_PATHS = 50_000
MAX_DEPTH = 12
CONVINCED = 0.5  # a claim below this is a guess, which only `inspect` may show
GUESS = 0.2  # below this not even a person's word makes it a log
SPECIFIC = 0.7  # a claim above this is by a mark of the format's own, not by its shape
# A folder of these may be what a run left beside its checkpoints.
WEIGHTS_ALONE = ("safetensors", "torch-save")
FLAT = ("jsonl",)  # what lies in a folder's folders is not read with it
_NOT_EVIDENCE = {".spiketriage", ".git", ".venv", "__pycache__", "node_modules"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One format's claim on a path."""

    kind: Kind
    format: Format
    path: Path
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What was found, outermost first; `notes` say what was not looked at."""

    claims: tuple[Claim, ...]
    notes: tuple[str, ...]

    def of(self, kind: Kind) -> tuple[Claim, ...]:
        """The claims of one kind."""
        return tuple(claim for claim in self.claims if claim.kind == kind)


@cache
def kinds() -> Mapping[Kind, tuple[Format, ...]]:
    """Every format that can be read, by kind, in order of precedence."""
    # Fifty readers, imported when they are asked for: the runs of our own recorder need none of
    # them.
    from spiketriage.readers.checkpoints.formats import LAYOUTS  # noqa: PLC0415
    from spiketriage.readers.data.stores import STORES  # noqa: PLC0415
    from spiketriage.readers.events.sources import SOURCES  # noqa: PLC0415
    from spiketriage.readers.telemetry.formats import FORMATS  # noqa: PLC0415

    return {"checkpoint": LAYOUTS, "telemetry": FORMATS, "events": SOURCES, "data": STORES}


def claims_on(seen: Look) -> tuple[Claim, ...]:
    """Every claim on a path, the surest first; an earlier kind or format wins a tie."""
    claims = []
    for kind, formats in kinds().items():
        for known in formats:
            confidence = known.claims(seen)
            if confidence > 0:
                claims.append(Claim(kind=kind, format=known, path=seen.path, confidence=confidence))
    return tuple(sorted(claims, key=lambda claim: -claim.confidence))


def discover(
    folder: Path, *, wanted: Callable[[Claim], bool] = lambda _: True, at_least: float = CONVINCED
) -> Discovery:
    """Walk `folder` and claim what is in it; a checkpoint's inside is its own affair.

    Claims below `at_least` are left alone: a person who names a log may ask for less than one who
    names a folder.

    Raises:
        EvidenceError: the folder itself cannot be read.
    """
    look(folder)
    walk = _Walk(at_least)
    claims = tuple(claim for claim in walk.below(folder, 0, ()) if wanted(claim))
    return Discovery(claims=claims, notes=tuple(walk.notes))


class _Walk:
    """One walk with its bounds."""

    def __init__(self, at_least: float) -> None:
        self.notes: list[str] = []
        self._at_least = at_least
        self._num_paths = 0

    def below(self, path: Path, depth: int, outer: tuple[Claim, ...]) -> Iterator[Claim]:
        """Claims on `path` and on what is in it; `outer` are those of the folders around it."""
        self._num_paths += 1
        try:
            seen = look(path)
        except EvidenceError as error:
            self.notes.append(error.message)
            return
        if seen.is_lfs_pointer:
            self.notes.append(f"{path}: is a Git-LFS pointer: the file was never fetched")
        claims = [claim for claim in claims_on(seen) if claim.confidence >= self._at_least]
        best = claims[0] if claims else None
        for claim in (*claims[:1], *_log_beside(claims)):
            if not _is_covered(claim, outer):
                yield claim
                outer = (*outer, claim)
        if not seen.is_folder or (best is not None and best.kind == "data"):
            return
        if depth >= MAX_DEPTH:
            self.notes.append(
                f"{path}: not looked into: it lies more than {MAX_DEPTH} folders deep"
            )
            return
        if best is not None and best.kind == "checkpoint":
            yield from self._inside(best, seen, depth, outer)
        else:
            yield from self._children(seen, depth, outer)

    def _inside(
        self, checkpoint: Claim, seen: Look, depth: int, outer: tuple[Claim, ...]
    ) -> Iterator[Claim]:
        """Checkpoints in a checkpoint: many a run saves its last weights over its checkpoints.

        Whatever else lies in one is its own affair.
        """
        folders = []
        for name in seen.names:
            path = seen.path / name
            if not path.is_dir():
                continue
            if checkpoint.format.NAME in WEIGHTS_ALONE or _best_format(path) is checkpoint.format:
                folders.append(name)
        around = tuple(claim for claim in outer if claim is not checkpoint)
        yield from self._children(replace(seen, names=tuple(folders)), depth, around)

    def _children(self, seen: Look, depth: int, outer: tuple[Claim, ...]) -> Iterator[Claim]:
        path = seen.path
        for name in seen.names:
            if self._num_paths >= MAX_PATHS:
                self.notes.append(
                    f"{path}: only the first {MAX_PATHS} files and folders were looked at"
                )
                return
            child = path / name
            if name in _NOT_EVIDENCE or (os.path.islink(child) and os.path.isdir(child)):
                continue
            yield from self.below(child, depth + 1, outer)


def _log_beside(claims: Sequence[Claim]) -> Sequence[Claim]:
    """The log that a checkpoint or a job's output holds, too: HF Trainer's state is both."""
    if not claims or claims[0].kind not in ("checkpoint", "events"):
        return ()
    if claims[0].kind == "events" and claims[0].confidence > SPECIFIC:
        return ()
    return [claim for claim in claims[1:] if claim.kind == "telemetry"][:1]


def _best_format(path: Path) -> Format | None:
    try:
        claims = claims_on(look(path))
    except EvidenceError:
        return None
    if claims and claims[0].confidence >= CONVINCED:
        return claims[0].format
    return None


def _is_covered(claim: Claim, outer: tuple[Claim, ...]) -> bool:
    """Whether a folder around this path was claimed by a reader that reads this file, too."""
    for around in outer:
        if around.kind != claim.kind:
            continue
        if around.format is not claim.format and claim.confidence > SPECIFIC:
            continue
        is_right_inside = claim.path.parent == around.path and claim.path.is_file()
        if around.format.NAME not in FLAT or is_right_inside:
            return True
    return False


def files_of(claim: Claim) -> Iterator[Path]:
    """The files behind a claim on telemetry or events: itself, or those below it."""
    if claim.path.is_file():
        yield claim.path
        return
    formats = kinds()[claim.kind]
    for parent, folders, names in os.walk(claim.path):
        folders[:] = sorted(name for name in folders if name not in _NOT_EVIDENCE)
        for name in sorted(names):
            path = Path(parent) / name
            try:
                seen = look(path)
            except EvidenceError:
                continue  # whoever reads the claim's folder says so
            if any(known.claims(seen) > 0 for known in formats):
                yield path
