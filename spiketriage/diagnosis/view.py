"""What a check may look at: an incident's production telemetry, generations, index and anchors.

This module never judges and never opens a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spiketriage.nouns.checkpoint import GenerationFacts, Manifest
from spiketriage.nouns.data import DataIndex
from spiketriage.nouns.incident import Anchors, Artifact, RunSettings
from spiketriage.nouns.series import Series
from spiketriage.nouns.telemetry import Event, Identity, Link, LoadRecord, StepRecord
from spiketriage.readers.telemetry.run.lineage import Telemetry

if TYPE_CHECKING:
    from spiketriage.readers.events.desync import Disagreement

History = Mapping[int, Mapping[int, StepRecord]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDumps:
    """The flight-recorder dumps of one folder, one a rank, and where they first disagree."""

    folder: str
    num_dumps: int
    disagreement: Disagreement | None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The evidence of one incident as the checks see it.

    `anchors` are those found before any check ran; `config` is the run's configuration by dotted
    key, empty where there is none that can be read.
    """

    telemetry: Telemetry
    generations: tuple[GenerationFacts, ...]
    index: DataIndex | None
    artifacts: tuple[Artifact, ...]
    anchors: Anchors | None
    settings: RunSettings
    events: tuple[Event, ...] = ()
    dumps: tuple[RankDumps, ...] = ()
    config: Mapping[str, object] = field(default_factory=dict)

    @property
    def suspect(self) -> int | None:
        """The step that spiked, if one did."""
        if self.anchors:
            return self.anchors.suspect
        return None

    @property
    def logged_series(self) -> tuple[Series, ...]:
        """Every series of other people's logs; none of a run that our recorder saw."""
        series: list[Series] = []
        for log in self.telemetry.logs:
            series += log.series
        return tuple(series)

    def history(self) -> History:
        """Production by step, then rank."""
        by_step: dict[int, dict[int, StepRecord]] = {step: {} for step in self.telemetry.steps}
        for rank in self.telemetry.ranks:
            for record in self.telemetry.lineage(rank):
                by_step[record.step][rank] = record
        return by_step

    def manifests(self) -> tuple[Manifest, ...]:
        """Every readable manifest, oldest first."""
        manifests: list[Manifest] = []
        for generation in self.generations:
            if generation.manifest is not None:
                manifests.append(generation.manifest)
        return tuple(sorted(manifests, key=lambda manifest: manifest.step))

    def manifest(self, generation: str) -> Manifest | None:
        """The manifest of a generation by name."""
        for manifest in self.manifests():
            if manifest.generation == generation:
                return manifest
        return None

    def reference(self, attempt: int) -> Manifest | None:
        """The manifest that an attempt has to continue: of what it loaded, else the run's first."""
        manifests = self.manifests()
        for load in self.telemetry.loads:
            if load.attempt == attempt:
                older = [manifest for manifest in manifests if manifest.step <= load.step]
                return self.manifest(load.generation) or next(reversed(older), None)
        return next(iter(manifests), None)

    def identities(self) -> tuple[AttemptIdentity, ...]:
        """What each segment says of itself, by attempt and rank, with the attempt's first step."""
        identities: list[AttemptIdentity] = []
        for segment in sorted(self.telemetry.segments, key=lambda item: (item.attempt, item.rank)):
            if segment.identity is not None:
                identities.append(
                    AttemptIdentity(
                        attempt=segment.attempt,
                        rank=segment.rank,
                        first_step=segment.steps[0].step if segment.steps else None,
                        identity=segment.identity,
                    )
                )
        return tuple(identities)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptIdentity:
    """One segment's identity and where in the run it begins."""

    attempt: int
    rank: int
    first_step: int | None
    identity: Identity


def stage_digests(record: StepRecord, stage: str) -> dict[str, bytes]:
    """The digests of one stage by key, in chain order; links without a digest are left out."""
    result: dict[str, bytes] = {}
    for link, digest in record.digests.items():
        if link.stage == stage and digest:
            result[link.key] = digest
    return result


def differing_keys(records: Mapping[int, StepRecord], stage: str) -> tuple[str, ...]:
    """Keys of a stage whose digests are not equal on all ranks that recorded them.

    A link that is nonfinite on every rank is left out: NaN has many bit patterns, so its digest
    says nothing.
    """
    by_rank = {rank: stage_digests(record, stage) for rank, record in records.items()}
    keys: dict[str, None] = {}
    for digests in by_rank.values():
        keys.update(dict.fromkeys(digests))
    return tuple(key for key in keys if _differs(records, by_rank, Link(stage, key)))


def kept_own_gradient(record: StepRecord, keys: tuple[str, ...]) -> bool:
    """Whether nothing was summed: the reduced gradient of these tensors is the local one."""
    own, reduced = (
        stage_digests(record, "local_gradient"),
        stage_digests(record, "reduced_gradient"),
    )
    return all(key in reduced and own.get(key) == reduced[key] for key in keys)


def documents_of(record: StepRecord) -> tuple[str, ...]:
    """Document ids of a rank's batch; where a harness names batches otherwise, what it consumed."""
    named = tuple(_texts(record.ids))
    if record.content:
        named = tuple(name for name in named if name in record.content)
    return named or tuple(record.content)


def broken_tensors(earlier: StepRecord, later: StepRecord) -> tuple[str, ...]:
    """Tensors that are not, before the later step, what the earlier one of this rank left."""
    left = stage_digests(earlier, "params_after")
    seen = stage_digests(later, "params_before")
    return tuple(key for key, digest in seen.items() if key in left and left[key] != digest)


def broken_since_load(load: LoadRecord, first: StepRecord) -> tuple[str, ...]:
    """Tensors that changed between a load and the first step after it.

    Empty unless at least one tensor is equal: else the two were not digested in the same way.
    """
    loaded = load.tensors.get("params", {})
    seen = {
        key: item.hex()
        for key, item in stage_digests(first, "params_before").items()
        if key in loaded
    }
    broken = tuple(key for key, digest in seen.items() if loaded[key] != digest)
    if len(broken) < len(seen):
        return broken
    return ()


def _texts(ids: object) -> Iterator[str]:
    if isinstance(ids, str):
        yield ids
    elif isinstance(ids, Mapping | list | tuple):
        for item in ids.values() if isinstance(ids, Mapping) else ids:
            yield from _texts(item)


def _differs(
    records: Mapping[int, StepRecord], by_rank: Mapping[int, Mapping[str, bytes]], link: Link
) -> bool:
    holders = [rank for rank, digests in by_rank.items() if link.key in digests]
    if all(link in records[rank].nonfinite for rank in holders):
        return False
    return len({by_rank[rank][link.key] for rank in holders}) > 1
