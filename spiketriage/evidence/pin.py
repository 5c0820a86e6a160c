"""Pins large files by a hard link, so that the trainer's own rotation cannot delete their bytes.

This module never copies: where a link is impossible the file is only referenced, and the note says
so.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace
from pathlib import Path

from spiketriage.evidence import layout
from spiketriage.evidence.collect import missing
from spiketriage.nouns.incident import Artifact, RunSettings
from spiketriage.readers.boundary import led_out

_IMPOSSIBLE = {
    errno.EXDEV: "the incident lies on another file system",
    errno.EPERM: "the file system or its rules allow no hard link",
    errno.EMLINK: "the file has too many links",
    errno.ENOTSUP: "the file system has no hard links",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """A file that stays where it is, with the digest expected of it and, if known, its own."""

    source: Path
    kind: str
    expected: str
    digest: str = ""


def secure(incident_folder: Path, settings: RunSettings, file: InPlace, *, pin: bool) -> Artifact:
    """The artifact of a file that stays in place; with `pin`, hard-linked under `pinned/`."""
    path = layout.artifact_path(settings.run, file.source)
    try:
        stat = file.source.stat()
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            why = "is missing"
        else:
            why = f"cannot be read: {error.strerror}"
        return replace(missing(path, file.kind, why), expected=file.expected)
    artifact = Artifact(
        path=path,
        kind=file.kind,
        size_bytes=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        digest=file.digest,
        expected=file.expected,
        kept="referenced",
        note="",
    )
    if not pin:
        return artifact
    place = led_out(settings, file.source)
    if place is not None:
        return replace(artifact, note=f"not pinned: leads out of the run, to {place}")
    why = link(file.source, layout.pinned(incident_folder, settings.run, file.source))
    if why:
        return replace(artifact, note=f"not pinned: {why}; the run can still delete it")
    return replace(artifact, kept="pinned")


def link(source: Path, target: Path) -> str:
    """Hard-link `source` at `target`; returns why that is impossible, or nothing.

    Raises:
        OSError: the incident cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=True)
    except FileExistsError:
        if os.path.samefile(source, target):
            return ""
        # other bytes: the run wrote the file anew before an interrupted freeze was finished
        target.unlink()
        return link(source, target)
    except OSError as error:
        if error.errno not in _IMPOSSIBLE:
            raise
        return _IMPOSSIBLE[error.errno]
    return ""
