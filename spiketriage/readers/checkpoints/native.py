"""Reads generations in our own layout: is each one complete, unchanged, finite, and do its ranks agree.

This module never loads a tensor into a framework and never raises for a damaged one: it says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

from spiketriage.digests import of_bytes, of_file
from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.readers.checkpoints import safetensors_file
from spiketriage.readers.json_file import is_count, is_inside, parse_object, read_bytes
from spiketriage.readers.scan.spread import not_measured, spread
from spiketriage.records import FileEntry, GenerationFacts, Manifest
from spiketriage.wire import generation as wire

NAME = "native"
_FOLDER = re.compile(r"step-(\d{1,18})\Z")
_RANK_FILE = re.compile(r"\.rank-\d+\.")
_RANK_FILE = re.compile(r"(params|optimizer|state)\.rank-\d{5}\.(safetensors|json)")


@dataclass(slots=True, kw_only=True)
class _Measured:
    digests: dict[str, str] = field(default_factory=dict)
    nonfinite: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileSeen:
    """What one pass over a file measured; no digest where it could not be read."""

    digest: str
    nonfinite: tuple[str, ...]
    problem: str


def claims(path: Path) -> bool:
    """Whether the folder at `path` is meant to be a generation of ours, if nobody else claims it.

    Other trainers name folders alike, so the name alone decides only where nothing else does: see `holds_ours`.
    """
    return _FOLDER.match(path.name) is not None or holds_ours(path)


def holds_ours(path: Path) -> bool:
    """Whether a folder holds a file that only our training side writes, damaged or not."""
    try:
        names = [entry.name for entry in path.iterdir()]
    except OSError:
        return False
    return any(name in (wire.MANIFEST_NAME, wire.COMPLETE_NAME) or _RANK_FILE.fullmatch(name) for name in names)


def read_generations(folder: Path, *, verify: bool) -> tuple[GenerationFacts, ...]:
    """Every generation in `folder`, by step; `verify` measures digest and finiteness of every file.

    Raises:
        EvidenceError: the folder is missing or cannot be read.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if claims(path))
    except OSError as error:
        raise EvidenceError(f"{folder}: checkpoints cannot be read: {error.strerror or error}") from error
    facts = [read_generation(path, verify=verify) for path in paths]
    return tuple(sorted(facts, key=lambda one: (-1 if one.step is None else one.step, one.name)))


def read_generation(path: Path, *, verify: bool, executor: Executor | None = None) -> GenerationFacts:
    """The generation in folder `path`; everything wrong with it is in `problems`, one sentence each.

    `executor` has each file read by one of its workers; by default they are read here, one after the other.
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
        files = [path / entry.path for entry in manifest.files]
        found = _measure_files(files, executor) if verify else repeat(None, len(files))
        for entry, seen in zip(manifest.files, found, strict=True):
            if _is_there(path, entry, measured) and seen is not None:
                _compare(path, entry, seen, manifest, measured)
    named = _FOLDER.match(path.name)
    step = manifest.step if manifest is not None else int(named[1]) if named else None
    return GenerationFacts(
        name=path.name,
        path=path,
        step=step,
        manifest=manifest,
        complete=complete,
        file_digests=measured.digests,
        nonfinite=tuple(measured.nonfinite),
        problems=tuple(measured.problems),
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
        raise CorruptFileError(path, "content", expected=f"a manifest {wire.SCHEMA}", seen=error) from error
    return manifest


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
        if not is_inside(entry.path) or not is_count(entry.size_bytes) or not isinstance(entry.digest, str):
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
    listed = {entry.path for entry in manifest.files}
    # Bounded by what the manifest lists: a lying world size must not make us count to it.
    num_params = sum(1 for name in listed if name.startswith("params.rank-"))
    if num_params != manifest.world_size or wire.params_file(manifest.world_size - 1) not in listed:
        problems.append(f"{path}: expected parameters of {manifest.world_size} ranks, the manifest lists {num_params}")
    return problems + list(rank_disagreements(manifest))


def rank_disagreements(manifest: Manifest) -> tuple[str, ...]:
    """One sentence for each rank whose parameters, by the manifest, are not those of the lowest rank."""
    held = {rank: fields["params"] for rank, fields in sorted(manifest.fields.items()) if "params" in fields}
    if not held:
        return ()
    first = next(iter(held))
    return tuple(
        f"{manifest.generation}: ranks disagree: params of {rank} differ from {first}{_tensors(manifest, first, rank)}"
        for rank, digest in held.items()
        if digest != held[first]
    )


def _tensors(manifest: Manifest, first: str, rank: str) -> str:
    ours = manifest.tensors.get(first, {}).get("params", {})
    theirs = manifest.tensors.get(rank, {}).get("params", {})
    names = sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name])
    return f" (tensor {', '.join(names[:3])}{' …' if len(names) > 3 else ''})" if names else ""


def _measure_files(files: Sequence[Path], executor: Executor | None) -> Iterator[_FileSeen]:
    if executor is None:
        return map(_measure_file, files)
    return spread(_measure_file, files, executor, lost=_lost)


def _lost(file: Path, reason: str) -> _FileSeen:
    return _FileSeen(digest="", nonfinite=(), problem=not_measured(str(file), reason))


def _measure_file(file: Path) -> _FileSeen:
    """One pass over a file, wherever an executor puts it."""
    problem = ""
    try:
        if file.suffix == ".safetensors":
            try:
                facts = safetensors_file.measure(file)
                return _FileSeen(digest=facts.digest, nonfinite=facts.nonfinite, problem="")
            except CorruptFileError as error:
                problem = error.message
        return _FileSeen(digest=of_file(file), nonfinite=(), problem=problem)
    except EvidenceError as error:
        return _FileSeen(digest="", nonfinite=(), problem=problem or error.message)


def _is_there(path: Path, entry: FileEntry, measured: _Measured) -> bool:
    file = path / entry.path
    try:
        size_bytes = file.stat().st_size
    except OSError as error:
        measured.problems.append(f"{file}: listed in the manifest, but {_why(error)}")
        return False
    if size_bytes != entry.size_bytes:
        measured.problems.append(f"{file}: size: expected {entry.size_bytes} bytes, found {size_bytes}")
    return True


def _compare(path: Path, entry: FileEntry, seen: _FileSeen, manifest: Manifest, measured: _Measured) -> None:
    file = path / entry.path
    if seen.problem:
        measured.problems.append(seen.problem)
    if not seen.digest:
        return
    measured.digests[entry.path] = seen.digest
    measured.nonfinite += [f"{entry.path}: {name}" for name in seen.nonfinite]
    if seen.digest != entry.digest:
        where = _damaged_tensors(file, entry, manifest)
        measured.problems.append(f"{file}: digest: expected {entry.digest}, found {seen.digest}{where}")


def _damaged_tensors(file: Path, entry: FileEntry, manifest: Manifest) -> str:
    group, _, rest = entry.path.partition(".rank-")
    number = rest.removesuffix(".safetensors")
    expected = manifest.tensors.get(f"rank-{int(number)}", {}).get(group, {}) if number.isdigit() else {}
    if not expected:
        return ""
    try:
        seen = safetensors_file.tensor_digests(file)
    except EvidenceError:
        return ""  # its header is damaged too, which is a problem of its own and already told
    names = sorted(name for name in expected if seen.get(name) != expected[name])
    return f" (tensor {', '.join(names[:3])}{' …' if len(names) > 3 else ''})" if names else ""


def _why(error: OSError) -> str:
    return "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror or error}"
