"""What is too large to copy: generations and data shards, pinned where they are or referenced.

This module never reads the bytes of either; their digests were measured or come from a manifest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.evidence import gaps, layout
from spiketriage.evidence.collect import missing
from spiketriage.evidence.pin import InPlace, link, secure
from spiketriage.nouns.checkpoint import NATIVE, GenerationFacts
from spiketriage.nouns.file import StoredFile
from spiketriage.nouns.incident import Artifact, RunSettings
from spiketriage.readers.boundary import led_out
from spiketriage.readers.data.native_index import read_index
from spiketriage.wire.generation import COMPLETE_NAME, MANIFEST_NAME


def secure_all(
    folder: Path,
    settings: RunSettings,
    generations: Sequence[GenerationFacts],
    candidates: Collection[str | None],
) -> Iterator[Artifact]:
    """The artifacts of every generation and shard; only the candidates among them are pinned."""
    for generation in generations:
        yield from _generation(folder, settings, generation, pin=generation.name in candidates)
    yield from _shards(folder, settings)


def _generation(
    folder: Path, settings: RunSettings, generation: GenerationFacts, *, pin: bool
) -> Iterator[Artifact]:
    is_rest = gaps.unfinished(generation)  # what a rotation or a killed save left is no loss
    for entry in _files(generation):
        source = generation.path / entry.path
        if is_rest and not source.exists():
            continue
        file = InPlace(
            source=source,
            kind="checkpoint",
            expected=entry.digest,
            digest=generation.file_digests.get(entry.path, ""),
        )
        yield secure(folder, settings, file, pin=pin)
    if pin and generation.complete and generation.layout == NATIVE:
        # With its manifest beside it, a pinned generation can be loaded after the run has deleted
        # it.
        for name in (MANIFEST_NAME, COMPLETE_NAME):
            source = generation.path / name
            if led_out(settings, source) is None:
                link(source, layout.pinned(folder, settings.run, source))


def _files(generation: GenerationFacts) -> tuple[StoredFile, ...]:
    """Its files with what they should hash to, or without a manifest what they hash to now."""
    if generation.manifest is not None:
        return generation.manifest.files
    files = []
    for path, digest in generation.file_digests.items():
        files.append(StoredFile(path=path, size_bytes=0, digest=digest))
    return tuple(files)


def _shards(folder: Path, settings: RunSettings) -> Iterator[Artifact]:
    if settings.data_index is None:
        return
    copy = layout.payload(folder) / layout.INDEX
    try:
        index = read_index(copy)
    except EvidenceError as error:
        if copy.exists():  # else it could not be copied, which is a gap already
            path = layout.artifact_path(settings.run, settings.data_index.parent)
            why = f"the index cannot be believed, so no shard is pinned: {error.message}"
            yield missing(f"{path}/", "shards", why)
        return
    for shard in index.shards:
        file = InPlace(
            source=settings.data_index.parent / shard.path, kind="shard", expected=shard.digest
        )
        yield secure(folder, settings, file, pin=True)
