"""Reads generations in our own layout: whether each is complete, unchanged, finite, rank-agreed.

This module never loads a tensor into a framework and never raises for a damaged one: it says what
is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spiketriage import redaction
from spiketriage.digests import of_bytes
from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.nouns.checkpoint import NATIVE, GenerationFacts, Manifest
from spiketriage.nouns.file import StoredFile
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder
from spiketriage.readers.checkpoints.building.folder import stored_files
from spiketriage.readers.checkpoints.dcp import layout as dcp
from spiketriage.readers.json_file import is_count, is_inside, parse_object, read_bytes
from spiketriage.readers.scan.oddities import nonfinite, oddities, suspicions
from spiketriage.readers.scan.run import measure
from spiketriage.wire import generation as wire

_SHOWN = 3
_RANK_FILE = re.compile(r"rank-\d{5}\.json")


@dataclass(slots=True, kw_only=True)
class _Measured:
    """What was seen of a generation's bytes so far."""

    digests: dict[str, str] = field(default_factory=dict)
    nonfinite: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def claims(path: Path) -> bool:
    """Whether the folder at `path` is meant to be a generation of ours, if nobody else claims it.

    Other trainers name folders alike, so the name alone decides only where nothing else does: see
    `holds_ours`.
    """
    return wire.step_of(path.name) is not None or holds_ours(path)


def holds_ours(path: Path) -> bool:
    """Whether a folder holds a file that only our training side writes, damaged or not."""
    try:
        names = [entry.name for entry in path.iterdir()]
    except OSError:
        return False
    if wire.MANIFEST_NAME in names or wire.COMPLETE_NAME in names:
        return True
    return wire.TENSORS in names and any(_RANK_FILE.fullmatch(name) for name in names)


def read_generation(
    path: Path, *, verify: bool, executor: Executor | None = None
) -> GenerationFacts:
    """The generation in folder `path`; everything wrong with it is a sentence in `problems`.

    `executor` has pieces of files read by its workers; by default threads of this process read.
    """
    measured = _Measured()
    manifest: Manifest | None = None
    complete = False
    try:
        data = read_bytes(path / wire.MANIFEST_NAME)
        complete = _is_complete(path, data, measured)
        manifest = parse_manifest(path / wire.MANIFEST_NAME, data)
    except EvidenceError as error:
        measured.problems.append(error.message)
    if manifest is not None:
        measured.problems += _contradictions(path, manifest)
        present = _present(path, measured)
        measured.problems += _listing(path, manifest, present)
        if verify:
            _measure(path, manifest, present, measured, executor)
    step = manifest.step if manifest is not None else wire.step_of(path.name)
    return GenerationFacts(
        name=path.name,
        path=path,
        step=step,
        manifest=manifest,
        complete=complete,
        file_digests=measured.digests,
        nonfinite=tuple(measured.nonfinite),
        problems=tuple(dict.fromkeys(measured.problems)),
        odd=tuple(measured.odd),
        notes=tuple(measured.notes),
    )


def parse_manifest(path: Path, data: bytes) -> Manifest:
    """The manifest in `data`, which came from `path`, with every type and path checked.

    Raises:
        CorruptFileError: it is not a manifest of this schema.
    """
    value = parse_object(path, data)
    try:
        manifest = wire.from_json(value)
        _check_types(manifest)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(
            path, "content", expected=f"a manifest {wire.SCHEMA}", seen=error
        ) from error
    return replace(manifest, hparams=redaction.settings(manifest.hparams))


def _is_complete(path: Path, manifest: bytes, measured: _Measured) -> bool:
    try:
        seen = read_bytes(path / wire.COMPLETE_NAME).strip()
    except EvidenceError as error:
        measured.problems.append(f"{error.message}: the generation was not finished")
        return False
    expected = of_bytes(manifest)
    if seen != expected.encode():
        problem = CorruptFileError(
            path / wire.COMPLETE_NAME,
            "digest of MANIFEST.json",
            expected=expected,
            seen=seen[:64].decode("latin-1"),
        )
        measured.problems.append(problem.message)
        return False
    return True


