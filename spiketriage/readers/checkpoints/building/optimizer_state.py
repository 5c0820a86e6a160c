"""An optimizer's state_dict as facts: its tensors by parameter, its groups, the step it counted.

This module never guesses: integer keys that could mean several parameters keep their numbers, and
a note says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spiketriage.nouns.checkpoint import StatedStep
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder
from spiketriage.readers.checkpoints.building.optimizer_order import Named, Shape, assign
from spiketriage.readers.checkpoints.building.state_tree import (
    Source,
    add_field,
    add_tensors,
    is_step,
)
from spiketriage.readers.checkpoints.files.torch_values import TensorRef
from spiketriage.readers.inert import attribute, plain_text
from spiketriage.readers.json_file import is_count

_MAX_STEPS_READ = 10_000  # a step for each parameter; they are alike, so the first ones will do
_SHOWN_STEPS = 3
_BUFFERS = (".running_mean", ".running_var", ".inv_freq")  # floating-point tensors nobody trains
# states that are shaped as their parameter is
_SAME_SHAPE = frozenset(
    {
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "momentum_buffer",
        "square_avg",
        "sum",
        "acc_delta",
        "exp_inf",
    }
)


def is_optimizer(value: Any) -> bool:
    """Whether an unpickled value is what an optimizer's `state_dict()` returns."""
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("state"), Mapping)
        and "param_groups" in value
    )


def add_optimizer(
    builder: CheckpointBuilder,
    value: Any,
    source: Source,
    *,
    prefix: str = "optimizer",
    order: Sequence[Named] | None = None,
    suffix: str = "",
) -> None:
    """Take an optimizer's state_dict: `state` by parameter, `param_groups`, and its own step.

    Tensors are named `<prefix>.state.<parameter or key>.<state>`. Integer keys are matched with the
    parameters in `order`, by default those that were read so far.
    """
    state, groups = attribute(value, "state"), attribute(value, "param_groups")
    if not isinstance(state, Mapping):
        return
    if order is None:
        order = order_of(builder)
    owners = _owners(state, groups, order)
    if owners is None:
        owners = {}
        builder.notes.append(
            f"{source.label}: which parameter the keys of {prefix}.state mean is ambiguous"
        )
    for key, item in state.items():
        if isinstance(key, int):
            owner = owners.get(key, "")
        else:
            owner = plain_text(key)
        name = f"{prefix}.state.{owner or plain_text(key)}"
        add_tensors(builder, item, source, "optimizer", name, parameter=owner, suffix=suffix)
    if groups is not None:
        add_field(builder, "config", f"{prefix}.param_groups", groups, source)
    _add_steps_of_state(builder, state, source, prefix)


def order_of(builder: CheckpointBuilder) -> list[Named]:
    """The trained parameters so far in module order; a tied weight has one owner."""
    seen: set[tuple[str, int, int]] = set()
    order = []
    for tensor in builder.tensors:
        is_trained = tensor.dtype.startswith(("F", "BF")) and not tensor.name.endswith(_BUFFERS)
        if tensor.role != "parameter" or not is_trained:
            continue
        places = set()
        for chunk in tensor.chunks:
            if chunk.end > chunk.start:
                places.add((chunk.path, chunk.start, chunk.end))
        if places and places <= seen:
            continue
        seen |= places
        order.append(Named(name=tensor.name, shape=tensor.shape))
    return order


def _owners(
    state: Mapping[Any, Any], groups: Any, order: Sequence[Named]
) -> Mapping[int, str] | None:
    """Parameter names by integer key; None where they are ambiguous.

    There is nothing to find for an optimizer that has the names itself.
    """
    if not any(isinstance(key, int) for key in state):
        return {}
    listed = _listed(groups)
    if listed is None:
        return None
    named = _named_by_groups(groups, listed)
    if named is not None:
        return named
    return assign(order, listed, _shapes(state)) or None


def _listed(groups: Any) -> list[Sequence[int]] | None:
    """The keys in each group; None unless every group lists some, and none is listed twice."""
    if not isinstance(groups, (list, tuple)) or not groups:
        return None
    listed: list[Sequence[int]] = []
    seen: set[int] = set()
    for group in groups:
        keys = attribute(group, "params")
        if not isinstance(keys, (list, tuple)) or not all(map(is_count, keys)):
            return None
        listed.append(keys)
        seen.update(keys)
    if len(seen) != sum(map(len, listed)):
        return None
    return listed


def _named_by_groups(groups: Any, listed: Sequence[Sequence[int]]) -> dict[int, str] | None:
    """The names that newer versions of torch keep in each group; None unless all groups do."""
    owners: dict[int, str] = {}
    for group, keys in zip(groups, listed, strict=True):
        names = attribute(group, "param_names")
        if not isinstance(names, (list, tuple)) or len(names) != len(keys):
            return None
        owners.update(zip(keys, map(str, names), strict=True))
    return owners


def _shapes(state: Mapping[Any, Any]) -> dict[int, Shape]:
    """The shape of a parameter by integer key, from a state that is shaped as it is."""
    shapes: dict[int, Shape] = {}
    for key, item in state.items():
        if not isinstance(key, int) or not isinstance(item, Mapping):
            continue
        for name, tensor in item.items():
            if name in _SAME_SHAPE and isinstance(tensor, TensorRef):
                shapes[key] = tensor.shape
    return shapes


def _add_steps_of_state(
    builder: CheckpointBuilder, state: Mapping[Any, Any], source: Source, prefix: str
) -> None:
    contents = source.contents
    keys: dict[int, str] = {}  # by step, the first state that counted it
    for number, (key, item) in enumerate(state.items()):
        if number == _MAX_STEPS_READ:
            break
        step = contents.scalar(attribute(item, "step"))
        if is_step(step):
            keys.setdefault(int(step or 0), plain_text(key))
    if keys:
        builder.steps.append(StatedStep(source=f"{source.label}: {prefix} step", step=max(keys)))
    if len(keys) > 1:
        first = sorted(keys.items())[:_SHOWN_STEPS]
        listed = ", ".join(f"{step} (state {key})" for step, key in first)
        builder.notes.append(f"{source.label}: the steps of {prefix}.state disagree: {listed}")
