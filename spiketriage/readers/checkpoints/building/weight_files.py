"""The weight files of one folder, safetensors or torch.save, held against what an index promises.

This module never reads a tensor's bytes and never follows an index out of its folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import Chunk, TensorFacts
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder
from spiketriage.readers.checkpoints.building.folder import read_json, some
from spiketriage.readers.checkpoints.building.state_tree import Source, add_file, add_parameters
from spiketriage.readers.checkpoints.files import safetensors_file
from spiketriage.readers.checkpoints.files.torch_zip import read_torch_file
from spiketriage.readers.json_file import is_inside
from spiketriage.readers.look import look, refuse_pointer

_NUMBERED = re.compile(r"\A(.+)-(\d{5,9})-of-(\d{5,9})(\.\w+)\Z")


def add_weights(builder: CheckpointBuilder, names: Iterable[str], indexes: Iterable[str]) -> None:
    """Take the tensors of the weight files `names`, checked against the `indexes`.

    Both are names in the folder. What an index promises and is not there is a problem.
    """
    part = builder.part()
    promised = {name: _read_index(part, name) for name in indexes}
    wanted = set(names)
    for index in promised.values():
        wanted.update(index.files)
    held = {name: _read_file(part, name) for name in sorted(wanted)}
    for name, index in promised.items():
        _compare(part, name, index, held)
    _check_numbers(part, held)
    _check_twice(part, held)
    builder.add(part)


def read_safetensors(path: Path, relative: str, problems: list[str]) -> tuple[TensorFacts, ...]:
    """The tensors of one safetensors file, which is `relative` in its checkpoint.

    A wrong size is in `problems`.

    Raises:
        EvidenceError: it cannot be read, or its header is wrong.
    """
    tensors: list[TensorFacts] = []
    for entry in checked_header(path, problems).tensors:
        chunk = Chunk(
            path=relative,
            start=entry.start,
            end=entry.end,
            offset=(0,) * len(entry.shape),
            shape=entry.shape,
        )
        tensors.append(
            TensorFacts(
                name=entry.name,
                dtype=entry.dtype,
                shape=entry.shape,
                role="parameter",
                chunks=(chunk,),
            )
        )
    return tuple(tensors)


def checked_header(path: Path, problems: list[str]) -> safetensors_file.Header:
    """The header of a safetensors file; one cut short, or longer than its data, is a problem.

    Raises:
        EvidenceError: it cannot be read, is a Git-LFS pointer, or its header is wrong.
    """
    refuse_pointer(path, look(path).head)
    header = safetensors_file.read_header_alone(path)
    expected = f"{header.end} bytes, as the header says"
    seen = f"{path}: size: expected {expected}, found {header.size_bytes}"
    if header.size_bytes < header.end:
        cut = [tensor.name for tensor in header.tensors if tensor.end > header.size_bytes]
        problems.append(f"{seen}: it is cut short in {some(cut)}")
    elif header.size_bytes > header.end:
        problems.append(f"{seen}: something was added after the last tensor")
    return header


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """What an index promises: a file for each tensor, and the bytes of all of them together."""

    weight_map: Mapping[str, str]
    total_size: int | None
    files: tuple[str, ...]


# The tensors of each file by name; None where the file cannot be read, which has been said.
_Held = Mapping[str, Mapping[str, TensorFacts] | None]


def _read_index(builder: CheckpointBuilder, name: str) -> _Index:
    empty = _Index(weight_map={}, total_size=None, files=())
    try:
        value = read_json(builder.path / name)
    except EvidenceError as error:
        builder.failed(error)
        return empty
    weight_map = value.get("weight_map")
    if not isinstance(weight_map, dict) or not all(is_inside(file) for file in weight_map.values()):
        _wrong(
            builder,
            f"{builder.path / name}: weight_map: expected tensor names with files in this folder",
        )
        return empty
    return _Index(
        weight_map=weight_map,
        total_size=_total_size(value.get("metadata")),
        files=tuple(sorted(set(weight_map.values()))),
    )


def _total_size(metadata: object) -> int | None:
    """The bytes of all tensors, which some tools write as a floating-point number."""
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, bool) or not isinstance(total, (int, float)) or total != total // 1:
        return None
    return int(total)


def _read_file(builder: CheckpointBuilder, name: str) -> dict[str, TensorFacts] | None:
    """Take one weight file; its tensors by name, None where it cannot be read."""
    path = builder.path / name
    num_tensors, num_problems = len(builder.tensors), len(builder.problems)
    try:
        if name.endswith(".safetensors"):
            builder.tensors += read_safetensors(path, name, builder.problems)
        else:
            source = Source(path=path, relative=name)
            refuse_pointer(path, look(path).head)
            file = read_torch_file(path)
            add_file(builder, file, source)
            add_parameters(builder, file.value, source)
    except EvidenceError as error:
        builder.failed(error)
        return None
    builder.complete &= len(builder.problems) == num_problems
    return {tensor.name: tensor for tensor in builder.tensors[num_tensors:]}


def _compare(builder: CheckpointBuilder, name: str, index: _Index, held: _Held) -> None:
    path = builder.path / name
    lost: dict[str, list[str]] = {}
    for tensor, file in index.weight_map.items():
        tensors = held[file]
        if tensors is not None and tensor not in tensors:
            lost.setdefault(file, []).append(tensor)
    for file, missing in lost.items():
        them = "it" if len(missing) == 1 else "them"
        _wrong(builder, f"{path}: names {some(missing)} in {file}, which does not hold {them}")
    num_bytes = 0
    for file in index.files:
        tensors = held[file] or {}
        extra = [tensor for tensor in tensors if index.weight_map.get(tensor) != file]
        if extra:
            place = builder.path / file
            _wrong(builder, f"{place}: holds {some(extra)}, which {name} does not expect there")
        for facts in tensors.values():
            num_bytes += sum(chunk.end - chunk.start for chunk in facts.chunks)
    if builder.complete and index.total_size not in (None, num_bytes):
        _wrong(
            builder,
            f"{path}: total_size: expected the {num_bytes} bytes of its tensors, found "
            f"{index.total_size}",
        )


def _wrong(builder: CheckpointBuilder, sentence: str) -> None:
    builder.problems.append(sentence)
    builder.complete = False


def _check_numbers(builder: CheckpointBuilder, names: Iterable[str]) -> None:
    """Files named `…-00002-of-00003…` say how many there are, even where no index does."""
    seen: dict[tuple[str, int, str], set[int]] = {}
    for name in names:
        numbered = _NUMBERED.match(name)
        if numbered:
            group = (numbered[1], int(numbered[3]), numbered[4])
            seen.setdefault(group, set()).add(int(numbered[2]))
    for (stem, count, suffix), numbers in seen.items():
        if not numbers >= {1, count} or len(numbers) < count:
            builder.lacks(
                f"expected {count} files {stem}-…-of-{count:05d}{suffix}, found {len(numbers)}"
            )


def _check_twice(builder: CheckpointBuilder, held: _Held) -> None:
    files: dict[str, str] = {}
    twice: dict[tuple[str, str], list[str]] = {}
    for file, tensors in held.items():
        for tensor in tensors or ():
            first = files.setdefault(tensor, file)
            if first != file:
                twice.setdefault((first, file), []).append(tensor)
    for (first, second), names in twice.items():
        builder.notes.append(
            f"{builder.path}: {some(names)} in both {first} and {second}: which one counts is not "
            "said"
        )