def _check_types(manifest: Manifest) -> None:
    if not is_count(manifest.step) or not is_count(manifest.world_size) or manifest.world_size < 1:
        raise ValueError(f"step {manifest.step!r}, world size {manifest.world_size!r}")
    for entry in manifest.files:
        is_described = is_count(entry.size_bytes) and isinstance(entry.digest, str)
        if not is_described or not is_inside(entry.path):
            raise ValueError(f"file entry {entry}")
    for fields in manifest.fields.values():
        _check_digests(fields)
    for groups in manifest.tensors.values():
        for tensors in groups.values():
            _check_digests(tensors)
    for mapping in (manifest.hparams, manifest.schedule, manifest.scheduler):
        if not isinstance(mapping, dict):
            raise TypeError(f"expected an object, found {mapping!r}")


def _check_digests(value: Mapping[str, Any]) -> None:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise TypeError(f"expected digests by name, found {value!r:.80}")


def _contradictions(path: Path, manifest: Manifest) -> list[str]:
    problems = []
    if manifest.generation != path.name:
        problems.append(f"{path}: the manifest is that of generation {manifest.generation}")
    listed = sum(_RANK_FILE.fullmatch(entry.path) is not None for entry in manifest.files)
    # Counted in what the manifest lists: a lying world size must not make us count to it.
    if listed != manifest.world_size or len(manifest.fields) != manifest.world_size:
        problems.append(
            f"{path}: expected a file of each of {manifest.world_size} ranks, the manifest "
            f"lists {listed}"
        )
    return [*problems, *wire.rank_disagreements(manifest)]


def _present(path: Path, measured: _Measured) -> dict[str, StoredFile]:
    try:
        return {file.path: file for file in stored_files(path)}
    except EvidenceError as error:
        measured.problems.append(error.message)
        return {}


def _listing(path: Path, manifest: Manifest, present: Mapping[str, StoredFile]) -> Iterator[str]:
    """Files that are missing, of another length, or that no save of this generation wrote."""
    listed = {entry.path: entry for entry in manifest.files}
    for name, entry in listed.items():
        if name not in present:
            yield f"{path / name}: listed in the manifest, but {_why(path / name)}"
        elif present[name].size_bytes != entry.size_bytes:
            yield (
                f"{path / name}: size: expected {entry.size_bytes} bytes, found "
                f"{present[name].size_bytes}"
            )
    for name in sorted(present.keys() - listed.keys() - wire.BESIDE):
        yield f"{path / name}: is not listed in the manifest: it is of another save"


def _measure(
    path: Path,
    manifest: Manifest,
    present: Mapping[str, StoredFile],
    measured: _Measured,
    executor: Executor | None,
) -> None:
    """One pass over every byte that the manifest lists."""
    listed = {entry.path: entry for entry in manifest.files}
    files = tuple(file for name, file in present.items() if name in listed)
    builder = CheckpointBuilder(path=path, files=files, world_size=manifest.world_size)
    tensors = dcp.read_inside(builder, f"{wire.TENSORS}/")
    builder.add(tensors)
    facts = builder.finish(NATIVE)
    scanned = measure(facts, is_full=True, executor=executor)
    measured.digests |= {file.path: file.digest for file in scanned.files if file.digest}
    damaged: dict[str, list[str]] = {}
    for damage in scanned.damage:
        damaged.setdefault(damage.path, []).append(damage.name)
    for name, seen in measured.digests.items():
        if seen != listed[name].digest:
            measured.problems.append(
                _changed(path / name, listed[name], seen, damaged.get(name, []))
            )
    measured.problems += [*facts.problems, *scanned.problems]
    measured.nonfinite += nonfinite(facts.tensors, scanned)
    # Buffers are no weights: a factor that brings a gradient into FP8 is a million and more, a
    # fresh history all zeros.
    trained = []
    for tensor in facts.tensors:
        if not tensor.name.startswith(wire.GROUPS["buffers"]):
            trained.append(tensor)
    measured.odd += oddities(trained, scanned)
    measured.notes += suspicions(trained, scanned)


def _changed(file: Path, entry: StoredFile, seen: str, damaged: list[str]) -> str:
    """The tensors are named by the checksum that torch keeps beside each of them."""
    names = ""
    if damaged:
        more = " …" if len(damaged) > _SHOWN else ""
        names = f" ({', '.join(damaged[:_SHOWN])}{more})"
    return f"{file}: digest: expected {entry.digest}, found {seen}{names}"


def _why(file: Path) -> str:
    try:
        file.stat()
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return "is not a regular file"
