"""μP: width-independent updates for AdamW by scaled init, rate and output, and their check.

It never guesses a layer's role from its shape: the caller names the input and output layers, the
rest with two dimensions or more are hidden.

arXiv 2203.03466, table 8 (Adam), with m = width / base width, all relative to the base model so
that m = 1 is plain SP:

| role | std of init | learning rate | output multiplier | weight decay (AdamW applies lr · wd) |
|---|---|---|---|---|
| input, bias, gain (fan-in fixed) | base | base | 1 | base |
| hidden (both sides grow) | base / √m | base / m | 1 | base · m |
| output (fan-in grows) | base | base | 1 / m | base |

Attention logits scale with 1/K instead of 1/√K (definition 4.1), relative to the base: √base_K / K.
The decay of hidden weights is multiplied by m so that lr · wd stays put (arXiv 2405.13698). Adam's
eps is not scaled: it must stay far below the gradients (1e-8 or less), which shrink with width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spiketriage.errors import UsageError

NAME = "mup"
LIFTS = ("param_groups",)
REMOVES = "A learning rate that was stable in the small model and diverges in the wide one."
COST = (
    "One multiplication at the output; the coordinate check is a few steps of models of three "
    "or four widths."
)
WHEN = "Before the first run of a family of sizes; not in mid-run."


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Factors on the base model's values for one role."""

    init_std: float
    lr: float
    output: float
    weight_decay: float


def scaling(role: str, *, width: int, base_width: int) -> Scaling:
    """Factors of `input`, `hidden` or `output` at `width`.

    Raises:
        UsageError: no such role, or a width is not positive.
    """
    if min(width, base_width) < 1:
        raise UsageError(f"widths are positive, not {width} and {base_width}")
    m = width / base_width
    roles = {
        "input": Scaling(init_std=1.0, lr=1.0, output=1.0, weight_decay=1.0),
        "hidden": Scaling(init_std=m**-0.5, lr=1 / m, output=1.0, weight_decay=m),
        "output": Scaling(init_std=1.0, lr=1.0, output=1 / m, weight_decay=1.0),
    }
    if role not in roles:
        raise UsageError(f"roles are {sorted(roles)}, not {role!r}")
    return roles[role]


def attention_scale(head_width: int, *, base_head_width: int) -> float:
    """Factor on q·k: √base_K / K, which is 1/√K at the base."""
    return math.sqrt(base_head_width) / head_width


def role_of(name: str, parameter: Tensor, *, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """The role of a parameter.

    Its name begins with one of the named layers, or its shape has one axis.
    """
    if name.startswith(tuple(outputs)) and parameter.dim() >= 2:
        return "output"
    if name.startswith(tuple(inputs)) or parameter.dim() < 2:
        return "input"
    return "hidden"


def param_groups(
    named: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    width: int,
    base_width: int,
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> list[dict[str, Any]]:
    """Groups for AdamW, one a role; a schedule must multiply each group's own `lr`."""
    members: dict[str, list[nn.Parameter]] = {}
    for name, parameter in named:
        members.setdefault(role_of(name, parameter, inputs=inputs, outputs=outputs), []).append(
            parameter
        )
    groups = []
    for role, parameters in members.items():
        factor = scaling(role, width=width, base_width=base_width)
        group = {
            "params": parameters,
            "lr": lr * factor.lr,
            "weight_decay": weight_decay * factor.weight_decay,
        }
        groups.append(group)
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """`change[layer][width]`.

    Root mean square of how far a layer's output moved in the steps, over elements, fp64.

    `slope[layer]` is its exponent in width by least squares of the logarithms: 0 under μP, positive
    when it blows up.
    """

    change: Mapping[str, Mapping[int, float]]
    slope: Mapping[str, float]


Built = tuple[nn.Module, Callable[[], None]]


def coordinate_check(
    build: Callable[[int, int], Built],
    *,
    widths: Sequence[int],
    layers: Sequence[str],
    inputs: Any,
    num_steps: int = 3,
    num_seeds: int = 2,
) -> Coordinates:
    """Scales of activation changes per width after a few steps (arXiv 2203.03466, appendix D.1).

    `build(width, seed)` gives a model and a function that takes one training step of it; `layers`
    are names of submodules whose output is a tensor; the model is called on `inputs` before and
    after.

    Raises:
        UsageError: fewer than two widths, or a layer is not in the model.
    """
    if len(set(widths)) < 2:
        raise UsageError("a coordinate check compares at least two widths")
    change: dict[str, dict[int, float]] = {layer: {} for layer in layers}
    for width in widths:
        squares = dict.fromkeys(layers, 0.0)
        for seed in range(num_seeds):
            model, step = build(width, seed)
            before = _outputs(model, layers, inputs)
            for _ in range(num_steps):
                step()
            after = _outputs(model, layers, inputs)
            for layer in layers:
                squares[layer] += float((after[layer] - before[layer]).square().mean()) / num_seeds
        for layer in layers:
            change[layer][width] = math.sqrt(squares[layer])
    return Coordinates(change=change, slope={layer: _exponent(change[layer]) for layer in layers})


def _outputs(model: nn.Module, layers: Sequence[str], inputs: Any) -> dict[str, Tensor]:
    """Outputs of the named submodules in one pass without gradients, fp64."""
    taken: dict[str, Tensor] = {}

    def keep(layer: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(_: nn.Module, __: Any, output: Tensor) -> None:
            taken[layer] = output.detach().double()

        return hook

    modules = dict(model.named_modules())
    missing = [layer for layer in layers if layer not in modules]
    if missing:
        raise UsageError(f"the model has no layers {missing}")
    handles = [modules[layer].register_forward_hook(keep(layer)) for layer in layers]
    try:
        with torch.no_grad():
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return taken


def _exponent(by_width: Mapping[int, float]) -> float:
    """Least-squares slope of log value over log width; nonfinite or zero values give inf."""
    if not all(0 < value < math.inf for value in by_width.values()):
        return math.inf
    x = [math.log(width) for width in by_width]
    y = [math.log(value) for value in by_width.values()]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)
