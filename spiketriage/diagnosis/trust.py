"""Whether the code of a run may be executed here: what this user trusted, and if it is still that.

It never imports what it looks at, and no run can grant trust to itself: what was trusted is kept in
the user's own state folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.machinery import all_suffixes
from pathlib import Path

from spiketriage import durable
from spiketriage.digests import sha256_of_bytes, sha256_of_file
from spiketriage.errors import NotTrustedError
from spiketriage.nouns.incident import SETTINGS_NAME, RunSettings
from spiketriage.nouns.listing import counted

STORE = "spiketriage/trusted"  # below the user's state folder
IMPORTABLE = tuple(all_suffixes())  # what an import statement would load: .py, .pyc, .so and kin


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCode:
    """What a harness of a run can import: the folders that the settings name, and their digest.

    `digest` is the SHA-256 over the harness and over every importable file in `folders`.
    """

    run: Path
    harness: str
    folders: tuple[Path, ...]
    num_files: int
    digest: str

    def covers(self, folder: Path) -> bool:
        """Whether `folder` lies in one of the folders that were digested."""
        place = folder.resolve()
        return any(place.is_relative_to(root) for root in self.folders)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """One line of the user's own record: this run, with this code, since then."""

    run: str
    harness: str
    digest: str
    at: str


def code_of(settings: RunSettings) -> RunCode:
    """The code that trials of a run would import, read now.

    Raises:
        EvidenceError: a file of it cannot be read.
    """
    folders = _folders(settings)
    state = hashlib.sha256(f"{settings.harness}\n".encode())
    num_files = 0
    for folder in folders:
        for path in _importable(folder):
            num_files += 1
            state.update(os.fsencode(path) + f"\0{sha256_of_file(path)}\n".encode())
    return RunCode(
        run=settings.run.resolve(),
        harness=settings.harness,
        folders=folders,
        num_files=num_files,
        digest=state.hexdigest(),
    )


def require(code: RunCode, folder: Path, *, is_granted: bool, command: str) -> str:
    """A sentence for the record that says since when the code in `folder` is trusted.

    `is_granted` says that the person trusts it now, which is remembered; `command` is what was
    typed.

    Raises:
        NotTrustedError: it never was, or is no longer what was trusted, or lies elsewhere.
    """
    if not code.covers(folder):
        raise NotTrustedError(
            f"the record of the run names code in {folder}, which the run's settings do not: "
            "nothing of it is imported",
            hint=f"name that folder in python_path of {code.run / SETTINGS_NAME}",
        )
    what = f"{code.harness} and {counted(code.num_files, 'file')} (SHA-256 {code.digest})"
    if is_granted:
        with suppress(OSError):  # without a folder of one's own, trust ends with the command
            remember(code)
        return f"{what}, by this command"
    trusted = recall(code)
    if trusted is None or trusted.digest != code.digest:
        raise NotTrustedError(_refusal(code, trusted), hint=f"{command} --trust")
    return f"{what}, at {trusted.at}"


def is_remembered(code: RunCode) -> bool:
    """Whether this user trusted the code of the run as it is now."""
    trusted = recall(code)
    return trusted is not None and trusted.digest == code.digest


def recall(code: RunCode) -> Trusted | None:
    """What this user trusted of the run last, if anything.

    A record that somebody else could have written is none.
    """
    try:
        path = _record(code)
        about = path.stat()
        if about.st_uid != os.geteuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
        kept = json.loads(path.read_bytes())
        trusted = Trusted(**kept)
    except (OSError, ValueError, TypeError):
        return None
    if trusted.run != str(code.run):
        return None
    return trusted


def remember(code: RunCode) -> None:
    """Note that this user trusts the code of the run as it is now.

    Raises:
        OSError: the user's state folder cannot be written.
    """
    path = _record(code)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {"run": str(code.run), "harness": code.harness, "digest": code.digest, "at": now}
    durable.write(path, json.dumps(entry, indent=1).encode())
    path.chmod(0o600)


def _refusal(code: RunCode, trusted: Trusted | None) -> str:
    if trusted is None:
        state = "was never trusted by you"
    else:
        state = f"is no longer what you trusted at {trusted.at}"
    return (
        f"the code of {code.run} {state}: nothing of it is imported, and no step is executed "
        f"(harness {code.harness}, {code.num_files} files in "
        f"{', '.join(str(folder) for folder in code.folders)})"
    )


def _folders(settings: RunSettings) -> tuple[Path, ...]:
    """The folders that the settings name for code, none of them inside another."""
    named = [Path(folder).resolve() for folder in settings.python_path]
    if settings.code is not None:
        named.append(settings.code.resolve())
    folders: list[Path] = []
    for folder in sorted(set(named)):
        if not any(folder.is_relative_to(root) for root in folders):
            folders.append(folder)
    return tuple(folders)


def _importable(folder: Path) -> Iterator[Path]:
    """Every file below `folder` that an import could load, through links too, each folder once.

    Hidden folders are left out, and caches of what is there: no import names them.
    """
    seen: set[Path] = set()
    for root, folders, files in os.walk(folder, followlinks=True):
        place = Path(root).resolve()
        if place in seen:
            folders.clear()
            continue
        seen.add(place)
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        for name in sorted(files):
            if name.endswith(IMPORTABLE):
                yield Path(root, name)


def _record(code: RunCode) -> Path:
    """The file that holds what this user trusted of the run.

    Raises:
        OSError: the user has no folder of their own.
    """
    stated = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(stated):  # the specification has any other value ignored
        state = Path(stated)
    else:
        state = Path(os.path.expanduser("~/.local/state"))  # itself where nobody has a home
    if not state.is_absolute():
        raise OSError("no home folder is known")
    return state / STORE / f"{sha256_of_bytes(os.fsencode(code.run))}.json"
