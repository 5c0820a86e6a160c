"""Where things lie in an incident's evidence: the one place that knows the names under `evidence/`.

This module never touches a file.
"""

from __future__ import annotations

import os
from pathlib import Path

from spiketriage.nouns.incident import RunSettings

EVIDENCE, PAYLOAD, PINNED = "evidence", "data", "pinned"
TELEMETRY, GENERATIONS, INDEX, CONFIG, CODE, LOGS = (
    "telemetry",
    "generations",
    "index.json",
    "config.json",
    "code",
    "logs",
)
HOST = "host.json"
PARQUET = "telemetry.parquet"
DRAFTS = "drafts"  # beside the payload, while a copy is written


def payload(incident_folder: Path) -> Path:
    """The folder of copied evidence."""
    return incident_folder / EVIDENCE / PAYLOAD


def incident_of(payload: Path) -> Path:
    """The incident whose copied evidence lies in the folder `payload`."""
    return payload.parent.parent


def pinned(incident_folder: Path, run: Path, source: Path) -> Path:
    """Where `source` is pinned by a hard link: no other source of the run is pinned there."""
    return incident_folder / EVIDENCE / PINNED / _named(run, run, source)


def artifact_path(run: Path, source: Path) -> str:
    """How an artifact is named: relative to the run where it lies in it."""
    if source.is_relative_to(run):
        return source.relative_to(run).as_posix()
    return str(source)


def copy_name(settings: RunSettings, kind: str, source: Path) -> str | None:
    """Name under `evidence/data/` of the copy of a source of this kind.

    None for kinds that stay in place.
    """
    if kind in ("settings", "config", "index", "host"):
        return {"settings": "spiketriage.toml", "config": CONFIG, "index": INDEX, "host": HOST}[
            kind
        ]
    if kind == "telemetry":
        return f"{TELEMETRY}/{_below(settings.telemetry, source)}"
    if kind == "generation":
        return f"{GENERATIONS}/{source.parent.name}/{source.name}"
    if kind == "code":
        return f"{CODE}/{_below(settings.code, source)}"
    if kind == "log":
        return f"{LOGS}/{_named(_logs(settings), settings.run, source)}"
    return None


def _logs(settings: RunSettings) -> Path:
    """Below which folder logs keep the names that they have there.

    The first log folder; in a run without settings, whose logs were discovered, the run.
    """
    if settings.telemetry == settings.run or not settings.logs:
        return settings.run
    return settings.logs[0]


def _named(base: Path, run: Path, source: Path) -> str:
    """A name that no other source has: as it is below `base`, and begun with `@` anywhere else."""
    # a command line, an index or a manifest may say `..`
    base, run, source = (Path(os.path.normpath(path)) for path in (base, run, source))
    if source.is_relative_to(base):
        name = _below(base, source)
        return f"@/{name}" if name.startswith("@") else name
    if source.is_relative_to(run):
        return f"@run/{source.relative_to(run).as_posix()}"
    return f"@outside/{source.relative_to(source.anchor).as_posix()}"


def _below(folder: Path | None, source: Path) -> str:
    if folder is None or source == folder:
        return source.name
    return source.relative_to(folder).as_posix()
