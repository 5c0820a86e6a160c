"""A nanotron checkpoint: a safetensors file for each parameter and tensor-parallel rank.

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
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder, begin_folder
from spiketriage.readers.checkpoints.building.folder import read_json, sentence, some
from spiketriage.readers.checkpoints.building.optimizer_state import add_optimizer
from spiketriage.readers.checkpoints.building.state_tree import (
    Source,
    add_field,
    add_json_field,
    add_steps,
)
from spiketriage.readers.checkpoints.building.tiling import flaw
from spiketriage.readers.checkpoints.building.weight_files import checked_header
from spiketriage.readers.checkpoints.layouts import hugging_face as hf
from spiketriage.readers.checkpoints.layouts.nanotron_slices import Piece, pieces, unsharded_shape
from spiketriage.readers.checkpoints.layouts.safetensors_files import NO_CHECKSUM
from spiketriage.readers.inert import attribute
from spiketriage.readers.json_file import is_count
from spiketriage.readers.look import Look

NAME = "nanotron"
TELLS = (
    "Step from every place that states it, parameters and optimizer put together from "
    "shards, random state, data consumed."
)
CANNOT = "A changed byte of the weights, and which document a step read."
METADATA = "checkpoint_metadata.json"
LAST = "model_config.json"  # rank 0 writes it after everything else
_RANKS = re.compile(r"(pp|dp|tp|exp)(?:-rank)?-(\d{1,9})-of-(\d{1,9})")
_WEIGHT = re.compile(
    r"\A(?:model_)++(?P<leaf>.+?)(?:\.safetensors)?(?P<ranks>_pp-rank-.+)?\.safetensors\Z"
)
_WEIGHT_FILE = re.compile(r"model/.*\.safetensors\Z", re.DOTALL)
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
    builder = begin_folder(path)
    if re.fullmatch(r"\d{1,18}", path.name):
        builder.steps.append(StatedStep(source=f"the name {path.name}", step=int(path.name)))
    sizes = _add_metadata(builder)
    weights = _files(builder, _WEIGHT_FILE)
    optimizers = _files(builder, _OPTIMIZER)
    schedulers = _files(builder, _SCHEDULER)
    randoms = _files(builder, _RANDOM)
    _add_weights(builder, weights)
    _add_optimizers(builder, optimizers)
    for name in schedulers:
        value = hf.add_state(builder, name, "scheduler")
        source = Source(path=path / name, relative=name)
        add_steps(builder, value, source, keys=("last_epoch",))
    for name in randoms:
        hf.add_state(builder, name, "rng")
    parts = {"weights": weights, "optimizer": optimizers, "scheduler": schedulers, "RNG": randoms}
    for what, names in parts.items():
        if not names:
            builder.lacks(f"there is no file of the {what}")
    if LAST not in builder.names:
        builder.lacks(f"{LAST} is missing, which is written last")
    if "config.yaml" not in builder.names:
        builder.lacks("config.yaml is missing")
    _check_ranks(builder, "optimizer", optimizers)
    _check_ranks(builder, "RNG state", randoms)
    _add_settings(builder)
    _set_world_size(builder, sizes, [*weights, *optimizers, *randoms])
    builder.steps = _distinct(builder.steps)
    builder.notes.append(NO_CHECKSUM)
    return builder.finish(NAME)


def _files(builder: CheckpointBuilder, pattern: re.Pattern[str]) -> list[str]:
    return [file.path for file in builder.files if pattern.match(file.path)]


def _add_metadata(builder: CheckpointBuilder) -> Mapping[str, int]:
    """Take the step and the data consumed; the sizes of the device mesh that are stated."""
    try:
        value = read_json(builder.path / METADATA)
    except EvidenceError as error:
        builder.failed(error)
        return {}
    metas = value.get("metas")
    step = attribute(metas, "last_train_step")
    if is_count(step):
        builder.steps.append(StatedStep(source=f"{METADATA}: last_train_step", step=step))
    source = Source(path=builder.path / METADATA, relative=METADATA)
    add_field(builder, "cursor", "metas", metas, source)
    sizes = {}
    for axis in ("tp", "dp", "cp"):
        size = value.get(axis)
        if is_count(size) and size > 0:
            sizes[axis] = size
    return sizes


def _set_world_size(
    builder: CheckpointBuilder, sizes: Mapping[str, int], names: Iterable[str]
) -> None:
    seen: dict[str, int] = dict(sizes)
    for name in names:
        for rank in _RANKS.finditer(name):
            seen[rank[1]] = max(seen.get(rank[1], 0), int(rank[3]))
    for axis, size in sizes.items():
        if seen[axis] != size:
            builder.lacks(f"{METADATA} says {axis} {size}, file names {seen[axis]}")
    if {"tp", "dp", "pp"} <= seen.keys():
        builder.world_size = math.prod(seen.values())


def _distinct(steps: Iterable[StatedStep]) -> list[StatedStep]:
    """One statement of each kind and step: a thousand optimizer files say the same."""
    seen: dict[tuple[str, int], StatedStep] = {}
    for stated in steps:
        seen.setdefault((stated.source.partition("/")[0], stated.step), stated)
    return list(seen.values())


def _check_ranks(
    builder: CheckpointBuilder,
    what: str,
    names: Iterable[str],
    *,
    axes: Collection[str] = ("pp", "dp", "tp", "exp"),
) -> None:
    """Every combination of ranks that the names count up to must have a file."""
    held: set[tuple[int, ...]] = set()
    sizes: dict[str, int] = {}
    for name in names:
        ranks = []
        for rank in _RANKS.finditer(name):
            axis = rank[1]
            if axis in axes:
                ranks.append(int(rank[2]))
                sizes[axis] = max(sizes.get(axis, 1), int(rank[3]))
        held.add(tuple(ranks))
    expected = math.prod(sizes.values())
    if held and len(held) < expected:
        by = " × ".join(f"{axis} {size}" for axis, size in sizes.items())
        builder.lacks(f"expected {expected} files of the {what} ({by}), found {len(held)}")


def _add_weights(builder: CheckpointBuilder, names: Iterable[str]) -> None:
    parameters: dict[str, _Parameter] = {}
    shards: dict[str, list[str]] = {}
    for name in names:
        parameter = _parameter_name(name)
        shards.setdefault(parameter, []).append(name)
        num_problems = len(builder.problems)
        try:
            for piece in _read_shard(builder, name):
                whole = parameters.setdefault(
                    parameter, _Parameter(dtype=piece.dtype, shape=piece.whole)
                )
                _add_piece(builder, name, whole, piece)
        except EvidenceError as error:
            builder.failed(error)
        builder.complete &= len(builder.problems) == num_problems
    for name, files in shards.items():
        # one pipeline rank owns a parameter
        _check_ranks(builder, f"parameter {name}", files, axes=("tp", "exp"))
        if name in parameters:
            _check_cover(builder, name, parameters[name])
    for name, whole in parameters.items():
        builder.tensors.append(
            TensorFacts(
                name=name,
                dtype=whole.dtype,
                shape=whole.shape,
                role="parameter",
                chunks=tuple(whole.chunks),
            )
        )


def _add_piece(builder: CheckpointBuilder, name: str, whole: _Parameter, piece: Piece) -> None:
    if (whole.dtype, whole.shape) == (piece.dtype, piece.whole):
        whole.chunks.append(piece.chunk)
        return
    expected = f"{whole.dtype} {list(whole.shape)}"
    seen = f"{piece.dtype} {list(piece.whole)}"
    builder.lacks(f"{name}: expected a shard of {expected}, found one of {seen}")


def _check_cover(builder: CheckpointBuilder, name: str, parameter: _Parameter) -> None:
    boxes = {(chunk.offset, chunk.shape) for chunk in parameter.chunks}  # ranks may hold copies
    hole = flaw(parameter.shape, [at for at, _ in boxes], [shape for _, shape in boxes])
    if hole:
        builder.lacks(f"parameter {name}: {hole}")


def _parameter_name(file: str) -> str:
    *folders, leaf = file.split("/")[1:]
    named = _WEIGHT.match(leaf)
    return ".".join((*folders, named["leaf"] if named else leaf))


def _read_shard(builder: CheckpointBuilder, name: str) -> Iterator[Piece]:
    header = checked_header(builder.path / name, builder.problems)
    data = next((tensor for tensor in header.tensors if tensor.name == "data"), None)
    if data is None:
        raise EvidenceError(
            f"{builder.path / name}: expected a tensor named data, found "
            f"{some(t.name for t in header.tensors)}"
        )
    whole = unsharded_shape(header.metadata.get("unsharded_shape"), data.shape)
    yield from pieces(
        header.metadata.get("local_global_slices_pairs"),
        data,
        whole,
        name,
        where=builder.path / name,
    )


def _add_optimizers(builder: CheckpointBuilder, names: Iterable[str]) -> None:
    known = {tensor.name for tensor in builder.tensors}
    unknown: set[str] = set()
    for name in names:
        value = hf.add_torch_file(builder, name)
        if value is None:
            continue
        state, owners = attribute(value, "state"), attribute(value, "names")
        if not isinstance(state, Mapping):
            builder.lacks(f"{name} holds no optimizer state")
            continue
        by_name = _by_name(state, owners if isinstance(owners, Mapping) else {})
        unknown |= {key for key in by_name if isinstance(key, str) and key not in known}
        ranks = [f"{rank[1]}-{rank[2]}" for rank in _RANKS.finditer(name)]
        add_optimizer(
            builder,
            {"state": by_name, "param_groups": attribute(value, "param_groups")},
            Source(path=builder.path / name, relative=name),
            prefix=f"optimizer.{'.'.join(ranks)}",
            order=(),
        )
    if unknown and known:
        builder.lacks(
            f"the optimizer has a state for {some(unknown)}, of which there is no weight file"
        )


def _by_name(state: Mapping[Any, Any], owners: Mapping[Any, Any]) -> dict[Any, Any]:
    """The optimizer's state by parameter name; an integer key that has none is kept."""
    named = {}
    for key, item in state.items():
        name = owners.get(key)
        if isinstance(name, str):
            named[name.removeprefix("module.")] = item
        else:
            named[key] = item
    return named


def _add_settings(builder: CheckpointBuilder) -> None:
    for name in (LAST, "optimizer/optimizer_config.json"):
        if (builder.path / name).is_file():
            add_json_field(builder, name, "config")
    if "config.yaml" not in builder.names:
        return
    try:
        digest = of_file(builder.path / "config.yaml")
    except EvidenceError as error:
        builder.problems.append(sentence(error))
        return
    builder.fields.append(
        FieldFacts(kind="config", name="config.yaml", rank=None, path="config.yaml", digest=digest)
    )
