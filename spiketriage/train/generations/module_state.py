"""The tensors of a module and its optimizer by name, and the way back into both.

This module never copies on the way out, and never touches learning rates and other settings of the
optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spiketriage.errors import UsageError
from spiketriage.train.generations.rank_state import RankState


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleState:
    """Live tensors by name: parameters, moments as `<parameter>/<moment>`, persistent buffers."""

    params: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    buffers: dict[str, Tensor]


def capture(model: nn.Module, optimizer: torch.optim.Optimizer) -> ModuleState:
    """What `model` and `optimizer` hold now; tied parameters appear once, under their first name.

    Raises:
        UsageError: the optimizer steps a parameter that the model does not name, or keeps state
        that is no tensor.
    """
    params = dict(model.named_parameters())
    names = {id(parameter): name for name, parameter in params.items()}
    moments: dict[str, Tensor] = {}
    for parameter, state in optimizer.state.items():
        name = names.get(id(parameter))
        if name is None:
            raise UsageError(
                f"the optimizer steps a tensor of shape {list(parameter.shape)} that the "
                "model does not name"
            )
        for moment, value in state.items():
            if value is None:
                continue  # SGD without momentum
            if not isinstance(value, Tensor):
                raise UsageError(
                    f"the optimizer keeps {moment} of {name} as {type(value).__name__}, "
                    "not as a tensor"
                )
            moments[f"{name}/{moment}"] = value
    kept = model.state_dict(keep_vars=True).keys()
    return ModuleState(
        params={name: parameter.detach() for name, parameter in params.items()},
        optimizer=moments,
        buffers={name: buffer for name, buffer in model.named_buffers() if name in kept},
    )


@torch.no_grad()
def put(state: RankState, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Copy parameters and buffers into `model`, and replace the moments of `optimizer`.

    Raises:
        UsageError: a name that the model has is missing in `state`.
    """
    params, buffers = dict(model.named_parameters()), capture(model, optimizer).buffers
    missing = sorted(
        (params.keys() - state.params.keys()) | (buffers.keys() - state.buffers.keys())
    )
    if missing:
        raise UsageError(f"the generation does not hold {', '.join(missing[:3])}")
    for name, parameter in params.items():
        parameter.copy_(state.params[name])
    for name, buffer in buffers.items():
        buffer.copy_(state.buffers[name])
    moments: dict[str, dict[str, Tensor]] = {}
    for key, value in state.optimizer.items():
        name, _, moment = key.rpartition("/")
        moments.setdefault(name, {})[moment] = value
    optimizer.state.clear()
    for name, own_moments in moments.items():
        optimizer.state[params[name]] = own_moments
