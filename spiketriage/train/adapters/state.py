"""The whole state of a training loop, read off the live objects and put back into them.

It never loads or saves a file and never builds an object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from spiketriage.train.adapters.source import Source
from spiketriage.train.generations import module_state
from spiketriage.train.generations.rank_state import RankState
from spiketriage.train.harness import Overrides
from spiketriage.train.recording import random_state


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

    `model` and `optimizer` are the innermost ones; `reducer` is a `DistributedDataParallel` around
    the model, if any. `num_micro` micro-batches make a step (the last of an epoch may have fewer).
    `max_norm` is the clipping threshold, 0 for none. `passes` runs forward and backward of a step's
    batches as the loop does, under overrides, and takes no step; None where only the loop itself
    can do that. `layers` are the modules whose outputs are recorded (None: the blocks of the
    model). `config` is everything that decides the run's numbers, plain JSON.
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
        return {name: param for name, param in self.model.named_parameters() if param.requires_grad}

    @property
    def blocks(self) -> Mapping[str, nn.Module]:
        """The modules whose outputs are recorded; by default those of the longest `ModuleList`."""
        if self.layers is not None:
            return self.layers
        prefix, longest = "", nn.ModuleList()
        for name, module in self.model.named_modules():
            if isinstance(module, nn.ModuleList) and len(module) > len(longest):
                prefix, longest = name, module
        return {f"{prefix}.{number}": block for number, block in enumerate(longest)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What a session counts; `cursor` names the next micro-batch and the last step."""

    cursor: Mapping[str, Any]
    guard: Mapping[str, Any]
    num_tokens: int


def held(parts: Parts, counters: Counters) -> RankState:
    """The state in memory; its tensors are the live ones."""
    tensors = module_state.capture(parts.model, parts.optimizer)
    return RankState(
        params=tensors.params,
        optimizer=tensors.optimizer,
        buffers=tensors.buffers,
        scheduler={
            "scheduler": _plain({} if parts.scheduler is None else parts.scheduler.state_dict()),
            "groups": [_plain(_settings(group)) for group in parts.optimizer.param_groups],
        },
        scaler=_plain({} if parts.scaler is None else parts.scaler.state_dict()),
        guard=counters.guard,
        rng=random_state.saved(),
        cursor=counters.cursor,
        num_tokens=counters.num_tokens,
    )


def put(state: RankState, parts: Parts) -> None:
    """Let the parts hold `state`: tensors, settings of the groups, scheduler, scaler."""
    module_state.put(state, parts.model, parts.optimizer)
    for group, settings in zip(
        parts.optimizer.param_groups, state.scheduler["groups"], strict=True
    ):
        group.update(_like(settings, group))
    if parts.scheduler is not None:
        parts.scheduler.load_state_dict(
            _like(state.scheduler["scheduler"], parts.scheduler.state_dict())
        )
    if parts.scaler is not None and state.scaler:
        parts.scaler.load_state_dict(dict(state.scaler))


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _plain(value: Any) -> Any:
    """The value in plain JSON: tensors as numbers, tuples as lists; the rest is left out."""
    if isinstance(value, Tensor):
        if value.numel() == 1:
            return value.item()
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        items = {str(name): _plain(item) for name, item in value.items()}
        return {name: item for name, item in items.items() if item is not _NOTHING}
    if isinstance(value, list | tuple):
        items_in_order = [_plain(item) for item in value]
        return [None if item is _NOTHING else item for item in items_in_order]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return _NOTHING


def _like(stored: Any, live: Any) -> Any:
    """`stored` JSON in the live value's types: tuples, tensors for numbers, keys that are no text.

    What JSON cannot tell from the live value is that value: `MultiStepLR` keeps its milestones in a
    `Counter`.
    """
    if isinstance(live, Mapping) and isinstance(stored, Mapping):
        names = {str(name): name for name in live}
        if any(not isinstance(name, str) for name in live) and _plain(live) == stored:
            return live
        typed = {}
        for name, item in stored.items():
            if name in names:
                typed[names[name]] = _like(item, live[names[name]])
            else:
                typed[name] = item
        return typed
    if isinstance(live, list | tuple) and isinstance(stored, list):
        items = list(stored)
        for at, live_item in enumerate(live[: len(items)]):
            items[at] = _like(items[at], live_item)
        if isinstance(live, tuple):
            return tuple(items)
        return items
    if isinstance(live, Tensor) and stored is not None:
        return torch.as_tensor(stored, dtype=live.dtype, device=live.device)
    return stored


_NOTHING = object()
