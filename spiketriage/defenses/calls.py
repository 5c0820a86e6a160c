"""The names to lift from `spiketriage.train`, and what calls in a trainer's source say of them.

This module never takes a default for a setting: a call under a condition, or with a computed
amount, leaves the question open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spiketriage.defenses.weigh import Evidence, Mark
from spiketriage.readers.source_calls import Call
from spiketriage.train.stabilizers import STABILIZERS

_MODULES = {member.name: f"spiketriage.train.{member.module}" for member in STABILIZERS}
_OURS: dict[str, str] = {}
for _member in STABILIZERS:
    for _symbol in _member.lifts:
        _OURS[f"{_MODULES[_member.name]}.{_symbol}"] = _member.name
del _OURS[f"{_MODULES['guard']}.Policy"]  # a policy alone guards nothing
_OTHERS = {
    "torch.nn.utils.clip_grad_norm_": "global-clip",
    "torch.nn.utils.clip_grads_with_norm_": "global-clip",
    "torch.amp.GradScaler": "loss-scale",
    "torch.cuda.amp.GradScaler": "loss-scale",
}
# Where the stabilizer is an amount of the call: the argument by name and by position, and what it
# is when it is left out. A clipping threshold is often computed, and infinite in code that only
# measures the norm.
_AMOUNTS: Mapping[str, tuple[str, str, object]] = {
    "cross_entropy_sum": ("z_coefficient", "", 0.0),
    "linear_cross_entropy_sum": ("z_coefficient", "", 0.0),
    "GradScaler": ("enabled", "", True),
    "WarmupCosine": ("warmup_steps", "", 0),
    "WarmupStableDecay": ("warmup_steps", "", 0),
    "clip_": ("max_norm", "1", None),
    "clip_grad_norm_": ("max_norm", "1", None),
    "clip_grads_with_norm_": ("max_norm", "1", None),
}


def import_line(name: str) -> str:
    """The line that brings a stabilizer into a trainer."""
    lifts = next(member.lifts for member in STABILIZERS if member.name == name)
    return f"from {_MODULES[name]} import {', '.join(lifts)}"


def from_calls(calls: Iterable[Call]) -> list[Evidence]:
    """What the calls of a source tree say: one piece of evidence for each call of a stabilizer."""
    evidence = []
    for call in calls:
        stabilizer = _OURS.get(call.name) or _OTHERS.get(call.name)
        if stabilizer is None:
            continue
        symbol = call.name.rpartition(".")[2]
        mark, how = _mark(call, symbol)
        evidence.append(
            Evidence(
                stabilizer=stabilizer,
                mark=mark,
                layer="source",
                text=f"{symbol} is called {how}",
                where=f"{call.path.name}:{call.line}",
            )
        )
    return evidence


def _mark(call: Call, symbol: str) -> tuple[Mark, str]:
    """What a call says, and how it is made."""
    if symbol in _AMOUNTS:
        keyword, position, left_out = _AMOUNTS[symbol]
        amount = call.arguments.get(keyword, call.arguments.get(position, left_out))
        if amount is None:
            return "hint", f"with {keyword} computed at run time"
        if not amount:
            return "hint", f"without {keyword}"
    if call.is_conditional:
        return "hint", "under a condition"
    return "on", "under no condition"
