"""The data index against the manifests, the shards against the index: part of `spiketriage hash`.

This module never lets an index that changed accuse a shard: then the shards are not testable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path

from spiketriage import digests
from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.errors import EvidenceError
from spiketriage.evidence import gaps, layout
from spiketriage.evidence.hash_findings import INDEX_IDENTITY as IDENTITY
from spiketriage.evidence.hash_findings import SHARD_DIGESTS as SHARDS
from spiketriage.nouns.checkpoint import GenerationFacts
from spiketriage.nouns.data import DataIndex, Document
from spiketriage.nouns.file import StoredFile
from spiketriage.nouns.incident import Dossier, Finding, RunSettings, Where
from spiketriage.nouns.listing import counted, listed
from spiketriage.readers.data.native_index import ShardFacts, measure_shard, read_index
from spiketriage.readers.scan.spread import not_measured, spread, unmeasured_path
from spiketriage.readers.telemetry.run.sources import read_telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The two findings, what differs in sentences, and the measured digest of every shard.

    `unmeasured` has a sentence for each shard that no worker of an executor could finish.
    """

    index_identity: Finding
    shard_digests: Finding
    differing: tuple[str, ...]
    shard_measured: Mapping[str, str]
    unmeasured: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shard:
    """One pass over a shard, wherever an executor puts it: its facts, or why there are none."""

    facts: ShardFacts | None
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """One document (or, with no id, a shard) that is not what the index says."""

    path: str
    document: str | None
    expected: str
    seen: str


@dataclass(slots=True, kw_only=True)
class _Shards:
    measured: dict[str, str] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    differences: list[_Difference] = field(default_factory=list)
    consumed: frozenset[str] = frozenset()


def examine_data(
    incident_folder: Path,
    settings: RunSettings,
    dossier: Dossier,
    generations: Sequence[GenerationFacts],
    executor: Executor | None = None,
) -> Data:
    """Test the index first; only one that is itself beyond doubt may testify about the shards."""
    if settings.data_index is None:
        lost = gaps.lost_index(settings, (generation.manifest for generation in generations))
        if lost:
            reason = f"{gaps.DEFAULT_INDEX} {lost}"
        else:
            reason = "the run names no data index"
        return _untested(untestable(IDENTITY, reason), reason, (reason,) if lost else ())
    path = layout.payload(incident_folder) / layout.INDEX
    indexes = [item for item in dossier.artifacts if item.kind == "index"]
    gap = next((item for item in indexes if item.kept == "missing"), None)
    if gap is not None and not path.exists():
        reason = f"{gap.path} could not be frozen: {gap.note}"
        return _untested(
            untestable(IDENTITY, reason), "there is no index to compare the shards with", (reason,)
        )
    identity: Finding | None = None
    try:
        identity = _identity(settings, digests.of_file(path), generations)
        index = read_index(path)
    except EvidenceError as error:
        reason = f"the index cannot be believed: {error.message}"
        return _untested(identity or untestable(IDENTITY, reason), reason, (reason,))
    if identity.outcome == "differs":
        return _untested(
            identity, f"the index itself changed: {identity.summary}", (identity.summary,)
        )
    shards = _examine_shards(
        replace(index, path=settings.data_index), incident_folder, settings, executor
    )
    shards.consumed = _consumed(incident_folder, dossier)
    return Data(
        index_identity=identity,
        shard_digests=_finding(shards, index),
        differing=tuple(shards.sentences),
        shard_measured=shards.measured,
        unmeasured=tuple(shards.lost),
    )


def _untested(identity: Finding, reason: str, differing: tuple[str, ...]) -> Data:
    return Data(
        index_identity=identity,
        shard_digests=untestable(SHARDS, reason),
        differing=differing,
        shard_measured={},
    )


def _identity(settings: RunSettings, seen: str, generations: Sequence[GenerationFacts]) -> Finding:
    manifests = []
    for generation in generations:
        if generation.complete and generation.manifest is not None:
            manifests.append(generation.manifest)
    naming = [manifest for manifest in manifests if manifest.index_digest]
    if not naming:
        return untestable(
            IDENTITY, "no complete generation names the digest of the index it was trained on"
        )
    newest = max(naming, key=lambda manifest: manifest.step)
    assert settings.data_index is not None, "asked only of runs with an index"
    path = layout.artifact_path(settings.run, settings.data_index)
    # The newest decides: an index may be replaced on purpose during a run, and older manifests then
    # differ.
    if newest.index_digest == seen:
        return agrees(IDENTITY, f"{path} is the one that {newest.generation} was trained on")
    return Finding(
        name=IDENTITY,
        outcome="differs",
        summary=f"{path} is not the one that {newest.generation} was trained on",
        where=Where(path=path, field="index_digest"),
        expected=newest.index_digest,
        seen=seen,
    )


