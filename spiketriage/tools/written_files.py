"""What lies in the incident's folders, held against what its commands said that they wrote there.

This module never follows a link, and never says what was frozen: the bag and the artifacts do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from spiketriage.digests import sha256_of_file
from spiketriage.errors import EvidenceError
from spiketriage.nouns.incident import Dossier
from spiketriage.nouns.listing import counted

PAYLOAD = "evidence/data/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What the record says of files: the digest of each, and the folders of interrupted commands.

    `removed` were files once and must be gone.
    """

    digests: dict[str, str]
    removed: frozenset[str]
    interrupted: tuple[str, ...]

    def is_explained(self, path: str) -> bool:
        """Whether a command that did not end was writing there."""
        return self.begun_at(path) is not None

    def begun_at(self, path: str) -> str | None:
        """The folder in which a command that did not end was writing this file."""
        for folder in self.interrupted:
            parent, _, name = folder.rpartition("/")
            # what a launch says of itself lies beside the folder of the trial that led it
            if path.startswith((f"{folder}/", f"{parent}/launch-{name}.")):
                return folder
        return None


def read(dossier: Dossier) -> Written:
    """What the newest rows about each file say."""
    digests, removed, interrupted = {}, [], []
    for row in dossier.files:
        if row.sha256:
            digests[row.path] = row.sha256
        elif row.state == "removed":
            removed.append(row.path)
        elif row.state == "begun":
            interrupted.append(row.path)
    return Written(
        digests=digests, removed=frozenset(removed), interrupted=tuple(sorted(interrupted))
    )


def problems(folder: Path, written: Written) -> Iterator[str]:
    """A sentence for every recorded file that is not what it was written as."""
    for path, expected in sorted(written.digests.items()):
        if written.is_explained(path):
            continue
        target = folder / path
        if target.is_symlink() or not target.is_file():
            yield f"{target}: missing"
            continue
        try:
            seen = sha256_of_file(target)
        except EvidenceError as error:
            yield error.message
            continue
        if seen != expected:
            yield f"{target}: changed: expected sha256 {expected}, found {seen}"


def unknown(folder: Path, written: Written, known: Collection[str], below: str) -> Iterator[str]:
    """A sentence for every file below a folder of which no finished command speaks."""
    for path in sorted((folder / below).rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        if name in written.digests or name in known or written.is_explained(name):
            continue
        if name.startswith(PAYLOAD):  # against its manifest
            continue
        yield f"{path}: no command wrote it"


def interrupted(folder: Path, written: Written) -> Iterator[str]:
    """A sentence for every folder in which a command was killed while it wrote."""
    for begun in written.interrupted:
        parent, _, name = begun.rpartition("/")
        beside = (folder / parent).glob(f"launch-{name}.*")
        unsealed = [*(path for path in (folder / begun).rglob("*") if path.is_file()), *beside]
        yield (
            f"{folder / begun}: the command that wrote here did not end: nothing vouches for "
            f"{counted(len(unsealed), 'file')}"
        )
