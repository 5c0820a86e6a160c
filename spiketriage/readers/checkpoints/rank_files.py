"""Files that several ranks saved of one step, held against each other as replicas.

This module never reads a byte, and never takes for a replica what is declared to be a shard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from spiketriage.nouns.checkpoint import TensorRole
from spiketriage.readers.checkpoints.building.folder import some
from spiketriage.readers.checkpoints.comparison import Measured

_RANK = re.compile(r"(?<![A-Za-z])rank[_-]?(?P<rank>\d{1,7})(?!\d)", re.IGNORECASE)
# What names of files say of tensor, pipeline, expert and data parallel shards.
_SHARD = re.compile(
    r"(?<![A-Za-z])(?:mp|tp|pp|ep|cp|zero|fsdp|local|shard(?:s|ed)?)(?![A-Za-z])", re.IGNORECASE
)
_FLAT = "flat_param"  # what FSDP calls the pieces that it cuts a model into
# Experts that ranks share among themselves, and statistics of each rank's own batches.
_OWN = re.compile(r"expert|running_mean|running_var|num_batches_tracked")
_COUNTERS = ("scheduler", "scaler", "progress")  # equal on every rank, of shards too


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFile:
    """What the name of one rank's file says: the rank, and the name that all ranks share."""

    rank: int
    shared_name: str


def rank_file(name: str) -> RankFile | None:
    """What a name says, relative to the run; None where it names no rank."""
    match = _RANK.search(name)
    if match is None:
        return None
    return RankFile(rank=int(match["rank"]), shared_name=_RANK.sub("rank", name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """What of a rank's file is not what another rank saved: what cannot be, and what may be."""

    odd: tuple[str, ...]
    notes: tuple[str, ...]


def compared(first: Measured, other: Measured) -> Parted:
    """The file of another rank against that of the first, both of one step."""
    odd = list(_counters(first, other))
    notes = []
    why_shard = _why_shard(first, other)
    if why_shard:
        return Parted(odd=tuple(odd), notes=(f"{why_shard}: not compared with other ranks",))
    for role in ("parameter", "optimizer"):
        names = _comparable(first, other, role)
        apart = [name for name in names if _counts(first, name) != _counts(other, name)]
        of = f"{len(apart)} of {len(names)} {role} tensors differ from those of {_name(first)}"
        # Shards of one model share its small tensors, replicas that have just parted most of all.
        if 2 * len(apart) >= len(names) > 0:
            notes.append(f"{of}: shards, or replicas that parted; nothing declares which")
        elif apart:
            odd.append(f"{apart[0]}: {of}, of the same step: replicas that parted ({some(apart)})")
    return Parted(odd=tuple(odd), notes=tuple(notes))


def _why_shard(first: Measured, other: Measured) -> str:
    """What says that the files are pieces of one model; empty where nothing does."""
    match = _SHARD.search(_name(first))
    if match:
        return f"{match[0]!r} in the name declares a shard"
    shapes = {name: tensor.shape for name, tensor in first.parameters.items()}
    if any(_FLAT in name for name in shapes):
        return f"{_FLAT!r} declares a shard"
    if shapes != {name: tensor.shape for name, tensor in other.parameters.items()}:
        return f"other tensors or shapes than in {_name(first)} show a shard"
    return ""


def _comparable(first: Measured, other: Measured, role: TensorRole) -> list[str]:
    """The tensors of a role that both files hold and whose every element is finite."""
    names = []
    for tensor in first.facts.tensors:
        stats, others = first.stats(tensor.name), other.stats(tensor.name)
        if tensor.role != role or stats is None or others is None or _OWN.search(tensor.name):
            continue
        if not stats.num_nonfinite and not others.num_nonfinite:
            names.append(tensor.name)
    return names


def _counts(measured: Measured, name: str) -> tuple[float | None, float, int | None]:
    stats = measured.measurement.stats[name]
    return stats.l2, stats.absmax, stats.num_zeros


def _counters(first: Measured, other: Measured) -> Iterator[str]:
    """Steps and states of schedulers that are not those of the first rank."""
    steps = sorted(stated.step for stated in first.facts.stated_steps)
    others = sorted(stated.step for stated in other.facts.stated_steps)
    if steps != others:
        yield f"step: is {_words(others)}, and {_words(steps)} in {_name(first)}, of another rank"
    fields = {field.name: field for field in first.facts.fields if field.kind in _COUNTERS}
    for field in other.facts.fields:
        if field.name not in fields:
            continue
        values = fields[field.name].values
        for key, value in field.values.items():
            if values.get(key, value) != value:
                yield (
                    f"{field.name}: {key} is {value:.40}, and {values[key]:.40} in "
                    f"{_name(first)}, of another rank"
                )


def _words(steps: list[int]) -> str:
    return " and ".join(str(step) for step in dict.fromkeys(steps)) or "not stated"


def _name(measured: Measured) -> str:
    """The file's name, from the folder on that names the rank."""
    parts = measured.facts.path.parts
    ranked = [place for place, part in enumerate(parts) if _RANK.search(part)]
    return "/".join(parts[ranked[-1] :])
