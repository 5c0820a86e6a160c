"""Which parameters an optimizer's integer keys mean, where order and shapes leave one answer.

This module never guesses: two possible assignments are no assignment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]
_MAX_STATES = 256  # that many partial assignments at once are ambiguity enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A parameter by name and shape."""

    name: str
    shape: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A way to get so far: the last group that was taken, and where the step before it stood.

    `num_ways` counts the ways there are, and 2 stands for more.
    """

    num_ways: int
    group: int
    before: tuple[int, ...]


def assign(
    parameters: Sequence[Named], groups: Sequence[Sequence[int]], shapes: Mapping[int, Shape]
) -> Mapping[int, str]:
    """The parameter of each key, or nothing where the answer is not unique.

    `parameters` are in module order. Each group's keys are a subsequence of it, as every trainer
    builds them (decayed and not decayed, say). `shapes` are those of the state tensors; keys
    without a shape match any parameter.
    """
    if sum(map(len, groups)) != len(parameters) or not shapes:
        return {}
    start = (0,) * len(groups)
    layers: list[dict[tuple[int, ...], _Step]] = [
        {start: _Step(num_ways=1, group=-1, before=start)}
    ]
    for parameter in parameters:
        layers.append(_next_layer(layers[-1], parameter, groups, shapes))
        if len(layers[-1]) > _MAX_STATES:
            return {}
    at = tuple(map(len, groups))
    if at not in layers[-1] or layers[-1][at].num_ways != 1:
        return {}
    owners: dict[int, str] = {}
    for parameter, layer in zip(reversed(parameters), reversed(layers), strict=False):
        step = layer[at]
        owners[groups[step.group][step.before[step.group]]] = parameter.name
        at = step.before
    return owners


def _next_layer(
    layer: Mapping[tuple[int, ...], _Step],
    parameter: Named,
    groups: Sequence[Sequence[int]],
    shapes: Mapping[int, Shape],
) -> dict[tuple[int, ...], _Step]:
    following: dict[tuple[int, ...], _Step] = {}
    for at, step in layer.items():
        for number, group in enumerate(groups):
            if at[number] == len(group):
                continue
            key = group[at[number]]
            if shapes.get(key, parameter.shape) != parameter.shape:
                continue
            after = (*at[:number], at[number] + 1, *at[number + 1 :])
            num_ways = step.num_ways
            if after in following:
                num_ways += following[after].num_ways
            following[after] = _Step(num_ways=min(2, num_ways), group=number, before=at)
    return following
