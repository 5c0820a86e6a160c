"""Reads a DeepSpeed checkpoint folder: ZeRO 1, 2 and 3, or none; slices named by param_shapes.

This module never reads `latest` to decide anything and never counts to a world size that a file
merely claims.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

from spiketriage.nouns.checkpoint import CheckpointFacts, Chunk, StatedStep, TensorFacts
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder, begin
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.building.state_fields import scalar_text
from spiketriage.readers.checkpoints.building.state_tree import (
    Source,
    add_field,
    add_file,
    add_parameters,
    is_step,
)
from spiketriage.readers.checkpoints.building.torch_layout import add_named_step, opened
from spiketriage.readers.checkpoints.files.torch_values import TensorRef
from spiketriage.readers.checkpoints.layouts.deepspeed_flat import (
    Flat,
    Piece,
    split_by_group,
    split_by_parameter,
)
from spiketriage.readers.checkpoints.layouts.deepspeed_model import ModelState, add_model_state
from spiketriage.readers.inert import attribute
from spiketriage.readers.json_file import is_count
from spiketriage.readers.look import Look

NAME = "deepspeed-zero"
TELLS = (
    "Step, world size, each rank's slices of fp32 weights and moments by parameter name, "
    "scaler and scheduler."
)
CANNOT = (
    "The random state unless the trainer put it into client_state, and the rows of a slice "
    "that is stored flat."
)

_NAMED = re.compile(r"global_step(?P<step>\d{1,18})")
MODEL = re.compile(r"(?:zero_pp_rank_(?P<dp>\d{1,6})_)?mp_rank_(?P<mp>\d{1,6})_model_states\.pt")
_OPTIM = re.compile(
    r"(?P<bf16>bf16_)?zero_pp_rank_(?P<dp>\d{1,6})_mp_rank_(?P<mp>\d{1,6})_optim_states\.pt"
)
_LAYER = re.compile(
    r"(?P<layer>layer_\d+(?:_expert_\d+_mp_rank_\d+|(?:-model_\d+)?-model))_states\.pt|"
    r"(?P<expert>layer_\d+_expert_\d+_mp_rank_\d+)_model_states\.pt"
)


@dataclass(slots=True, kw_only=True)
class _Rank:
    """The flat buffers of one data-parallel rank by state (fp32, exp_avg …), one for each group."""

    stage: int
    label: str
    step: int | None = None
    flats: dict[str, list[Flat]] = field(default_factory=dict)


def claims(seen: Look, /) -> float:
    """How sure this reader is of a path."""
    if not seen.is_folder:
        return 0.0
    if any(_OPTIM.fullmatch(name) for name in seen.names):
        if "zero" not in seen.names:
            return 0.97
        return 0.5
    if any(MODEL.fullmatch(name) for name in seen.names) and "zero" not in seen.names:
        return 0.9
    return 0.0


def read(path: Path, /) -> CheckpointFacts:
    """The checkpoint in the folder at `path`.

    Raises:
        EvidenceError: the folder cannot be read.
    """
    builder = begin(path)
    add_named_step(builder, _NAMED)
    names = builder.names
    models: dict[int, ModelState] = {}
    for name in names:
        of_model, of_layer = MODEL.fullmatch(name), _LAYER.fullmatch(name)
        if of_model:
            part = _part(of_model["mp"], names)
            model = add_model_state(builder, _source(path, name, of_model), part=part)
            if model is not None:
                models.setdefault(int(of_model["mp"]), model)
        elif of_layer:
            prefix = of_layer["layer"] or of_layer["expert"]
            _add_layer(builder, Source(path=path / name, relative=name), prefix)
    ranks = _read_ranks(builder)
    for mp in sorted(ranks):
        model = models.get(mp)
        if model is not None:
            _add_steps(builder, model, ranks[mp].values())
        _add_slices(builder, model, ranks[mp], _part(str(mp), names))
    for sentence in _missing(names, models):
        builder.lacks(sentence)
    builder.complete = bool(models) and not builder.problems
    world_sizes = {model.num_data_ranks * model.num_model_ranks for model in models.values()}
    if len(world_sizes) == 1:
        builder.world_size = world_sizes.pop()
    return builder.finish(NAME)


def _add_layer(builder: CheckpointBuilder, source: Source, prefix: str) -> None:
    """Take the file of one pipeline layer or one expert."""
    file = opened(builder, source)
    if file is not None:
        add_file(builder, file, source)
        add_parameters(builder, file.value, source, prefix=prefix)


def _source(folder: Path, name: str, named: re.Match[str]) -> Source:
    rank = int(named["dp"]) if named["dp"] else None
    return Source(path=folder / name, relative=name, rank=rank)


def _part(mp: str, names: Sequence[str]) -> str:
    """What tells the tensors of one model-parallel part from another's; nothing if it is alone."""
    parts = set()
    for name in names:
        named = MODEL.fullmatch(name) or _OPTIM.fullmatch(name)
        if named:
            parts.add(int(named["mp"]))
    if len(parts) > 1:
        return f" [mp_rank_{int(mp):02d}]"
    return ""


