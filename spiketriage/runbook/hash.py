"""`spiketriage hash`: digest every artifact, and name what differs from manifest or index.

This module never repairs anything and never judges a cause: it says which bytes are not those on
record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path

from spiketriage import digests
from spiketriage.diagnosis.anchors import select_anchors
from spiketriage.diagnosis.role import stamp
from spiketriage.errors import EvidenceError, Exit
from spiketriage.evidence import frozen as evidence
from spiketriage.evidence import gaps, hash_findings, layout
from spiketriage.evidence.generation_digests import Generations, examine_generations
from spiketriage.evidence.measured import kept
from spiketriage.evidence.progress import say
from spiketriage.evidence.shard_digests import Data, examine_data
from spiketriage.incident import next_step, store
from spiketriage.nouns.checkpoint import NATIVE
from spiketriage.nouns.incident import Artifact, Dossier, Finding, RunSettings, StepResult
from spiketriage.nouns.listing import listed, shortened
from spiketriage.readers.settings import read_settings

VERDICTS = {Exit.DONE: "clean", Exit.INTEGRITY: "differs", Exit.PARTIAL: "partial"}
MAX_UNMEASURED = 40  # sentences: a cluster that is lost leaves one for each file
_GROWING = ("log", "telemetry")  # a run that goes on appends to these, which is no damage


@dataclass(slots=True, kw_only=True)
class _Examined:
    """What one hash found: new rows, a sentence for everything that differs, and context."""

    artifacts: list[Artifact] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    context: list[str] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> Exit:
        if self.differing:
            return Exit.INTEGRITY
        if self.unmeasured:
            return Exit.PARTIAL
        return Exit.DONE


def reads(run_folder: Path) -> tuple[Path, ...]:
    """The folders whose files an executor has to see: the run, and what lies elsewhere.

    Raises:
        EvidenceError, UsageError: the run has no settings that can be read.
    """
    settings = read_settings(run_folder)
    data = (settings.data_index.parent,) if settings.data_index is not None else ()
    return (
        settings.run,
        *(
            folder
            for folder in (settings.checkpoints, *data)
            if not folder.is_relative_to(settings.run)
        ),
    )


def run(
    run_folder: Path,
    *,
    incidents: Path | None,
    incident: str | None,
    argv: Sequence[str],
    executor: Executor | None = None,
) -> StepResult:
    """Digest copies, index, shards and generations; add one finding for each but the copies.

    `executor` is any `concurrent.futures` executor whose workers see the same paths: they read
    generations and shards.

    Raises:
        RefusedError: nothing is frozen, or its freeze did not finish.
        EvidenceError: the incident cannot be read.
        BusyError: somebody else works on the incident.
    """
    settings = read_settings(run_folder)
    place = store.find(run_folder, incidents=incidents, wanted=incident)
    evidence.require_frozen(place.dossier(), place, settings)
    with place.session(argv) as session:
        dossier = place.dossier()
        say(f"hash: {place.id}: {len(dossier.artifacts)} artifacts")
        examined = _copies(dossier, place.folder, settings)
        generations = examine_generations(place.folder, settings, dossier, executor)
        data = examine_data(place.folder, settings, dossier, generations.facts, executor)
        examined.differing += [*generations.differing, *data.differing]
        examined.unmeasured += [*generations.unmeasured, *data.unmeasured]
        examined.context += [
            *_code(dossier, settings, generations),
            *_not_visible(dossier, generations),
        ]
        _update(examined, dossier, settings, generations, data)
        session.artifacts(examined.artifacts)
        session.generations(kept(facts) for facts in generations.measured)
        measured_findings = (data.index_identity, data.shard_digests, generations.finding)
        findings = stamp(measured_findings, hash_findings.EMITS)
        session.findings(findings)
        if dossier.anchors is not None and (generations.differing or not generations.unmeasured):
            old = dossier.anchors
            anchors = select_anchors(generations.facts, old.onset, old.suspect, old.reason)
            if (anchors.known_good, anchors.older_good) != (old.known_good, old.older_good):
                session.anchors(anchors)
                examined.context.append(
                    f"known good is now {anchors.known_good or 'none'}, not {old.known_good}"
                )
        session.exit_code = examined.exit_code
    following = next_step.after_hash(is_partial=examined.exit_code == Exit.PARTIAL)
    return _result(
        place, examined, findings, next_step.command(following, run_folder, incidents, incident)
    )


def _copies(dossier: Dossier, folder: Path, settings: RunSettings) -> _Examined:
    """Each copy against what it was when it was frozen, and against its source now."""
    examined = _Examined()
    for artifact in dossier.artifacts:
        if artifact.kept != "copied":
            continue
        source = settings.run / artifact.path
        name = layout.copy_name(settings, artifact.kind, source)
        if name is None:
            continue
        copy = layout.payload(folder) / name
        try:
            seen = digests.of_file(copy)
        except EvidenceError as error:
            examined.differing.append(f"evidence: {error.message}")
            continue
        if seen != artifact.digest:
            examined.differing.append(
                f"evidence: {copy}: changed since the freeze: expected {artifact.digest}, "
                f"found {seen}"
            )
        if artifact.kind != "host":
            _source(examined, artifact, source)
    return examined


def _source(examined: _Examined, artifact: Artifact, source: Path) -> None:
    try:
        seen = digests.of_file(source)
    except EvidenceError as error:
        examined.context.append(f"{error.message}; its copy is kept")
        return
    expected = artifact.source_digest or artifact.digest
    if seen == expected:
        return
    if artifact.kind in _GROWING:
        examined.context.append(f"{artifact.path}: written since the freeze; the copy stands")
    else:
        examined.differing.append(
            f"{artifact.path}: changed since the freeze: expected {expected}, found {seen}"
        )


def _code(dossier: Dossier, settings: RunSettings, generations: Generations) -> Iterator[str]:
    """Code trees against the manifests that name them: context, since that accuses nobody."""
    if any(item.kind == "code" and item.kept == "missing" for item in dossier.artifacts):
        return  # freeze named it as a gap, and what is left is nobody's tree
    seen: dict[str, str] = {}
    for facts in generations.facts:
        manifest = facts.manifest
        if manifest is None or not manifest.code_path or settings.code is None:
            continue
        path = settings.run / manifest.code_path
        if not path.is_relative_to(settings.code) or ".." in path.parts:
            continue
        if manifest.code_path not in seen:
            seen[manifest.code_path] = _code_digest(dossier, settings.run, path)
        if seen[manifest.code_path] != manifest.code_digest:
            yield f"{manifest.code_path}: is not the code that {facts.name} was written by"


def _code_digest(dossier: Dossier, run: Path, folder: Path) -> str:
    """The digest of a folder of code as the run had it, whatever was redacted in its copy."""
    parts = {}
    for artifact in dossier.artifacts:
        source = run / artifact.path
        if artifact.kept == "copied" and source.suffix == ".py" and source.is_relative_to(folder):
            name = source.relative_to(folder).as_posix()
            parts[name] = artifact.source_digest or artifact.digest
    return digests.of_mapping(parts)


def _not_visible(dossier: Dossier, generations: Generations) -> Iterator[str]:
    """What a clean result does not rule out: no checksum, unfinished, never read before."""
    foreign = [generation for generation in generations.facts if generation.layout != NATIVE]
    without = [
        generation
        for generation in foreign
        if any("has no checksum" in note for note in generation.notes)
    ]
    if without:
        note = next(note for note in without[0].notes if "has no checksum" in note)
        yield f"{listed([generation.name for generation in without])}: {note}"
    for generation in foreign:
        if gaps.unfinished(generation):
            yield (
                f"{generation.name}: incomplete, so not vouched for: "
                f"{gaps.within(generation, generation.interrupted) or 'by its layout'}"
            )
    read = {generation.name for generation in dossier.generations if generation.file_digests}
    first = [
        generation.name
        for generation in foreign
        if generation.file_digests and generation.name not in read
    ]
    if first:
        yield (
            f"{listed(first)}: not read by the freeze, so compared with nothing; the digests "
            "of now are on record"
        )


def _update(
    examined: _Examined,
    dossier: Dossier,
    settings: RunSettings,
    generations: Generations,
    data: Data,
) -> None:
    """Rows of what stays in place, with the digests that were measured now."""
    measured = dict(data.shard_measured)
    for facts in generations.facts:
        for name, digest in facts.file_digests.items():
            measured[layout.artifact_path(settings.run, facts.path / name)] = digest
    for artifact in dossier.artifacts:
        digest = measured.get(artifact.path, "")
        if digest and digest != artifact.digest:
            if digest == artifact.expected:
                note = ""
            else:
                note = "differs from what is expected"
            examined.artifacts.append(replace(artifact, digest=digest, note=note or artifact.note))


def _result(
    place: store.Incident, examined: _Examined, findings: tuple[Finding, ...], following: str
) -> StepResult:
    lines = [
        *examined.differing,
        *shortened(examined.unmeasured, MAX_UNMEASURED, "not measured"),
        *(f"context: {text}" for text in examined.context),
        *(f"{finding.outcome}: {finding.name}: {finding.summary}" for finding in findings),
    ]
    return StepResult(
        incident=place.id,
        exit_code=examined.exit_code,
        verdict=VERDICTS[examined.exit_code],
        lines=tuple(lines),
        data={
            "differing": list(examined.differing),
            "not_measured": list(examined.unmeasured),
            "context": list(examined.context),
            "findings": {finding.name: finding.outcome for finding in findings},
        },
        next_commands=(following,),
    )
