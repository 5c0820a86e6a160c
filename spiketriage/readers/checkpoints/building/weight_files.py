"""The weight files of one folder.

Single or sharded, safetensors or torch.save, with what their index promises.

This module never reads a tensor's bytes and never follows an index out of its folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import Chunk, TensorFacts
from spiketriage.readers.checkpoints.building.folder import read_json, sentence, some
from spiketriage.readers.checkpoints.building.state_tree import (
    Gathered,
    Source,
    add_file,
    add_parameters,
)
from spiketriage.readers.checkpoints.files import safetensors_file
from spiketriage.readers.checkpoints.files.torch_zip import read_torch_file
from spiketriage.readers.json_file import is_inside
from spiketriage.readers.look import look, refuse_pointer

_NUMBERED = re.compile(r"(.+)-(\d{5,9})-of-(\d{5,9})(\.\w+)\Z")


@dataclass(slots=True, kw_only=True)
class Weights:
    """Where the weights of a folder go.

    `complete` is whether every promised file and tensor is there.
    """

    gathered: Gathered
    complete: bool = True
    unread: set[str] = field(default_factory=set)

    def wrong(self, sentence: str) -> None:
        """Note damage that makes the weights incomplete."""
        self.gathered.problems.append(sentence)
        self.complete = False


def read_weights(
    gathered: Gathered, folder: Path, names: Iterable[str], indexes: Iterable[str]
) -> bool:
    """Take the tensors of the weight files `names`, checked against the `indexes`.

    Both are names in `folder`.

    Returns whether all that is promised is there; what is not is in `gathered.problems`.
    """
    weights = Weights(gathered=gathered)
    promised = {index: _read_index(folder, index, weights) for index in indexes}
    wanted = {file for index in promised.values() for file in index.files}
    held = {name: _read_file(folder, name, weights) for name in sorted({*names, *wanted})}
    for index, promise in promised.items():
        _compare(folder / index, promise, held, weights)
    _check_numbers(folder, held, weights)
    _check_twice(folder, held, weights)
    return weights.complete


def read_safetensors(path: Path, relative: str, problems: list[str]) -> tuple[TensorFacts, ...]:
    """The tensors of one safetensors file, which is `relative` in its checkpoint.

    A wrong size is in `problems`.

    Raises:
        EvidenceError: it cannot be read, or its header is wrong.
    """
    header = checked_header(path, problems)
    result: list[TensorFacts] = []
    for tensor in header.tensors:
        result.append(
            TensorFacts(
                name=tensor.name,
                dtype=tensor.dtype,
                shape=tensor.shape,
                role="parameter",
                chunks=(
                    Chunk(
                        path=relative,
                        start=tensor.start,
                        end=tensor.end,
                        offset=(0,) * len(tensor.shape),
                        shape=tensor.shape,
                    ),
                ),
            )
        )
    return tuple(result)


def checked_header(path: Path, problems: list[str]) -> safetensors_file.Header:
    """The header of a safetensors file.

    A file that is cut short or goes on after its data is in `problems`.

    Raises:
        EvidenceError: it cannot be read, is a Git-LFS pointer, or its header is wrong.
    """
    refuse_pointer(path, look(path).head)
    header = safetensors_file.read_header_alone(path)
    seen = (
        f"{path}: size: expected {header.end} bytes, as the header says, found {header.size_bytes}"
    )
    if header.size_bytes < header.end:
        cut = [tensor.name for tensor in header.tensors if tensor.end > header.size_bytes]
        problems.append(f"{seen}: it is cut short in {some(cut)}")
    elif header.size_bytes > header.end:
        problems.append(f"{seen}: something was added after the last tensor")
    return header


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    weight_map: Mapping[str, str]
    total_size: int | None
    files: tuple[str, ...]


def _read_index(folder: Path, name: str, weights: Weights) -> _Index:
    empty = _Index(weight_map={}, total_size=None, files=())
    try:
        value = read_json(folder / name)
    except EvidenceError as error:
        weights.wrong(sentence(error))
        return empty
    weight_map = value.get("weight_map")
    if not isinstance(weight_map, dict) or not all(is_inside(file) for file in weight_map.values()):
        weights.wrong(
            f"{folder / name}: weight_map: expected tensor names with files in this folder"
        )
        return empty
    metadata = value.get("metadata")
    if isinstance(metadata, dict):
        total = metadata.get("total_size")
    else:
        total = None
    is_number = (
        isinstance(total, (int, float)) and not isinstance(total, bool) and total == total // 1
    )
    return _Index(
        weight_map=weight_map,
        total_size=int(total) if is_number and total is not None else None,
        files=tuple(sorted(set(weight_map.values()))),
    )


def _read_file(folder: Path, name: str, weights: Weights) -> dict[str, TensorFacts]:
    gathered = weights.gathered
    num_tensors, num_problems = len(gathered.tensors), len(gathered.problems)
    try:
        if name.endswith(".safetensors"):
            gathered.tensors += read_safetensors(folder / name, name, gathered.problems)
        else:
            source = Source(path=folder / name, relative=name)
            refuse_pointer(source.path, look(source.path).head)
            file = read_torch_file(source.path)
            add_file(gathered, file, source)
            add_parameters(gathered, file.value, source)
    except EvidenceError as error:
        weights.wrong(sentence(error))
        weights.unread.add(name)
        return {}
    weights.complete &= len(gathered.problems) == num_problems
    return {tensor.name: tensor for tensor in gathered.tensors[num_tensors:]}


def _compare(
    path: Path, index: _Index, held: Mapping[str, Mapping[str, TensorFacts]], weights: Weights
) -> None:
    lost: dict[str, list[str]] = {}
    for tensor, file in index.weight_map.items():
        if file not in weights.unread and tensor not in held[file]:
            lost.setdefault(file, []).append(tensor)
    for file, tensors in lost.items():
        weights.wrong(
            f"{path}: names {some(tensors)} in {file}, which does not hold {_them(tensors)}"
        )
    for file in index.files:
        extra = [tensor for tensor in held[file] if index.weight_map.get(tensor) != file]
        if extra:
            weights.wrong(
                f"{path.parent / file}: holds {some(extra)}, which {path.name} does not "
                "expect there"
            )
    sizes = [
        chunk.end - chunk.start
        for file in index.files
        for one in held[file].values()
        for chunk in one.chunks
    ]
    if weights.complete and index.total_size not in (None, sum(sizes)):
        weights.wrong(
            f"{path}: total_size: expected the {sum(sizes)} bytes of its tensors, found "
            f"{index.total_size}"
        )


def _them(names: list[str]) -> str:
    if len(names) == 1:
        return "it"
    return "them"


def _check_numbers(folder: Path, held: Mapping[str, object], weights: Weights) -> None:
    """Files named `…-00002-of-00003…` say how many there are, even where no index does."""
    seen: dict[tuple[str, int, str], set[int]] = {}
    for name in held:
        numbered = _NUMBERED.match(name)
        if numbered:
            group = (numbered[1], int(numbered[3]), numbered[4])
            seen.setdefault(group, set()).add(int(numbered[2]))
    for (stem, count, suffix), numbers in seen.items():
        if not numbers >= {1, count} or len(numbers) < count:
            weights.wrong(
                f"{folder}: expected {count} files {stem}-…-of-{count:05d}{suffix}, found "
                f"{len(numbers)}"
            )


def _check_twice(folder: Path, held: Mapping[str, Mapping[str, object]], weights: Weights) -> None:
    files: dict[str, str] = {}
    twice: dict[tuple[str, str], list[str]] = {}
    for file, tensors in held.items():
        for tensor in tensors:
            first = files.setdefault(tensor, file)
            if first != file:
                twice.setdefault((first, file), []).append(tensor)
    for (first, second), names in twice.items():
        weights.gathered.notes.append(
            f"{folder}: {some(names)} in both {first} and {second}: which one counts is not said"
        )
