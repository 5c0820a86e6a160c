"""Everything that one rank needs to go on bit for bit, and the digests that prove it the same.

This module never reads or writes a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from spiketriage import digests
from spiketriage.train.generations.tensors import NO_TENSORS
from spiketriage.train.generations.together import place
from spiketriage.train.recording.tensors import digest, local_key, local_part
from spiketriage.wire.chain import PLACEMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """The state of a rank after a step; tensors may be DTensors, everything else is plain JSON.

    `optimizer` tensors are named `<parameter>/<moment>`. `buffers` are all other tensors: buffers
    of the model (router bias), an EMA, amax histories of FP8. `scaler` is the loss scale's or FP8's
    own state, `guard` that of the guard, `rng` what `random_state.saved` returned. `cursor` is
    where this rank's data goes on; `is_cursor_global` promises that it is one position for all
    ranks together, from which any number of ranks can go on. `num_tokens` counts those of all ranks
    since the start of the run.
    """

    params: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor] = field(default_factory=lambda: NO_TENSORS)
    scheduler: Mapping[str, Any]
    scaler: Mapping[str, Any] = field(default_factory=dict)
    guard: Mapping[str, Any] = field(default_factory=dict)
    rng: Mapping[str, str]
    cursor: Mapping[str, Any]
    is_cursor_global: bool = False
    num_tokens: int

    @property
    def groups(self) -> dict[str, Mapping[str, Tensor]]:
        """All tensors, by group and name."""
        return {"params": self.params, "optimizer": self.optimizer, "buffers": self.buffers}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDigests:
    """Hex digests of what a rank holds, by field and by tensor, and the names of nonfinites.

    The field `placement` is the number of ranks and how tensors lie on them: the other fields can
    be compared only where it is equal.
    """

    fields: Mapping[str, str]
    tensors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    nonfinite: tuple[str, ...] = ()


def digest_state(state: RankState) -> StateDigests:
    """Digests of `state`, the same before a save and after a load onto the same ranks."""
    by_group: dict[str, dict[str, str]] = {}
    nonfinite: list[str] = []
    for group, tensors in state.groups.items():
        by_group[group] = {}
        for name, tensor in tensors.items():
            key = local_key(name, tensor)
            taken = digest(local_part(tensor))
            by_group[group][key] = taken.digest.hex()
            if not taken.finite:
                nonfinite.append(key)
    fields = {group: digests.of_mapping(of_tensors) for group, of_tensors in by_group.items()}
    for name in ("scheduler", "scaler", "guard", "rng", "cursor"):
        fields[name] = digests.of_bytes(canonical(getattr(state, name)))
    fields[PLACEMENT] = digests.of_bytes(
        canonical({"num_ranks": place().world_size, **_shards(state.groups)})
    )
    return StateDigests(fields=fields, tensors=by_group, nonfinite=tuple(nonfinite))


def model_digest(params: Mapping[str, Tensor]) -> str:
    """Digest of the model's parameter names, shapes and dtypes, whatever the sharding."""
    kinds = {name: f"{param.dtype}{list(param.shape)}" for name, param in params.items()}
    return digests.of_mapping(kinds)


def canonical(value: Mapping[str, Any]) -> bytes:
    """One spelling of a JSON object."""
    return json.dumps(value, sort_keys=True).encode()


def _shards(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, list[int]]:
    """Shape of every piece that is not a whole tensor, by name."""
    shapes: dict[str, list[int]] = {}
    for group, tensors in groups.items():
        for name, tensor in tensors.items():
            key = local_key(name, tensor)
            if key != name:
                shapes[f"{group} {key}"] = list(local_part(tensor).shape)
    return shapes
