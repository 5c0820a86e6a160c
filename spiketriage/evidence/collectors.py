"""What freeze copies into the bag, most volatile first: one small function a kind of evidence.

This module never copies and never opens a file for writing: it lists, and `collect` copies.
"""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.incident import RunSettings
from spiketriage.readers.checkpoints import native as generations_reader
from spiketriage.readers.discover import files_of
from spiketriage.readers.settings import FILE_NAME
from spiketriage.readers.telemetry.run.sources import find_logs
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.readers.telemetry.stores.native import SUFFIX
from spiketriage.wire.generation import COMPLETE_NAME, MANIFEST_NAME
from spiketriage.wire.ring import SUFFIX as RING_SUFFIX

_NOT_CODE = {"__pycache__", ".git", ".venv", ".spiketriage"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing to copy: a file, or `content` that stands nowhere on disk."""

    kind: str
    source: Path
    content: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """A kind of evidence; it may be silent for `timeout_s` before it is given up.

    It may take `share` of the room that is left for copies when its turn comes.
    """

    name: str
    items: Callable[[RunSettings], Iterator[Item]]
    timeout_s: float = 120.0
    share: float = 1.0


def logs(settings: RunSettings) -> Iterator[Item]:
    """Every file below the log folders."""
    for folder in settings.logs:
        if folder.exists():
            for path in _files(folder):
                yield Item(kind="log", source=path)


def host(settings: RunSettings) -> Iterator[Item]:
    """The machine that freezes: load, memory, kernel.

    No environment variables, which hold secrets.
    """
    facts = {
        "taken_at": datetime.now(UTC).isoformat(),
        "host": socket.gethostname(),
        "kernel": platform.platform(),
        "num_cpus": os.cpu_count(),
        "load": list(os.getloadavg()),
        "meminfo": _text(Path("/proc/meminfo")).splitlines()[:8],
        "boot_id": _text(Path("/proc/sys/kernel/random/boot_id")).strip(),
    }
    yield Item(kind="host", source=Path("host"), content=json.dumps(facts, indent=1).encode())


def telemetry(settings: RunSettings) -> Iterator[Item]:
    """Every segment of our recorder and its ring of recent batches.

    Else every file of somebody else's log.
    """
    if settings.telemetry.is_file():
        yield Item(kind="telemetry", source=settings.telemetry)
        return
    segments = [
        path for path in _listed(settings.telemetry) if path.suffix in (SUFFIX, RING_SUFFIX)
    ]
    if not any(path.suffix == SUFFIX for path in segments):
        segments = []
        for claim in find_logs(settings.telemetry, Names(columns=settings.columns)):
            segments.extend(files_of(claim))
    for path in dict.fromkeys(segments):
        yield Item(kind="telemetry", source=path)


def identity(settings: RunSettings) -> Iterator[Item]:
    """Settings, configuration and the deployed code."""
    if os.path.lexists(settings.run / FILE_NAME):
        yield Item(kind="settings", source=settings.run / FILE_NAME)
    if settings.config is not None:
        yield Item(kind="config", source=settings.config)
    if settings.code is not None:
        for path in _files(settings.code):
            yield Item(kind="code", source=path)


def batches(settings: RunSettings) -> Iterator[Item]:
    """The data index; the ids that a step consumed are in the telemetry."""
    if settings.data_index is not None:
        yield Item(kind="index", source=settings.data_index)


def manifests(settings: RunSettings) -> Iterator[Item]:
    """Manifest and completion mark of every generation; the tensors stay where they are."""
    for folder in _listed(settings.checkpoints):
        if generations_reader.claims(folder):
            for name in (MANIFEST_NAME, COMPLETE_NAME):
                if os.path.lexists(folder / name):
                    yield Item(kind="generation", source=folder / name)


COLLECTORS: tuple[Collector, ...] = (
    # half, however many there are: without telemetry and manifests nothing can be said
    Collector(name="logs", items=logs, share=0.5),
    Collector(name="host", items=host, timeout_s=10.0),
    # a tenth is enough for what comes later, and that is worth more than the last segment or module
    Collector(name="telemetry", items=telemetry, share=0.9),
    Collector(name="identity", items=identity, share=0.9),
    Collector(name="batches", items=batches),
    Collector(name="manifests", items=manifests),
)


def _files(folder: Path) -> Iterator[Path]:
    """Files below `folder`, or itself.

    A link to a folder is not followed, so no loop of links traps us.
    """
    if not folder.is_dir():
        yield folder
        return
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if name not in _NOT_CODE)
        for name in sorted(names):
            yield Path(parent) / name


def _refuse(error: OSError) -> None:
    raise EvidenceError(f"{error.filename}: cannot be listed: {error.strerror}") from error


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise EvidenceError(f"{folder}: cannot be listed: {error.strerror or error}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""  # not every system has it, and nothing depends on it
