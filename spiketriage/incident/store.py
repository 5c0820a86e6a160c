"""Incidents as folders: make one, find one, read what it holds.

This module never changes an existing incident; that is what a session is for.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spiketriage import durable
from spiketriage.errors import EvidenceError, RefusedError, SpiketriageError, UsageError
from spiketriage.incident import database
from spiketriage.incident.rows import TABLES, newest, unpack
from spiketriage.incident.session import Session
from spiketriage.nouns.incident import NO_SPIKE, Dossier

_DRAFT_PREFIX = ".new-"
_STAMP_LENGTH = len("2026-11-29T0312Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A handle on an incident's folder; it holds nothing open."""

    folder: Path

    @property
    def id(self) -> str:
        """The incident's name, which is its folder's."""
        return self.folder.name

    def dossier(self) -> Dossier:
        """Everything that the incident holds, newest rows only.

        Raises:
            EvidenceError: the database cannot be read.
        """
        try:
            with database.reading(self.folder) as connection:
                read: dict[str, list[Any]] = {}
                for name, table in TABLES.items():
                    rows = database.select(connection, f"SELECT * FROM {name} ORDER BY number")
                    read[name] = [unpack(table.record, row) for row in newest(table, rows)]
                journal = database.journal_rows(connection)
        except (KeyError, TypeError, ValueError) as error:
            raise EvidenceError(
                f"{self.folder / database.NAME}: a row is not what a command wrote: {error}",
                hint=f"spiketriage verify --incident {self.id}",
            ) from error
        return Dossier(
            incident=self.id,
            facts={fact.key: fact.value for fact in read["facts"]},
            anchors=next(iter(read["anchors"]), None),
            artifacts=tuple(read["artifacts"]),
            findings=tuple(read["findings"]),
            trials=tuple(read["trials"]),
            steps=tuple(read["steps"]),
            verdict=next(iter(read["verdicts"]), None),
            journal=journal,
            setting=next(iter(read["setting"]), None),
            experiments=tuple(read["experiments"]),
            generations=tuple(read["generations"]),
            spike=next(iter(read["spikes"]), NO_SPIKE),
            freeze=next(iter(read["freezes"]), None),
            files=tuple(read["files"]),
        )

    def session(self, argv: Sequence[str], *, journal: bool = True) -> Session:
        """A context manager that holds the lease and adds rows."""
        return Session(self.folder, argv, journal=journal)


def incidents_folder(run: Path, incidents: Path | None) -> Path:
    """Where the incidents of `run` lie."""
    if incidents is None:
        return run / ".spiketriage" / "incidents"
    return incidents


def create(
    run: Path, *, incidents: Path | None, step: int | None, at: datetime, otherwise: str = "audit"
) -> Incident:
    """Make a new incident with an empty database; it appears whole or not at all.

    Without a `step` its name ends with `otherwise`.

    Raises:
        RefusedError: the folder of incidents cannot be written.
        DiskFullError: its disk is full.
    """
    parent = incidents_folder(run, incidents)
    subject = otherwise if step is None else f"step{step}"
    name = f"{at.astimezone(UTC):%Y-%m-%dT%H%MZ}-{subject}"
    draft = parent / f"{_DRAFT_PREFIX}{socket.gethostname()}-{os.getpid()}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _clean(parent)
        draft.mkdir(mode=0o700)
        database.build(draft, created_at=datetime.now(UTC).isoformat(), run=str(run))
        return Incident(folder=_placed(draft, name))
    except OSError as error:
        if error.errno in durable.FULL:
            raise durable.disk_full(parent / name, database.NEW_BYTES) from error
        raise RefusedError(
            f"{parent}: an incident cannot be made: {error.strerror or error}",
            hint=f"spiketriage freeze {shlex.quote(str(run))} --incidents ./incidents",
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def find(run: Path, *, incidents: Path | None, wanted: str | None) -> Incident:
    """The incident whose name is or uniquely begins with `wanted`; without `wanted` the latest.

    Raises:
        RefusedError: there is none.
        UsageError: `wanted` fits several.
    """
    parent = incidents_folder(run, incidents)
    names = _names(parent)
    fitting = [name for name in names if wanted is None or name.startswith(wanted)]
    if not fitting:
        if wanted is None:
            what = "no incident"
        else:
            what = f"no incident whose name begins with {wanted!r}"
        known = f"; there are {', '.join(names)}" if names else ""
        raise RefusedError(f"{parent}: {what}{known}", hint=_hint(names, run, incidents))
    if wanted in fitting:
        return Incident(folder=parent / wanted)
    if wanted is not None and len(fitting) > 1:
        raise UsageError(
            f"--incident {wanted}: fits {len(fitting)} incidents: {', '.join(fitting)}"
        )
    return Incident(folder=parent / max(fitting, key=lambda name: _age_key(parent, name, fitting)))


def _hint(names: Sequence[str], run: Path, incidents: Path | None) -> str:
    if incidents is None:
        elsewhere = []
    else:
        elsewhere = ["--incidents", str(incidents)]
    place = shlex.join([str(run), *elsewhere])
    if names:
        return f"spiketriage status {place} --incident {shlex.quote(names[-1])}"
    return f"spiketriage freeze {place}"


def _names(parent: Path) -> list[str]:
    try:
        folders = [path for path in parent.iterdir() if not path.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RefusedError(f"{parent}: cannot be listed: {error.strerror or error}") from error
    return sorted(path.name for path in folders if (path / database.NAME).is_file())


def _age_key(parent: Path, name: str, rivals: Sequence[str]) -> tuple[str, str]:
    """The minute in the name; among incidents of one minute, the moment that each was made."""
    stamp = name[:_STAMP_LENGTH]
    if sum(rival.startswith(stamp) for rival in rivals) == 1:
        return stamp, ""
    with suppress(SpiketriageError), database.reading(parent / name) as connection:
        return stamp, str(
            database.select(connection, "SELECT created_at FROM meta")[0]["created_at"]
        )
    return stamp, ""


def _placed(draft: Path, name: str) -> Path:
    """Give `draft` its name, or the name with the first free suffix."""
    number = 1
    while True:
        target = draft.parent / (name if number == 1 else f"{name}-{number}")
        try:
            # refused by the system when the target is a folder with something in it
            os.rename(draft, target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            number += 1
        else:
            durable.sync(target.parent)
            return target


def _clean(parent: Path) -> None:
    """Remove drafts of commands of this host that were killed while they made an incident."""
    prefix = f"{_DRAFT_PREFIX}{socket.gethostname()}-"
    for leftover in parent.glob(f"{prefix}*"):
        pid = leftover.name.removeprefix(prefix)
        if not pid.isdecimal() or int(pid) == os.getpid() or not Path(f"/proc/{pid}").exists():
            shutil.rmtree(leftover, ignore_errors=True)
