"""The whole state of a training loop as a generation keeps it: read off the live objects, and put back into them.

It never loads or saves a file and never builds an object.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from spiketriage.train.adapters.source import Source
from spiketriage.train.checkpoint import RankState
from spiketriage.train.harness import Overrides


class Stateful(Protocol):
    """A scheduler or scaler."""

    def state_dict(self) -> Mapping[str, Any]:
        """Its state."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take a state in."""
        ...


Passes = Callable[[Sequence[Any], Overrides], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a loop or framework has built, for a session to watch, save and restore.

    `model` and `optimizer` are the innermost ones; `reducer` is a `DistributedDataParallel` around the model, if any.
    `num_micro` micro-batches make a step (the last of an epoch may have fewer). `max_norm` is the clipping threshold, 0
    for none. `passes` runs forward and backward of a step's batches as the loop does, under overrides, and takes no
    step; None where only the loop itself can do that. `layers` are the modules whose outputs are recorded (None: the
    blocks of the model). `config` is everything that decides the run's numbers, plain JSON.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    source: Source
    num_micro: int = 1
    scheduler: Stateful | None = None
    scaler: Stateful | None = None
    reducer: nn.Module | None = None
    max_norm: float = 0.0
    hparams: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "fp32"
    kernel: str = "deployed"
    passes: Passes | None = None
    capabilities: frozenset[str] = frozenset()
    layers: Mapping[str, nn.Module] | None = None

    @property
    def params(self) -> dict[str, Tensor]:
        """Trained parameters by name."""
        return {name: one for name, one in self.model.named_parameters() if one.requires_grad}

    @property
    def blocks(self) -> Mapping[str, nn.Module]:
        """The modules whose outputs are recorded: by default the members of the longest `ModuleList`."""
        if self.layers is not None:
            return self.layers
        lists = {name: one for name, one in self.model.named_modules() if isinstance(one, nn.ModuleList)}
        longest = max(lists, key=lambda name: len(lists[name]), default=None)
        return {} if longest is None else {f"{longest}.{n}": one for n, one in enumerate(lists[longest])}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What a session counts, beside what the parts hold; `cursor` names the next micro-batch and the last step."""

    cursor: Mapping[str, Any]
    guard: Mapping[str, Any]
    num_tokens: int


def held(parts: Parts, counters: Counters) -> RankState:
    """The state in memory; its tensors are the live ones."""
    moments = {
        f"{name}/{key}": value
        for name, one in parts.params.items()
        for key, value in parts.optimizer.state.get(one, {}).items()
        if isinstance(value, Tensor)
    }
    return RankState(
        params={name: one.detach() for name, one in parts.params.items()},
        optimizer=moments,
        scheduler={
            "scheduler": _plain({} if parts.scheduler is None else parts.scheduler.state_dict()),
            "groups": [_plain(_settings(group)) for group in parts.optimizer.param_groups],
            "scaler": _plain({} if parts.scaler is None else parts.scaler.state_dict()),
            "guard": counters.guard,
        },
        rng=json.dumps(_rng()),
        cursor=counters.cursor,
        num_tokens=counters.num_tokens,
    )


@torch.no_grad()
def put(state: RankState, parts: Parts) -> None:
    """Let the parts hold `state`: parameters in place, moments, settings of the groups, scheduler, scaler."""
    for name, one in parts.params.items():
        one.copy_(state.params[name])
    moments: dict[str, dict[str, Tensor]] = {}
    for name, value in state.optimizer.items():
        parameter, _, key = name.rpartition("/")
        moments.setdefault(parameter, {})[key] = value.clone()
    for name, one in parts.params.items():
        parts.optimizer.state.pop(one, None)
        if name in moments:
            parts.optimizer.state[one] = moments[name]
    for group, settings in zip(parts.optimizer.param_groups, state.scheduler["groups"], strict=True):
        group.update(_like(settings, group))
    if parts.scheduler is not None:
        parts.scheduler.load_state_dict(_like(state.scheduler["scheduler"], parts.scheduler.state_dict()))
    if parts.scaler is not None and state.scheduler["scaler"]:
        parts.scaler.load_state_dict(dict(state.scheduler["scaler"]))


def put_rng(state: RankState) -> None:
    """Set the generators of Python, numpy and torch as they were."""
    told = json.loads(state.rng)
    version, numbers, gauss = told["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = told["numpy"]
    np.random.set_state((name, np.frombuffer(bytes.fromhex(keys), dtype="<u4"), *rest))
    torch.set_rng_state(torch.frombuffer(bytearray.fromhex(told["torch"]), dtype=torch.uint8))
    if "cuda" in told and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray.fromhex(told["cuda"]), dtype=torch.uint8))


def _rng() -> dict[str, Any]:
    name, keys, *rest = np.random.get_state(legacy=True)
    told: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [name, np.asarray(keys, dtype="<u4").tobytes().hex(), *rest],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
    }
    if torch.cuda.is_available():
        told["cuda"] = torch.cuda.get_rng_state().numpy().tobytes().hex()
    return told


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _plain(value: Any) -> Any:
    """The value in plain JSON: tensors and numpy's numbers as numbers, tuples as lists; the rest is left out."""
    if isinstance(value, Tensor | np.generic):
        return value.item() if value.size == 1 or getattr(value, "numel", lambda: 1)() == 1 else value.tolist()
    if isinstance(value, Mapping):
        told = {str(name): _plain(one) for name, one in value.items()}
        return {name: one for name, one in told.items() if one is not _NOTHING}
    if isinstance(value, list | tuple):
        return [None if (one := _plain(item)) is _NOTHING else one for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else _NOTHING


def _like(stored: Any, live: Any) -> Any:
    """`stored` JSON in the types that the live value has: tuples, and tensors in place of numbers."""
    if isinstance(live, Mapping):
        return {name: _like(one, live[name]) if name in live else one for name, one in stored.items()}
    if isinstance(live, tuple) and isinstance(stored, list):
        return tuple(stored)
    if isinstance(live, Tensor):
        return torch.as_tensor(stored, dtype=live.dtype, device=live.device)
    return stored


_NOTHING = object()
