"""`spiketriage freeze`: keep the evidence, most volatile first; find the onset; pick known good.

This module never opens a source for writing, and freezing the same onset twice makes one incident.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from spiketriage.diagnosis.anchors import select_anchors
from spiketriage.digests import sha256_of_file
from spiketriage.errors import EvidenceError, Exit, RefusedError
from spiketriage.evidence import bag, in_place, layout, losses
from spiketriage.evidence import frozen as evidence
from spiketriage.evidence import judged as judging
from spiketriage.evidence.collect import GENERATIONS
from spiketriage.evidence.collectors import COLLECTORS
from spiketriage.evidence.gather import COPIERS, Gathered, gather
from spiketriage.evidence.onset import Onset
from spiketriage.evidence.progress import say
from spiketriage.evidence.series_table import tables
from spiketriage.evidence.subject import Subject, read_subject
from spiketriage.evidence.telemetry_table import write_parquet
from spiketriage.incident import next_step, store
from spiketriage.incident.session import Session
from spiketriage.nouns.incident import (
    ALLOWED_OUTSIDE,
    ATTEMPT,
    HARNESS,
    JUDGED,
    LAST_STEP,
    LOSS_CANDIDATES,
    ROLLED_BACK,
    TRIGGER,
    Anchors,
    Artifact,
    Dossier,
    Freeze,
    RunSettings,
    Spike,
    StepResult,
)
from spiketriage.nouns.listing import counted
from spiketriage.nouns.series import Series
from spiketriage.readers.boundary import require_allowed
from spiketriage.readers.settings import read_settings
from spiketriage.readers.telemetry.run.lineage import Telemetry
from spiketriage.runbook.freeze_result import is_unjudged, onset_line, result


def run(
    run_folder: Path,
    *,
    incidents: Path | None,
    incident: str | None,
    argv: Sequence[str],
    step: int | None = None,
    dry_run: bool = False,
    allow_outside: bool = False,
) -> StepResult:
    """Freeze the run into a new incident, or finish or link the one of the same onset.

    `allow_outside` lets its settings name places outside the run, now and for what follows.

    Raises:
        EvidenceError: the folder is no run, or it cannot be read.
        UsageError: `step` is not a step of this run.
        RefusedError: the incidents' folder cannot be written, or settings name a place outside.
        DiskFullError: the disk took no more; what was copied stands.
        BusyError: somebody else works on the same incident.
    """
    settings = read_settings(run_folder)
    if not allow_outside:
        again = [*_options(step), "--allow-outside"]
        require_allowed(
            settings,
            _allowed_before(run_folder, incidents),
            hint=next_step.command("freeze", run_folder, incidents, None, *again),
        )
    subject = read_subject(settings, step)
    known = _known(subject, incidents, incident)
    if dry_run:
        return _plan(
            subject,
            known,
            next_step.command("freeze", run_folder, incidents, None, *_options(step)),
        )
    if known is not None and _is_whole(known.dossier(), settings):
        return result(known, next_step.command("hash", run_folder, incidents), again=True)
    place = known or store.create(
        run_folder,
        incidents=incidents,
        step=subject.onset.step,
        at=datetime.now(UTC),
        otherwise=subject.ending,
    )
    with place.session(argv) as session:
        if incidents is not None:
            session.fact("incidents", str(incidents.absolute()))
        session.exit_code = _freeze(session, subject)
    return result(place, next_step.command("hash", run_folder, incidents), again=False)


def _is_whole(dossier: Dossier, settings: RunSettings) -> bool:
    is_recorded = {str(place) for place in settings.outside.values()} <= set(
        dossier.allowed_outside
    )
    return dossier.freeze is not None and dossier.freeze.is_whole and is_recorded


def _allowed_before(run_folder: Path, incidents: Path | None) -> tuple[str, ...]:
    """The places outside the run that the latest incident says are allowed."""
    try:
        return store.find(run_folder, incidents=incidents, wanted=None).dossier().allowed_outside
    except (RefusedError, EvidenceError):
        return ()


def _options(step: int | None) -> list[str]:
    if step is None:
        return []
    return ["--step", str(step)]


def _known(subject: Subject, incidents: Path | None, wanted: str | None) -> store.Incident | None:
    """The incident that was asked for, or the newest one of the same onset.

    The newest is what the next step works on: one that a failing disk left empty is filled.
    """
    run = subject.settings.run
    if wanted is not None:
        return store.find(run, incidents=incidents, wanted=wanted)
    folder = store.incidents_folder(run, incidents)
    ending = subject.ending
    if folder.is_dir():
        names = sorted((path.name for path in folder.iterdir()), reverse=True)
    else:
        names = []
    for name in names:
        if f"{name.partition('Z-')[2]}-".startswith(f"{ending}-"):
            try:
                known = store.find(run, incidents=incidents, wanted=name)
                if _is_same(known.dossier(), subject, shared=incidents is not None):
                    return known
            except (RefusedError, EvidenceError):
                continue  # not an incident, or one that cannot be read: a new one is made beside it
    return None


def _is_same(dossier: Dossier, subject: Subject, *, shared: bool) -> bool:
    # Killed before its first commit, a freeze leaves no facts; in a shared folder it may be another
    # run's.
    facts, run = dossier.facts, str(subject.settings.run)
    if facts.get("run", "" if shared else run) != run:
        return False
    # An audit has no onset to tell it from the next: once finished, it is that of the steps it
    # covered.
    same_end = (facts.get(LAST_STEP) or None) == subject.last_step
    return subject.onset.step is not None or dossier.freeze is None or same_end


def _freeze(session: Session, subject: Subject) -> int:
    settings, folder = subject.settings, session.folder
    say(f"freeze: {folder.name}: copying logs, telemetry, code, manifests")
    _facts(session, subject)
    # whoever finds this incident unfinished must know whose it is
    session.begin_writing([layout.EVIDENCE])
    session.artifacts(losses.of_telemetry(subject.settings, subject.telemetry, subject.unreadable))
    session.steps(subject.onset.points)

    def keep_copies(name: str, before: Gathered) -> None:
        if (
            name == GENERATIONS
        ):  # reading those may take an hour, and what is copied must stand meanwhile
            session.artifacts(before.artifacts)
            session.commit()
            say("freeze: verifying generations")

    collectors = (*COPIERS, GENERATIONS)
    payload = layout.payload(folder)
    gathered = gather(
        settings.run, payload, collectors, onset=subject.onset.step, at_begin=keep_copies
    )
    generations = tuple(
        evidence.placed_generation(measured, folder, settings) for measured in gathered.generations
    )
    lost = list(losses.of_generations(settings, generations))
    anchors = select_anchors(
        generations, subject.onset.step, subject.onset.step, subject.onset.reason
    )
    session.anchors(anchors)
    session.spike(Spike(onset=anchors.onset, suspect=anchors.suspect))
    session.generations(gathered.generations)
    left = list(
        in_place.secure_all(folder, settings, generations, _candidates(anchors, subject.telemetry))
    )
    session.artifacts([*gathered.artifacts, *lost, *left])
    if subject.telemetry is not None:
        series: list[Series] = []
        for log in subject.telemetry.logs:
            series.extend(log.series)
        write_parquet(
            tables(series) if series else subject.telemetry,
            folder / layout.EVIDENCE / layout.PARQUET,
        )
    sealed = bag.close(folder / layout.EVIDENCE, gathered.sha256)
    kept = [
        *losses.of_telemetry(subject.settings, subject.telemetry, subject.unreadable),
        *gathered.artifacts,
        *lost,
        *left,
    ]
    missed = dict.fromkeys(artifact.path for artifact in kept if artifact.kept == "missing")
    is_whole = not missed and anchors.known_good is not None
    session.wrote({f"{layout.EVIDENCE}/{bag.TAG_MANIFEST}": sealed, **_pinned_beside(folder, left)})
    session.frozen(_ended(subject.telemetry, is_whole, missed))
    return _exit_code(subject.onset, is_whole)


def _exit_code(onset: Onset, is_whole: bool) -> int:
    if is_unjudged(onset.step, onset.reason):
        return Exit.INCONCLUSIVE
    if is_whole:
        return Exit.DONE
    return Exit.PARTIAL


def _pinned_beside(folder: Path, artifacts: Iterable[Artifact]) -> dict[str, str]:
    """SHA-256 of the pins that are no artifacts of their own: manifests beside pinned tensors."""
    pinned = folder / layout.EVIDENCE / layout.PINNED
    known = {artifact.path for artifact in artifacts}
    digests = {}
    for path in pinned.rglob("*"):
        if path.is_file() and path.relative_to(pinned).as_posix() not in known:
            digests[path.relative_to(folder).as_posix()] = sha256_of_file(path)
    return digests


def _ended(telemetry: Telemetry | None, is_whole: bool, missed: Iterable[str]) -> Freeze:
    if telemetry is None:
        return Freeze(is_whole=is_whole, gaps=tuple(missed))
    return Freeze(
        is_whole=is_whole,
        gaps=tuple(missed),
        telemetry_problems=tuple(telemetry.problems),
        telemetry_notes=tuple(telemetry.notes),
    )


def _facts(session: Session, subject: Subject) -> None:
    settings, telemetry = subject.settings, subject.telemetry
    facts = {
        "run": str(settings.run),
        "run_id": settings.run_id,
        TRIGGER: subject.onset.reason,
        "frozen_by": socket.gethostname(),
        "frozen_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "num_alarms": str(len(subject.onset.alarms)),
        JUDGED: judging.summary(subject.onset.judged),
        HARNESS: settings.harness,
        LAST_STEP: subject.last_step or "",
    }
    if telemetry is not None:
        facts[LOSS_CANDIDATES] = json.dumps(judging.candidates(telemetry.logs))
        facts["num_ranks"] = str(len(telemetry.ranks) + len(telemetry.missing_ranks))
        facts["num_attempts"] = str(len(telemetry.attempts))
        facts["first_step"] = str(telemetry.steps[0]) if telemetry.steps else ""
    if subject.onset.attempt is not None:
        facts[ATTEMPT] = str(subject.onset.attempt)
    for key, place in settings.outside.items():
        facts[f"{ALLOWED_OUTSIDE}/{key}"] = str(place)
    for number, sentence in enumerate(subject.onset.history):
        facts[f"{ROLLED_BACK}/{number}"] = sentence
    for key, value in facts.items():
        session.fact(key, value)


def _candidates(anchors: Anchors, telemetry: Telemetry | None) -> set[str | None]:
    """The generations that a replay may start from, or that the run itself last started from."""
    return {anchors.known_good, anchors.older_good, _last_loaded(telemetry)}


def _last_loaded(telemetry: Telemetry | None) -> str | None:
    if telemetry is None or not telemetry.loads:
        return None
    return max(telemetry.loads, key=lambda load: (load.attempt, load.wall_time_s)).generation


def _plan(subject: Subject, known: store.Incident | None, command: str) -> StepResult:
    settings = subject.settings
    lines = [
        onset_line(subject.onset.step, subject.onset.reason),
        f"incident: {known.id if known is not None else 'a new one'}",
    ]
    counts: dict[str, int] = {}
    for collector in COLLECTORS:
        try:
            items = list(collector.items(settings))
        except EvidenceError as error:
            lines.append(f"would miss {collector.name}: {error.message}")
            continue
        counts[collector.name] = len(items)
        lines.append(f"would copy {collector.name}: {counted(len(items), 'file')}")
    lines.append(
        "would verify generations and pin the known-good ones and the data shards; nothing "
        "was written"
    )
    return StepResult(
        incident=known.id if known is not None else "",
        exit_code=Exit.DONE,
        verdict="dry-run",
        lines=tuple(lines),
        data={"onset": subject.onset.step, "num_files": counts},
        next_commands=(command,),
    )