def _read_ranks(builder: CheckpointBuilder) -> dict[int, dict[int, _Rank]]:
    """The flat buffers by model-parallel and data-parallel rank."""
    ranks: dict[int, dict[int, _Rank]] = {}
    for name in builder.names:
        named = _OPTIM.fullmatch(name)
        if named is None:
            continue
        source = _source(builder.path, name, named)
        file = opened(builder, source)
        if file is None:
            continue
        add_file(builder, file, source)
        state = attribute(file.value, "optimizer_state_dict")
        if not isinstance(state, Mapping):
            builder.problems.append(
                f"{source.path}: optimizer_state_dict: expected a mapping, found none"
            )
            continue
        row = ranks.setdefault(int(named["mp"]), {})
        row[int(named["dp"])] = _read_rank(builder, state, source)
    return ranks


def _read_rank(builder: CheckpointBuilder, state: Mapping[Any, Any], source: Source) -> _Rank:
    stage = _stage(state)
    rank = _Rank(stage=stage, label=source.label)
    if stage == 3:
        masters, base = state.get("fp32_flat_groups"), state.get("optimizer_state_dict")
    else:
        masters = state.get("single_partition_of_fp32_groups")
        base = state.get("base_optimizer_state")
    rank.flats["fp32"] = _flats(masters, source.relative, state.get("group_paddings"))
    groups = _groups_of(base)
    by_state: dict[str, list[TensorRef]] = {}
    for group in groups:
        for key, item in group.items() if isinstance(group, Mapping) else ():
            if isinstance(item, TensorRef) and len(item.shape) == 1 and isinstance(key, str):
                by_state.setdefault(key, []).append(item)
    for key, tensors in by_state.items():
        rank.flats[key] = _flats(tensors, source.relative, ())
    for key in ("loss_scaler", "dynamic_loss_scale", "overflow"):
        if key in state:
            add_field(builder, "scaler", key, state[key], source)
    if "clip_grad" in state:
        add_field(builder, "config", "clip_grad", state["clip_grad"], source)
    if isinstance(base, Mapping) and "param_groups" in base:
        add_field(builder, "config", "param_groups", base["param_groups"], source)
    if groups:
        step = source.contents.scalar(attribute(groups[0], "step"))
        if step is not None and is_step(step):
            rank.step = int(step)
    return rank


def _groups_of(base: Any) -> list[Any]:
    """The state of each group in the inner optimizer, which older versions keep as a plain list."""
    inner = base.get("state") if isinstance(base, Mapping) else base
    if isinstance(inner, Mapping):
        return list(inner.values())
    if isinstance(inner, list):
        return inner
    return []


def _add_steps(builder: CheckpointBuilder, model: ModelState, ranks: Iterable[_Rank]) -> None:
    """Take the optimizer's step of the first rank, and of those that differ.

    It counts no skipped steps.
    """
    seen: set[int] = set()
    for rank in ranks:
        if rank.step is None or rank.step in seen:
            continue
        seen.add(rank.step)
        source = f"{rank.label}: optimizer step + skipped_steps"
        builder.steps.append(StatedStep(source=source, step=rank.step + model.num_skipped_steps))


def _stage(state: Mapping[Any, Any]) -> int:
    text = scalar_text(state.get("zero_stage"))
    if text in ("0", "1", "2", "3"):
        return int(text)
    if "fp32_flat_groups" in state:
        return 3
    return 2


def _flats(tensors: Any, path: str, paddings: Any) -> list[Flat]:
    """The flat buffers among `tensors`, each with the padding that is stated for its group."""
    stated = paddings if isinstance(paddings, (list, tuple)) else ()
    flats = []
    for number, tensor in enumerate(tensors if isinstance(tensors, (list, tuple)) else ()):
        padding = 0
        if number < len(stated) and is_count(stated[number]):
            padding = stated[number]
        if isinstance(tensor, TensorRef):
            flats.append(Flat(path=path, tensor=tensor, padding=padding))
    return flats


