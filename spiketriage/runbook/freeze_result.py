"""The result of `spiketriage freeze`: what was kept and what was missed of an incident, in lines.

This module never freezes and never opens a file of the run: it reads what the incident says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from spiketriage.errors import Exit
from spiketriage.evidence import judged as judging
from spiketriage.evidence import layout
from spiketriage.evidence.onset import NOT_JUDGED, NOTHING
from spiketriage.incident import store
from spiketriage.nouns.incident import (
    JUDGED,
    LOSS_CANDIDATES,
    ROLLED_BACK,
    Anchors,
    Artifact,
    Dossier,
    Freeze,
    StepResult,
)
from spiketriage.nouns.listing import counted


def result(place: store.Incident, command: str, *, again: bool) -> StepResult:
    """What `freeze` shows of an incident that it finished, now or (`again`) some time before."""
    dossier = place.dossier()
    anchors, freeze = dossier.anchors, dossier.freeze
    assert anchors is not None, "a finished freeze has anchors"
    assert freeze is not None, "a finished freeze says how it ended"
    missed = []
    for artifact in dossier.artifacts:
        if artifact.kept == "missing" and artifact.path in freeze.gaps:
            missed.append(artifact)
    exit_code, verdict = _ending(anchors, freeze)
    return StepResult(
        incident=place.id,
        exit_code=exit_code,
        verdict=verdict,
        lines=(
            f"incident {place.id}" + (": already frozen, nothing to do" if again else ""),
            onset_line(anchors.onset, anchors.reason),
            *_scanned(dossier.facts),
            *_generations(dossier, anchors),
            *_kept(dossier, place.folder / layout.EVIDENCE),
            *(f"gap: {gap.path}: {gap.note}" for gap in missed),
            *(f"telemetry: {problem}" for problem in _unmentioned(freeze, missed)),
            *(f"note: {note}" for note in freeze.telemetry_notes),
            *_unpinned(dossier),
        ),
        data={
            "onset": anchors.onset,
            "suspect": anchors.suspect,
            "reason": anchors.reason,
            "judged": dossier.facts.get(JUDGED, ""),
            "rolled_back": _rolled_back(dossier.facts),
            "known_good": anchors.known_good,
            "older_good": anchors.older_good,
            "refused": dict(anchors.refused),
            "gaps": [{"path": gap.path, "note": gap.note} for gap in missed],
            "notes": list(freeze.telemetry_notes),
            "folder": str(place.folder),
        },
        next_commands=(*_mapping(dossier, exit_code, command), command),
    )


def _generations(dossier: Dossier, anchors: Anchors) -> Iterator[str]:
    """Which generations can be started from, and why the others cannot."""
    run = dossier.facts["run"]
    yield f"known good: {_called(anchors.known_good)}, older: {_called(anchors.older_good)}"
    for name, why in anchors.refused.items():
        yield f"refused {_called(name)}: {_shortened(run, name, why)}"
    if not dossier.generations:
        yield f"gap: no checkpoint of a known layout was found in {run}"


def _kept(dossier: Dossier, evidence: Path) -> Iterator[str]:
    num_copied = sum(artifact.kept == "copied" for artifact in dossier.artifacts)
    num_pinned = sum(artifact.kept == "pinned" for artifact in dossier.artifacts)
    yield f"kept: {num_copied} copied, {num_pinned} pinned in {evidence}"


def _unpinned(dossier: Dossier) -> Iterator[str]:
    notes = [
        artifact.note for artifact in dossier.artifacts if artifact.note.startswith("not pinned")
    ]
    if notes:
        yield f"warning: {counted(len(notes), 'file')} {notes[0]}"


def _mapping(dossier: Dossier, exit_code: int, command: str) -> Iterator[str]:
    """What names the loss of a run of which no series was judged, and freezes it again."""
    if exit_code != Exit.INCONCLUSIVE:
        return
    keys = json.loads(dossier.facts[LOSS_CANDIDATES])
    mapping = judging.mapping_command(Path(dossier.facts["run"]), keys)
    if mapping:
        yield mapping
        yield command.replace(" hash ", " freeze ", 1)


def onset_line(step: int | None, reason: str) -> str:
    """Where the anomaly begins, or why nobody knows."""
    if step is None:
        if reason == NOTHING:
            return "onset: none (nothing spiked; this is an audit)"
        return f"onset: unknown ({reason})"
    return f"onset: {reason}"


def is_unjudged(onset: int | None, reason: str) -> bool:
    """Whether nothing can be said of the run's health: no series of it was looked at."""
    return onset is None and reason.startswith(NOT_JUDGED)


def _unmentioned(freeze: Freeze, missed: Sequence[Artifact]) -> Iterator[str]:
    """Problems of the telemetry that no gap speaks of: torn last records."""
    for problem in freeze.telemetry_problems:
        if not any(problem.partition(": ")[2] in gap.note for gap in missed):
            yield problem


def _scanned(facts: Mapping[str, str]) -> Iterator[str]:
    """What the onset rests on: the signals that were judged, and what was rolled back."""
    if facts.get(JUDGED):
        yield f"judged: {facts[JUDGED]}"
    for sentence in _rolled_back(facts):
        yield f"history: {sentence}"


def _rolled_back(facts: Mapping[str, str]) -> list[str]:
    return [sentence for key, sentence in facts.items() if key.startswith(f"{ROLLED_BACK}/")]


def _ending(anchors: Anchors, freeze: Freeze) -> tuple[int, str]:
    if is_unjudged(anchors.onset, anchors.reason):
        return Exit.INCONCLUSIVE, "not judged"
    if freeze.is_whole:
        return Exit.DONE, "frozen"
    return Exit.PARTIAL, "partial"


def _called(name: str | None) -> str:
    if name == ".":
        return "the run folder itself"
    return name or "none"


def _shortened(run: str, name: str, why: str) -> str:
    return why.replace(f"{run}/{name}: ", "").replace(f"{run}/{name}/", "")
