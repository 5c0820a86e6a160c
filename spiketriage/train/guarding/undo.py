"""A copy of training state that takes an update back bit for bit.

It is for optimizers that cannot be held back. It never multiplies or interpolates: every tensor is
copied whole, so a NaN in what is undone leaves no trace.

The price is a second copy of parameters and moments in memory, and one pass over both a step;
deciding before `optimizer.step()` costs neither, and is the normal way. Replicated, FSDP2 and
tensor-parallel tensors are copied as this rank holds them, without a collective (DTensors:
untested).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from spiketriage.errors import UsageError


class Stateful(Protocol):
    """A scheduler, scaler or average whose state is a dictionary of numbers."""

    def state_dict(self) -> Mapping[str, Any]:
        """Its state."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take a state in."""
        ...


class UndoCopy:
    """`take` before the update, `put_back` if it must not have been.

    `tensors`: whatever the update changes in place: parameters, those of an EMA, buffers.
    `optimizer`: its moments and group settings. `others`: objects with a state dictionary.
    `put_back` restores values in place, so that references to the tensors stay good; moments that
    the update created are removed again.
    """

    def __init__(
        self,
        tensors: Iterable[Tensor],
        *,
        optimizer: torch.optim.Optimizer | None = None,
        others: Sequence[Stateful] = (),
    ) -> None:
        self._tensors, self._optimizer, self._others = list(tensors), optimizer, tuple(others)
        self._copies: list[Tensor] = []
        self._moments: dict[Tensor, dict[str, Any]] = {}
        self._groups: list[dict[str, Any]] = []
        self._states: list[Any] = []
        self._is_taken = False

    @torch.no_grad()
    def take(self) -> None:
        """Copy everything; the copies of the step before are reused where shapes allow."""
        if len(self._copies) == len(self._tensors):
            for copy, tensor in zip(self._copies, self._tensors, strict=True):
                copy.copy_(_local(tensor))
        else:
            self._copies = [_local(tensor).clone() for tensor in self._tensors]
        if self._optimizer is not None:
            self._moments = {}
            for parameter, state in self._optimizer.state.items():
                self._moments[parameter] = {name: _copied(value) for name, value in state.items()}
            self._groups = [_settings(group) for group in self._optimizer.param_groups]
        self._states = [deepcopy(dict(other.state_dict())) for other in self._others]
        self._is_taken = True

    @torch.no_grad()
    def put_back(self) -> None:
        """Undo everything since `take`.

        Raises:
            UsageError: nothing was taken since the last time.
        """
        if not self._is_taken:
            raise UsageError("nothing is held: call take() before the update")
        for copy, tensor in zip(self._copies, self._tensors, strict=True):
            _local(tensor).copy_(copy)
        if self._optimizer is not None:
            self._put_optimizer_back(self._optimizer)
        for other, state in zip(self._others, self._states, strict=True):
            other.load_state_dict(state)
        self._is_taken = False

    def _put_optimizer_back(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter in list(optimizer.state):
            if parameter not in self._moments:
                del optimizer.state[parameter]
        for parameter, copies in self._moments.items():
            state = optimizer.state[parameter]
            for name in list(state):
                if name not in copies:
                    del state[name]
            for name, copy in copies.items():
                if isinstance(copy, Tensor) and isinstance(state.get(name), Tensor):
                    _local(state[name]).copy_(copy)
                else:
                    state[name] = copy
        for group, settings in zip(optimizer.param_groups, self._groups, strict=True):
            group.update(deepcopy(settings))


def _local(tensor: Tensor) -> Tensor:
    """This rank's part, sharing memory with the tensor."""
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    return tensor.detach()


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _local(value).clone()
    return deepcopy(value)


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: deepcopy(value) for name, value in group.items() if name != "params"}
