"""Where things lie in an incident's evidence: the one place that knows the names under `evidence/`.

This module never touches a file.
"""

from __future__ import annotations

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
    """Where `source` is pinned by a hard link."""
    if source.is_relative_to(run):
        relative = source.relative_to(run)
    else:
        relative = Path(source.name)
    return incident_folder / EVIDENCE / PINNED / relative


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
        if source in settings.logs and source.is_relative_to(settings.run):
            # found one by one, in an order that changes with the run
            return f"{LOGS}/{_below(settings.run, source)}"
        # Several log folders may hold files of the same name, so the folder's number tells them
        # apart.
        for number, folder in enumerate(settings.logs):
            if source.is_relative_to(folder):
                return f"{LOGS}/{_numbered(number, _below(folder, source))}"
    return None


def _numbered(number: int, name: str) -> str:
    """The name of a log below the folder of that number, which no log of another folder has.

    The first folder's names are as they are, unless they begin like a number of ours.
    """
    if number == 0 and not name.startswith("@"):
        return name
    return f"@{number}/{name}"


def _below(folder: Path | None, source: Path) -> str:
    if folder is None or source == folder:
        return source.name
    return source.relative_to(folder).as_posix()
