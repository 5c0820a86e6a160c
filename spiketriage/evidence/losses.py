"""What a freeze could not keep, as artifacts: telemetry, generations, an index that are lost.

This module never opens a file, and leaves it to `gaps` to say in words what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spiketriage.evidence import gaps, layout
from spiketriage.evidence.collect import missing
from spiketriage.nouns.checkpoint import GenerationFacts
from spiketriage.nouns.incident import Artifact, RunSettings
from spiketriage.readers.telemetry.run.lineage import Telemetry


def of_telemetry(
    settings: RunSettings, telemetry: Telemetry | None, unreadable: str
) -> Iterator[Artifact]:
    """What the telemetry itself shows to be missing; without any, why there is none."""
    run, folder = settings.run, settings.telemetry
    if telemetry is None:
        if folder == run:
            name = "telemetry"
        else:
            name = layout.artifact_path(run, folder)
        yield missing(name, "telemetry", unreadable)
        return
    for rank in telemetry.missing_ranks:
        path = layout.artifact_path(run, folder / f"rank-{rank:05d}")
        why = f"rank {rank} left no readable telemetry in some attempt; the other ranks are kept"
        yield missing(path, "telemetry", why)
    for path, why in gaps.telemetry_gaps(settings, telemetry):
        yield missing(path, "telemetry", why)


def of_generations(
    settings: RunSettings, generations: Iterable[GenerationFacts]
) -> Iterator[Artifact]:
    """Damaged generations, and an index that only the manifests still speak of."""
    for generation in generations:
        why = gaps.damage(generation)
        if why:
            yield missing(
                layout.artifact_path(settings.run, generation.path),
                "generation",
                f"is damaged: {why}",
            )
    why = gaps.lost_index(settings, (generation.manifest for generation in generations))
    if why:
        yield missing(gaps.DEFAULT_INDEX, "index", why)