def _add_slices(
    builder: CheckpointBuilder, model: ModelState | None, ranks: Mapping[int, _Rank], part: str
) -> None:
    """Take the slices of all data-parallel ranks, by parameter where the sizes add up."""
    stage = max(rank.stage for rank in ranks.values())
    states: set[str] = set()
    for rank in ranks.values():
        states |= rank.flats.keys()
    for state in sorted(states):
        rows = {dp: rank.flats[state] for dp, rank in ranks.items() if rank.flats.get(state)}
        pieces = _pieces(model, rows, stage) if model is not None else None
        if pieces is None:
            builder.notes.append(
                f"{state}{part}: the flat buffers do not add up to param_shapes: they are not named"
            )
            builder.tensors += _unnamed(rows, state, part)
            continue
        first_row = next(iter(rows.values()))
        for piece in pieces:
            builder.tensors.append(
                TensorFacts(
                    name=f"{state}.{piece.parameter.name}{part}",
                    dtype=first_row[0].tensor.dtype,
                    shape=(math.prod(piece.parameter.shape),),
                    role="optimizer",
                    chunks=piece.chunks,
                    parameter=piece.parameter.name,
                )
            )
    if states:
        builder.notes.append(
            "optimizer tensors are flat: their shape is the number of elements of the parameter"
        )


def _pieces(
    model: ModelState, rows: Mapping[int, Sequence[Flat]], stage: int
) -> tuple[Piece, ...] | None:
    """What the buffers hold, by parameter; None where the sizes do not add up."""
    num_ranks = model.num_data_ranks
    if num_ranks < 1:
        return None
    if stage == 3:
        return split_by_parameter(tuple(chain.from_iterable(model.groups)), rows, num_ranks)
    if any(len(row) != len(model.groups) for row in rows.values()):
        return None
    pieces: list[Piece] = []
    for number, group in enumerate(model.groups):
        flats = {dp: row[number] for dp, row in rows.items()}
        of_group = split_by_group(group, flats, num_ranks)
        if of_group is None:
            return None
        pieces += of_group
    return tuple(pieces)


def _unnamed(rows: Mapping[int, Sequence[Flat]], state: str, part: str) -> Iterator[TensorFacts]:
    for dp, row in sorted(rows.items()):
        for number, flat in enumerate(row):
            chunk: Chunk | None = flat.chunk(0, flat.num_elements, 0)
            yield TensorFacts(
                name=f"{state}.{number} [dp {dp}]{part}",
                dtype=flat.tensor.dtype,
                shape=(flat.num_elements,),
                role="optimizer",
                chunks=(chunk,) if chunk is not None else (),
            )


def _missing(names: Sequence[str], models: Mapping[int, ModelState]) -> list[str]:
    """What is not there, by DeepSpeed's own rule: a file of every data- and model-parallel rank."""
    if not models:
        return ["there is no readable *_model_states.pt"]
    first = next(iter(models.values()))
    num_mp, num_dp = first.num_model_ranks, first.num_data_ranks
    model_files = [named for named in map(MODEL.fullmatch, names) if named]
    optimizer_files = [named for named in map(_OPTIM.fullmatch, names) if named]
    held = {(int(named["dp"]), int(named["mp"])) for named in optimizer_files}
    sentences = []
    if not first.holds_optimizer and len(held) != num_dp * num_mp:
        # Bounded, as the numbers may lie: at most as many as are there, and three.
        pairs = product(range(num_dp), range(num_mp))
        lost = islice((pair for pair in pairs if pair not in held), 3)
        missing = some([f"zero_pp_rank_{dp}_mp_rank_{mp:02d}_optim_states.pt" for dp, mp in lost])
        sentences.append(
            f"expected {num_dp * num_mp} optimizer files, found {len(held)}: {missing} missing"
        )
    is_partitioned = any(named["dp"] for named in model_files)
    expected = num_mp * (num_dp if is_partitioned else 1)
    num_models = len({(int(named["dp"] or 0), int(named["mp"])) for named in model_files})
    if num_models != expected:
        sentences.append(f"expected {expected} model files, found {num_models}")
    return sentences
