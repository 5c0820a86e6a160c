"""A nanotron checkpoint.

A folder named by the step, one safetensors file for each parameter and tensor-parallel rank.

This module never takes the `latest.txt` beside it for a sign that it is complete.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spiketriage.digests import of_file
from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, Chunk, FieldFacts, StatedStep, TensorFacts
from spiketriage.readers.checkpoints.building.folder import json_field, read_json, sentence, some
from spiketriage.readers.checkpoints.building.state_tree import (
    Source,
    add_field,
    add_optimizer,
    add_steps,
)
from spiketriage.readers.checkpoints.building.tiling import flaw
from spiketriage.readers.checkpoints.building.weight_files import checked_header
from spiketriage.readers.checkpoints.layouts import hugging_face as hf
from spiketriage.readers.checkpoints.layouts.nanotron_slices import Piece, pieces, unsharded_shape
from spiketriage.readers.checkpoints.layouts.safetensors_files import NO_CHECKSUM
from spiketriage.readers.json_file import is_count
from spiketriage.readers.look import Look
from spiketriage.readers.pickles import attribute

NAME = "nanotron"
TELLS = (
    "Step from every place that states it, parameters and optimizer put together from "
    "shards, random "
    "state, data consumed."
)
CANNOT = "A changed byte of the weights, and which document a step read."
METADATA = "checkpoint_metadata.json"
LAST = "model_config.json"  # rank 0 writes it after everything else
_RANKS = re.compile(r"(pp|dp|tp|exp)(?:-rank)?-(\d{1,9})-of-(\d{1,9})")
_WEIGHT = re.compile(
    r"(?:model_)+(?P<leaf>.+?)(?:\.safetensors)?(?P<ranks>_pp-rank-.+)?\.safetensors\Z"
)
_OPTIMIZER = re.compile(r"optimizer/optimizer_((?:pp|dp|tp|exp)-\d.*)\.pt\Z")
_SCHEDULER = re.compile(r"lr_scheduler/lr_scheduler.*\.pt\Z")
_RANDOM = re.compile(r"random/((?:tp|dp|pp)-\d.*)\.pt\Z")


@dataclass(slots=True, kw_only=True)
class _Parameter:
    """What the shards of one parameter say together."""

    dtype: str
    shape: tuple[int, ...]
    chunks: list[Chunk] = field(default_factory=list)


def claims(seen: Look) -> float:
    """How sure this is a checkpoint of nanotron."""
    if not seen.is_folder:
        return 0.0
    if METADATA in seen.names:
        if "model" in seen.names:
            return 0.96
        return 0.7
    is_step = seen.path.name.isdecimal() and {"model", "optimizer"} <= set(seen.names)
    if is_step and ("lr_scheduler" in seen.names or "random" in seen.names):
        return 0.7
    return 0.0


def read(path: Path) -> CheckpointFacts:
    """The checkpoint in folder `path`.

    Raises:
        EvidenceError: it is no folder, or cannot be read.
    """
    reading = hf.begin(path)
    if re.fullmatch(r"\d{1,18}", path.name):
        reading.gathered.steps.append(
            StatedStep(source=f"the name {path.name}", step=int(path.name))
        )
    sizes = _add_metadata(reading)
    files = [file.path for file in reading.files]
    weights = [
        name for name in files if name.startswith("model/") and name.endswith(".safetensors")
    ]
    _add_weights(reading, weights)
    optimizers = [name for name in files if _OPTIMIZER.match(name)]
    _add_optimizers(reading, optimizers)
    schedulers = [name for name in files if _SCHEDULER.match(name)]
    for name in schedulers:
        value = hf.add_state(reading, name, "scheduler")
        add_steps(
            reading.gathered, value, Source(path=path / name, relative=name), keys=("last_epoch",)
        )
    randoms = [name for name in files if _RANDOM.match(name)]
    for name in randoms:
        hf.add_state(reading, name, "rng")
    for what, names in (
        ("weights", weights),
        ("optimizer", optimizers),
        ("scheduler", schedulers),
        ("RNG", randoms),
    ):
        if not names:
            reading.lacks(f"there is no file of the {what}")
    for name in (LAST, "config.yaml"):
        if name not in reading.names:
            reading.lacks(f"{name} is missing{', which is written last' if name == LAST else ''}")
    _check_ranks(reading, "optimizer", optimizers)
    _check_ranks(reading, "RNG state", randoms)
    _add_settings(reading)
    _set_world_size(reading, sizes, [*weights, *optimizers, *randoms])
    reading.gathered.steps = _distinct(reading.gathered.steps)
    reading.gathered.notes.append(NO_CHECKSUM)
    return hf.facts(reading, NAME)


def _add_metadata(reading: hf.Reading) -> Mapping[str, int]:
    try:
        value = read_json(reading.path / METADATA)
    except EvidenceError as error:
        reading.failed(error)
        return {}
    metas = value.get("metas")
    if isinstance(metas, dict):
        step = metas.get("last_train_step")
    else:
        step = None
    if is_count(step):
        reading.gathered.steps.append(StatedStep(source=f"{METADATA}: last_train_step", step=step))
    source = Source(path=reading.path / METADATA, relative=METADATA)
    add_field(reading.gathered, "cursor", "metas", metas, source)
    return {
        name: size for name in ("tp", "dp", "cp") if is_count(size := value.get(name)) and size > 0
    }


def _set_world_size(reading: hf.Reading, sizes: Mapping[str, int], names: Iterable[str]) -> None:
    seen: dict[str, int] = dict(sizes)
    for name in names:
        for rank in _RANKS.finditer(name):
            seen[rank[1]] = max(seen.get(rank[1], 0), int(rank[3]))
    for axis, size in sizes.items():
        if seen[axis] != size:
            reading.gathered.problems.append(
                f"{reading.path}: {METADATA} says {axis} {size}, file names {seen[axis]}"
            )
            reading.complete = False
    if {"tp", "dp", "pp"} <= seen.keys():
        reading.world_size = math.prod(seen.values())


def _distinct(steps: Iterable[StatedStep]) -> list[StatedStep]:
    """One statement of each kind and step: a thousand optimizer files say the same."""
    seen: dict[tuple[str, int], StatedStep] = {}
    for one in steps:
        seen.setdefault((one.source.partition("/")[0], one.step), one)
    return list(seen.values())


def _check_ranks(
    reading: hf.Reading,
    what: str,
    names: Iterable[str],
    *,
    axes: Collection[str] = ("pp", "dp", "tp", "exp"),
) -> None:
    """Every combination of ranks that the names count up to must have a file."""
    held: set[tuple[int, ...]] = set()
    sizes: dict[str, int] = {}
    for name in names:
        ranks = [
            (rank[1], int(rank[2]), int(rank[3]))
            for rank in _RANKS.finditer(name)
            if rank[1] in axes
        ]
        held.add(tuple(rank for _, rank, _ in ranks))
        for axis, _, size in ranks:
            sizes[axis] = max(sizes.get(axis, 1), size)
    expected = math.prod(sizes.values())
    if held and len(held) < expected:
        by = " × ".join(f"{axis} {size}" for axis, size in sizes.items())
        reading.lacks(f"expected {expected} files of the {what} ({by}), found {len(held)}")


def _add_weights(reading: hf.Reading, names: Iterable[str]) -> None:
    parameters: dict[str, _Parameter] = {}
    shards: dict[str, list[str]] = {}
    for name in names:
        parameter = _parameter_name(name)
        shards.setdefault(parameter, []).append(name)
        num_problems = len(reading.gathered.problems)
        try:
            for piece in _read_shard(reading, name):
                one = parameters.setdefault(
                    parameter, _Parameter(dtype=piece.dtype, shape=piece.whole)
                )
                if (one.dtype, one.shape) != (piece.dtype, piece.whole):
                    expected, seen = (
                        f"{one.dtype} {list(one.shape)}",
                        f"{piece.dtype} {list(piece.whole)}",
                    )
                    reading.lacks(f"{name}: expected a shard of {expected}, found one of {seen}")
                    continue
                one.chunks.append(piece.chunk)
        except EvidenceError as error:
            reading.failed(error)
        reading.complete &= len(reading.gathered.problems) == num_problems
    for parameter, files in shards.items():
        _check_ranks(
            reading, f"parameter {parameter}", files, axes=("tp", "exp")
        )  # one pipeline rank owns it
        if parameter in parameters:
            _check_cover(reading, parameter, parameters[parameter])
    reading.has_weights = bool(parameters)
    reading.gathered.tensors += [
        TensorFacts(
            name=name, dtype=one.dtype, shape=one.shape, role="parameter", chunks=tuple(one.chunks)
        )
        for name, one in parameters.items()
    ]


def _check_cover(reading: hf.Reading, name: str, parameter: _Parameter) -> None:
    boxes = {(chunk.offset, chunk.shape) for chunk in parameter.chunks}  # ranks may hold copies
    hole = flaw(parameter.shape, [at for at, _ in boxes], [shape for _, shape in boxes])
    if hole:
        reading.lacks(f"parameter {name}: {hole}")


def _parameter_name(file: str) -> str:
    *folders, leaf = file.split("/")[1:]
    named = _WEIGHT.match(leaf)
    return ".".join((*folders, named["leaf"] if named else leaf))


def _read_shard(reading: hf.Reading, name: str) -> Iterator[Piece]:
    header = checked_header(reading.path / name, reading.gathered.problems)
    data = next((tensor for tensor in header.tensors if tensor.name == "data"), None)
    if data is None:
        raise EvidenceError(
            f"{reading.path / name}: expected a tensor named data, found "
            f"{some(t.name for t in header.tensors)}"
        )
    whole = unsharded_shape(header.metadata.get("unsharded_shape"), data.shape)
    yield from pieces(
        header.metadata.get("local_global_slices_pairs"),
        data,
        whole,
        name,
        where=reading.path / name,
    )


def _add_optimizers(reading: hf.Reading, names: Iterable[str]) -> None:
    known = {one.name for one in reading.gathered.tensors}
    unknown: set[str] = set()
    for name in names:
        value = hf.add_torch_file(reading, name)
        state, owners = attribute(value, "state"), attribute(value, "names")
        if value is None:
            continue
        if not isinstance(state, Mapping):
            reading.lacks(f"{name} holds no optimizer state")
            continue
        owners = owners if isinstance(owners, Mapping) else {}
        by_name = {_owner(owners, key): item for key, item in state.items()}
        unknown |= {key for key in by_name if isinstance(key, str) and key not in known}
        match = _OPTIMIZER.match(name)
        ranks = ".".join(
            f"{rank[1]}-{rank[2]}" for rank in _RANKS.finditer(match[1] if match else "")
        )
        named = {"state": by_name, "param_groups": attribute(value, "param_groups")}
        add_optimizer(
            reading.gathered,
            named,
            Source(path=reading.path / name, relative=name),
            prefix=f"optimizer.{ranks}",
            order=(),
        )
    if unknown and known:
        reading.lacks(
            f"the optimizer has a state for {some(unknown)}, of which there is no weight file"
        )


def _owner(owners: Mapping[Any, Any], key: Any) -> Any:
    name = owners.get(key)
    if isinstance(name, str):
        return name.removeprefix("module.")
    return key


def _add_settings(reading: hf.Reading) -> None:
    problems = reading.gathered.problems
    for name in (LAST, "optimizer/optimizer_config.json"):
        if (reading.path / name).is_file():
            one = json_field(reading.path, name, "config", problems)
            reading.gathered.fields += [one] if one is not None else []
    if "config.yaml" in reading.names:
        try:
            digest = of_file(reading.path / "config.yaml")
        except EvidenceError as error:
            problems.append(sentence(error))
            return
        reading.gathered.fields.append(
            FieldFacts(
                kind="config", name="config.yaml", rank=None, path="config.yaml", digest=digest
            )
        )
