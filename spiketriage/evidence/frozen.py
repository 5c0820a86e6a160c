"""What later steps see of a run: the frozen evidence, read back as the view that checks work on.

This module never reads telemetry, manifests or index from the run itself, which may have changed
since.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from spiketriage.diagnosis.view import View
from spiketriage.errors import EvidenceError, RefusedError
from spiketriage.evidence import layout
from spiketriage.evidence.measured import placed
from spiketriage.evidence.rank_dumps import rank_dumps
from spiketriage.incident.store import Incident
from spiketriage.nouns.checkpoint import NATIVE, GenerationFacts, Manifest, MeasuredGeneration
from spiketriage.nouns.data import DataIndex
from spiketriage.nouns.incident import ATTEMPT, Dossier, RunSettings
from spiketriage.nouns.telemetry import Event
from spiketriage.readers.boundary import require_allowed
from spiketriage.readers.checkpoints.native import parse_manifest
from spiketriage.readers.config_file import read_config
from spiketriage.readers.data.native_index import read_index
from spiketriage.readers.events.folder import read_events
from spiketriage.readers.telemetry.run.lineage import Telemetry
from spiketriage.readers.telemetry.run.sources import read_telemetry
from spiketriage.readers.telemetry.series.names import Names


def load_view(incident: Incident, settings: RunSettings) -> View:
    """The view on an incident's evidence.

    The index keeps the run's path, since its shards lie beside that.

    Raises:
        RefusedError: nothing is frozen in this incident.
        EvidenceError: the evidence cannot be read.
    """
    dossier = incident.dossier()
    require_frozen(dossier, incident, settings)
    payload = layout.payload(incident.folder)
    telemetry = _telemetry(payload / layout.TELEMETRY, settings)
    if ATTEMPT in dossier.facts:
        telemetry = telemetry.until(int(dossier.facts[ATTEMPT]))
    noticed: list[Event] = []
    for log in telemetry.logs:
        noticed += log.events
    return View(
        telemetry=telemetry,
        events=(
            *noticed,
            *read_events(payload / layout.LOGS),
            *read_events(payload / layout.TELEMETRY),
        ),
        generations=frozen_generations(dossier, incident.folder, settings),
        index=frozen_index(incident.folder, settings),
        artifacts=dossier.artifacts,
        anchors=dossier.anchors,
        settings=settings,
        dumps=rank_dumps(payload / layout.LOGS),
        config=_config(payload / layout.CONFIG, settings),
    )


def _config(copy: Path, settings: RunSettings) -> dict[str, object]:
    """The frozen configuration; empty where there is none, or none that can be read."""
    if settings.config is None:
        return {}
    try:
        stated = read_config(settings.config, copy=copy)
    except (EvidenceError, RefusedError):
        return {}
    return {setting.name: setting.value for setting in stated}


def _telemetry(folder: Path, settings: RunSettings) -> Telemetry:
    """The frozen telemetry; empty where a foreign run had none, so that the rest can be checked.

    Raises:
        EvidenceError: there was some, and it cannot be read.
    """
    if not folder.exists() and settings.telemetry == settings.run:
        return Telemetry(segments=(), problems=(f"{settings.run}: no telemetry was frozen",))
    return read_telemetry(folder, Names(columns=settings.columns))


def require_frozen(dossier: Dossier, incident: Incident, settings: RunSettings) -> None:
    """Refuse evidence that no freeze has finished collecting: half of it accuses the wrong rank.

    Raises:
        RefusedError: the incident's freeze did not finish, or the settings name a place outside the
        run that they did not name, or that was not allowed, when it did.
    """
    if incident.folder.absolute().is_relative_to(settings.run):
        elsewhere = []
    else:
        elsewhere = ["--incidents", str(incident.folder.parent)]
    again = shlex.join(["spiketriage", "freeze", str(settings.run), *elsewhere])
    require_allowed(settings, dossier.allowed_outside, hint=f"{again} --allow-outside")
    if dossier.freeze is not None:
        return
    raise RefusedError(
        f"{incident.id}: its freeze did not finish, so its evidence is incomplete", hint=again
    )


def frozen_index(incident_folder: Path, settings: RunSettings) -> DataIndex | None:
    """The index as it was frozen; None if there is none to believe, which `hash` says."""
    if settings.data_index is None:
        return None
    try:
        index = read_index(layout.payload(incident_folder) / layout.INDEX)
    except EvidenceError:
        return None
    return replace(index, path=settings.data_index)


def frozen_generations(
    dossier: Dossier, incident_folder: Path, settings: RunSettings
) -> tuple[GenerationFacts, ...]:
    """The generations as freeze and hash measured them, ascending."""
    return tuple(
        placed_generation(measured, incident_folder, settings) for measured in dossier.generations
    )


def placed_generation(
    measured: MeasuredGeneration, incident_folder: Path, settings: RunSettings
) -> GenerationFacts:
    """What was measured, at its place and together with the frozen manifest."""
    if measured.layout == NATIVE:
        manifest = frozen_manifest(incident_folder, measured.name)
    else:
        manifest = None
    return placed(measured, generation_path(incident_folder, settings, measured.name), manifest)


def generation_path(incident_folder: Path, settings: RunSettings, name: str) -> Path:
    """Where a generation can be read: in the run, else where it is pinned."""
    source = settings.checkpoints / name
    link = layout.pinned(incident_folder, settings.run, source)
    if link.is_dir() and not source.exists():
        return link
    return source


def frozen_manifest(incident_folder: Path, generation: str) -> Manifest | None:
    """The frozen manifest of a generation; None if there is none that can be read."""
    path = layout.payload(incident_folder) / layout.GENERATIONS / generation / "MANIFEST.json"
    try:
        return parse_manifest(path, path.read_bytes())
    except (OSError, EvidenceError):
        return None