def _examine_shards(
    index: DataIndex, incident_folder: Path, settings: RunSettings, executor: Executor | None
) -> _Shards:
    shards = _Shards()
    indexes = list(_single_indexes(index, incident_folder, settings))
    seen = (
        map(_measure, indexes)
        if executor is None
        else spread(_measure, indexes, executor, lost=_lost)
    )
    for entry, where, shard in zip(index.shards, indexes, seen, strict=True):
        path = layout.artifact_path(settings.run, index.path.parent / entry.path)
        if shard.facts is not None:
            _examine_shard(shards, where, entry, path, shard.facts)
        elif unmeasured_path(shard.problem):
            shards.lost.append(shard.problem.replace(f"{settings.run}/", ""))
        else:
            shards.unreadable.append(f"{path}: {shard.problem}")
            shards.sentences.append(shard.problem)
    return shards


def _single_indexes(
    index: DataIndex, incident_folder: Path, settings: RunSettings
) -> Iterator[DataIndex]:
    """The index of each shard alone, at the place where the shard can be read."""
    documents: dict[str, dict[str, Document]] = {entry.path: {} for entry in index.shards}
    for document in index.documents.values():
        documents[document.shard][document.id] = document
    for entry in index.shards:
        source = index.path.parent / entry.path
        link = layout.pinned(incident_folder, settings.run, source)
        where = index.path
        if (
            not source.exists() and link.exists()
        ):  # the run deleted it; the pinned bytes are still evidence
            where = link.parents[len(Path(entry.path).parts) - 1] / index.path.name
        yield replace(index, path=where, shards=(entry,), documents=documents[entry.path])


def _measure(index: DataIndex) -> _Shard:
    (entry,) = index.shards
    try:
        return _Shard(facts=measure_shard(index, entry.path), problem="")
    except EvidenceError as error:
        return _Shard(facts=None, problem=error.message)


def _lost(index: DataIndex, reason: str) -> _Shard:
    return _Shard(
        facts=None, problem=not_measured(str(index.path.parent / index.shards[0].path), reason)
    )


def _examine_shard(
    shards: _Shards, index: DataIndex, entry: StoredFile, path: str, facts: ShardFacts
) -> None:
    shards.measured[path] = facts.digest
    expected = {document.id: document.digest for document in index.documents.values()}
    differing = sorted(
        name for name, digest in expected.items() if facts.documents.get(name) != digest
    )
    if facts.digest == entry.digest and not differing:
        return
    if differing:
        what = f"{counted(len(differing), 'document')} ({listed(differing)})"
    else:
        what = "no document"
    size = ""
    if facts.size_bytes != entry.size_bytes:
        size = f"; expected {entry.size_bytes} bytes, found {facts.size_bytes}"
    shards.sentences.append(f"{path}: differs from the index in {what}{size}")
    for name in differing:
        seen = facts.documents.get(name, "cut off")
        shards.differences.append(
            _Difference(path=path, document=name, expected=expected[name], seen=seen)
        )
    if not differing:
        shards.differences.append(
            _Difference(path=path, document=None, expected=entry.digest, seen=facts.digest)
        )


def _consumed(incident_folder: Path, dossier: Dossier) -> frozenset[str]:
    """Documents of the suspect step, which a finding names first."""
    if dossier.anchors is not None:
        suspect = dossier.anchors.suspect
    else:
        suspect = None
    if suspect is None:
        return frozenset()
    try:
        telemetry = read_telemetry(layout.payload(incident_folder) / layout.TELEMETRY)
    except EvidenceError:
        return frozenset()
    names: set[str] = set()
    for rank in telemetry.ranks:
        record = telemetry.at(rank, suspect)
        if record is not None:
            names.update(record.content)
    return frozenset(names)


def _summary(ranked: Sequence[_Difference]) -> str:
    """One sentence for all that differs; the shards have had a line each."""
    num_documents = sum(difference.document is not None for difference in ranked)
    num_shards = len({difference.path for difference in ranked})
    what = f"{counted(num_documents, 'document')} in {counted(num_shards, 'shard')}"
    if not num_documents:
        what = f"{counted(num_shards, 'shard')}, between documents,"
    if max(num_documents, num_shards) == 1:
        differ = "differs"
    else:
        differ = "differ"
    names = []
    for difference in ranked:
        shard = Path(difference.path).name
        names.append(f"{shard} {difference.document}" if difference.document else shard)
    return f"{what} {differ} from the index: {listed(names)}"


def _finding(shards: _Shards, index: DataIndex) -> Finding:
    if shards.differences:
        ranked = sorted(
            shards.differences, key=lambda difference: difference.document not in shards.consumed
        )
        first = ranked[0]
        documents = {difference.document for difference in shards.differences}
        used = documents & shards.consumed
        if used:
            note = f"; the suspect step consumed {len(used)} of them"
        else:
            note = ""
        return Finding(
            name=SHARDS,
            outcome="differs",
            summary=_summary(ranked) + note,
            where=Where(path=first.path, key=first.document),
            expected=first.expected,
            seen=first.seen,
            magnitude=float(len(shards.differences)),
        )
    if shards.unreadable or shards.lost:
        return untestable(SHARDS, "; ".join([*shards.unreadable, *shards.lost][:3]))
    num = len(index.documents)
    return agrees(
        SHARDS, f"{counted(num, 'document')} in {counted(len(index.shards), 'shard')} as indexed"
    )
