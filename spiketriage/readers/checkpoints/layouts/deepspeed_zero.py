"""Reads a DeepSpeed checkpoint folder.

ZeRO 1, 2 and 3, or none, with flat optimizer slices named by param_shapes.

This module never reads `latest` to decide anything and never counts to a world size that a file
merely claims.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any

from spiketriage.nouns.checkpoint import CheckpointFacts, Chunk, StatedStep, TensorFacts
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.building.optimizer_order import Named
from spiketriage.readers.checkpoints.building.state_fields import scalar_text
from spiketriage.readers.checkpoints.building.state_tree import (
    Gathered,
    Source,
    add_field,
    add_file,
    add_parameters,
    is_step,
)
from spiketriage.readers.checkpoints.building.torch_layout import facts, named_step, opened
from spiketriage.readers.checkpoints.files.torch_values import TensorRef
from spiketriage.readers.checkpoints.layouts.deepspeed_flat import (
    Flat,
    Piece,
    split_by_group,
    split_by_parameter,
)
from spiketriage.readers.checkpoints.layouts.deepspeed_model import ModelState, add_model_state
from spiketriage.readers.json_file import is_count
from spiketriage.readers.look import Look, look
from spiketriage.readers.pickles import attribute

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
    """The flat buffers of one data-parallel rank by state (fp32, exp_avg …), each by group or sub-group."""

    stage: int
    label: str
    step: int | None = None
    flats: dict[str, list[Flat]] = field(default_factory=dict)


def claims(look: Look, /) -> float:
    """How sure this reader is of a path."""
    if not look.is_folder:
        return 0.0
    if any(_OPTIM.fullmatch(name) for name in look.names):
        if "zero" not in look.names:
            return 0.97
        return 0.5
    if any(MODEL.fullmatch(name) for name in look.names) and "zero" not in look.names:
        return 0.9
    return 0.0


def read(path: Path, /) -> CheckpointFacts:
    """The checkpoint in the folder at `path`.

    Raises:
        EvidenceError: the folder cannot be read.
    """
    gathered = Gathered()
    names = look(path).names
    models: dict[int, ModelState] = {}
    for name in names:
        found = MODEL.fullmatch(name)
        if found:
            model = add_model_state(
                gathered, _source(path, name, found), part=_part(found["mp"], names)
            )
            if model is not None:
                models.setdefault(int(found["mp"]), model)
        elif found := _LAYER.fullmatch(name):
            source = Source(path=path / name, relative=name)
            file = opened(gathered, source)
            if file is not None:
                add_file(gathered, file, source)
                add_parameters(
                    gathered, file.value, source, prefix=found["layer"] or found["expert"]
                )
    ranks = _read_ranks(gathered, path, names)
    for mp in sorted({mp for mp, _ in ranks}):
        row = {dp: rank for (at, dp), rank in ranks.items() if at == mp}
        _add_steps(gathered, models.get(mp), row)
        _add_slices(gathered, models.get(mp), row, _part(str(mp), names))
    missing = _missing(names, models)
    gathered.problems += [f"{path}: {sentence}" for sentence in missing]
    world = {model.num_data_ranks * model.num_model_ranks for model in models.values()}
    return facts(
        gathered,
        layout=NAME,
        path=path,
        complete=bool(models) and not missing and not gathered.problems,
        world_size=world.pop() if len(world) == 1 else None,
        named=named_step(path.name, _NAMED),
    )


def _source(folder: Path, name: str, found: re.Match[str]) -> Source:
    return Source(path=folder / name, relative=name, rank=int(found["dp"]) if found["dp"] else None)


def _part(mp: str, names: Sequence[str]) -> str:
    """What tells the tensors of one model-parallel part from another's.

    Nothing where there is one part.
    """
    parts = {
        int(found["mp"])
        for name in names
        if (found := MODEL.fullmatch(name) or _OPTIM.fullmatch(name))
    }
    if len(parts) > 1:
        return f" [mp_rank_{int(mp):02d}]"
    return ""


def _read_ranks(
    gathered: Gathered, path: Path, names: Sequence[str]
) -> dict[tuple[int, int], _Rank]:
    ranks: dict[tuple[int, int], _Rank] = {}
    for name in names:
        found = _OPTIM.fullmatch(name)
        if found is None:
            continue
        source = _source(path, name, found)
        file = opened(gathered, source)
        if file is None:
            continue
        add_file(gathered, file, source)
        state = attribute(file.value, "optimizer_state_dict")
        if not isinstance(state, Mapping):
            gathered.problems.append(
                f"{source.path}: optimizer_state_dict: expected a mapping, found none"
            )
            continue
        ranks[int(found["mp"]), int(found["dp"])] = _read_rank(gathered, state, source)
    return ranks


def _read_rank(gathered: Gathered, state: Mapping[Any, Any], source: Source) -> _Rank:
    stage = _stage(state)
    rank = _Rank(stage=stage, label=source.label)
    masters = state.get("fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups")
    paddings = state.get("group_paddings")
    rank.flats["fp32"] = _flats(
        masters, source.relative, paddings if isinstance(paddings, (list, tuple)) else ()
    )
    base = state.get("optimizer_state_dict" if stage == 3 else "base_optimizer_state")
    inner = base.get("state") if isinstance(base, Mapping) else base
    groups = (
        list(inner.values())
        if isinstance(inner, Mapping)
        else inner
        if isinstance(inner, list)
        else []
    )
    by_state: dict[str, list[Any]] = {}
    for group in groups:
        for key, item in group.items() if isinstance(group, Mapping) else ():
            if isinstance(item, TensorRef) and len(item.shape) == 1 and isinstance(key, str):
                by_state.setdefault(key, []).append(item)
    for key, tensors in by_state.items():
        rank.flats[key] = _flats(tensors, source.relative, ())
    for key in ("loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad"):
        if key in state:
            add_field(
                gathered, "scaler" if key != "clip_grad" else "config", key, state[key], source
            )
    if isinstance(base, Mapping) and "param_groups" in base:
        add_field(gathered, "config", "param_groups", base["param_groups"], source)
    step = next((source.contents.scalar(attribute(group, "step")) for group in groups), None)
    rank.step = int(step) if step is not None and is_step(step) else None
    return rank


def _add_steps(gathered: Gathered, model: ModelState | None, ranks: Mapping[int, _Rank]) -> None:
    """The optimizer's step of the first rank, and of those that differ.

    It counts no skipped steps.
    """
    seen: set[int | None] = {None}
    for rank in ranks.values() if model is not None else ():
        if rank.step not in seen and rank.step is not None and model is not None:
            seen.add(rank.step)
            source = f"{rank.label}: optimizer step + skipped_steps"
            gathered.steps.append(
                StatedStep(source=source, step=rank.step + model.num_skipped_steps)
            )


def _stage(state: Mapping[Any, Any]) -> int:
    text = scalar_text(state.get("zero_stage"))
    if text in ("0", "1", "2", "3"):
        return int(text)
    if "fp32_flat_groups" in state:
        return 3
    return 2


def _flats(tensors: Any, path: str, paddings: Sequence[Any]) -> list[Flat]:
    found = []
    for number, tensor in enumerate(tensors if isinstance(tensors, (list, tuple)) else ()):
        if number < len(paddings) and is_count(paddings[number]):
            padding = paddings[number]
        else:
            padding = 0
        if isinstance(tensor, TensorRef):
            found.append(Flat(path=path, tensor=tensor, padding=padding))
    return found


def _add_slices(
    gathered: Gathered, model: ModelState | None, ranks: Mapping[int, _Rank], part: str
) -> None:
    """The slices of all data-parallel ranks as tensors, by parameter where the sizes add up."""
    states = sorted({state for rank in ranks.values() for state in rank.flats})
    for state in states:
        rows = {dp: rank.flats[state] for dp, rank in ranks.items() if rank.flats.get(state)}
        stage = max(rank.stage for rank in ranks.values())
        pieces = _pieces(model, rows, stage) if model is not None else None
        if pieces is None:
            gathered.notes.append(
                f"{state}{part}: the flat buffers do not add up to param_shapes: they are not named"
            )
            gathered.tensors += _unnamed(rows, state, part)
            continue
        dtype = next(flat.tensor.dtype for row in rows.values() for flat in row)
        gathered.tensors += [
            TensorFacts(
                name=f"{state}.{piece.parameter.name}{part}",
                dtype=dtype,
                shape=(math.prod(piece.parameter.shape),),
                role="optimizer",
                chunks=piece.chunks,
                parameter=piece.parameter.name,
            )
            for piece in pieces
        ]
    if states:
        gathered.notes.append(
            "optimizer tensors are flat: their shape is the number of elements of the parameter"
        )


def _pieces(
    model: ModelState, rows: Mapping[int, Sequence[Flat]], stage: int
) -> tuple[Piece, ...] | None:
    num_ranks = model.num_data_ranks
    if num_ranks < 1:
        return None
    if stage == 3:
        order = [Named(name=one.name, shape=one.shape) for group in model.groups for one in group]
        return split_by_parameter(order, rows, num_ranks)
    if any(len(row) != len(model.groups) for row in rows.values()):
        return None
    pieces: list[Piece] = []
    for number, group in enumerate(model.groups):
        some_pieces = split_by_group(
            group, {dp: row[number] for dp, row in rows.items()}, num_ranks
        )
        if some_pieces is None:
            return None
        pieces += some_pieces
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
    """What DeepSpeed's own rule misses.

    One optimizer file for each data- and model-parallel rank.
    """
    if not models:
        return ["there is no readable *_model_states.pt"]
    first = next(iter(models.values()))
    num_mp, num_dp = first.num_model_ranks, first.num_data_ranks
    model_ranks = {
        (int(m["dp"] or 0), int(m["mp"])) for name in names if (m := MODEL.fullmatch(name))
    }
    found = {(int(m["dp"]), int(m["mp"])) for name in names if (m := _OPTIM.fullmatch(name))}
    sentences = []
    if not first.holds_optimizer and len(found) != num_dp * num_mp:
        # Bounded: at most as many as are there, and three.
        lost = islice(
            (pair for pair in product(range(num_dp), range(num_mp)) if pair not in found), 3
        )
        told = some([f"zero_pp_rank_{dp}_mp_rank_{mp:02d}_optim_states.pt" for dp, mp in lost])
        sentences.append(
            f"expected {num_dp * num_mp} optimizer files, found {len(found)}: {told} missing"
        )
    partitioned = any(m["dp"] for name in names if (m := MODEL.fullmatch(name)))
    wanted = num_mp * (num_dp if partitioned else 1)
    if len(model_ranks) != wanted:
        sentences.append(f"expected {wanted} model files, found {len(model_ranks)}")
    return sentences
