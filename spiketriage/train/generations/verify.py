"""Holds the files and fields of a generation against its manifest, each rank its share.

This module never loads anything and never raises for what it finds: it yields the problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spiketriage import digests
from spiketriage.errors import CorruptFileError
from spiketriage.nouns.checkpoint import Manifest
from spiketriage.train.generations.rank_state import StateDigests
from spiketriage.train.generations.together import place
from spiketriage.wire import generation as wire
from spiketriage.wire.chain import PLACEMENT


def file_problems(folder: Path, manifest: Manifest) -> Iterator[CorruptFileError]:
    """What is wrong with this rank's share of the files; the first rank looks at the list, too."""
    here = place()
    if here.rank == 0:
        yield from _listing_problems(folder, manifest)
    for entry in manifest.files[here.rank :: here.world_size]:
        seen = digests.tree_of_file(folder / entry.path)
        if seen != entry.digest:
            yield CorruptFileError(folder / entry.path, "digest", expected=entry.digest, seen=seen)


def _listing_problems(folder: Path, manifest: Manifest) -> Iterator[CorruptFileError]:
    listed = {entry.path: entry for entry in manifest.files}
    present = {}
    for path in folder.rglob("*"):
        if not path.is_dir():
            present[path.relative_to(folder).as_posix()] = path
    for name in sorted(present.keys() - listed.keys() - wire.BESIDE):
        yield CorruptFileError(
            folder / name, "file", expected="only what the manifest lists", seen="one more"
        )
    for name, entry in listed.items():
        seen = "no such file"
        if name in present:
            seen = f"{present[name].stat().st_size} bytes"
        if seen != f"{entry.size_bytes} bytes":
            yield CorruptFileError(
                folder / name, "size", expected=f"{entry.size_bytes} bytes", seen=seen
            )


def field_problems(
    folder: Path, manifest: Manifest, seen: StateDigests
) -> Iterator[CorruptFileError]:
    """What is not as it was saved: on the same ranks any field, on others any whole tensor."""
    rank = wire.rank_name(place().rank)
    saved = manifest.fields.get(rank, {})
    if saved.get(PLACEMENT) == seen.fields[PLACEMENT]:
        for name, digest in seen.fields.items():
            if saved.get(name) != digest:
                where = f"field {name} of {rank.replace('-', ' ')}"
                yield CorruptFileError(folder, where, expected=saved.get(name), seen=digest)
        return
    first = manifest.tensors.get(wire.rank_name(0), {})
    for group, tensors in seen.tensors.items():
        for name, digest in tensors.items():
            if "@" in name:
                expected = digest
            else:
                expected = first.get(group, {}).get(name, digest)
            if expected != digest:
                yield CorruptFileError(folder, f"{group} {name}", expected=expected, seen=digest)
