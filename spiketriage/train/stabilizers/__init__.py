"""Stabilizers: one small file each, to be lifted into anybody's model.

`STABILIZERS` lists them in bring-up order.

The guard is among them: it stands in the loop, not in the model, and takes the place where a loop
is ready for it.

This page never imports torch, so that the desk can list the members; their words are read from
their files.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

# Bring-up order: first what the loss and its gradient mean, then what the step does with them, then
# what only large, sparse or low-precision models need.
ORDER: tuple[str, ...] = (
    "stabilizers.cross_entropy",
    "stabilizers.accumulation",
    "stabilizers.init",
    "stabilizers.mup",
    "stabilizers.schedules",
    "stabilizers.clip",
    "guarding.guard",
    "stabilizers.loss_scale",
    "stabilizers.qk_norm",
    "stabilizers.softcap",
    "stabilizers.moe",
    "stabilizers.fp8",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stabilizer:
    """One member as its file describes it.

    `module` is its name below `spiketriage.train`, the rest its constants. `lifts` are the names to
    import from it, the one that belongs into a loop or a model first. `unseen` says, of a member
    that no configuration key and no switch of ours shows, why that is so.
    """

    module: str
    name: str
    lifts: tuple[str, ...]
    removes: str
    cost: str
    when: str
    unseen: str = ""


def described(module: str) -> Stabilizer:
    """What a member's file says of itself, read from its constants without importing it."""
    tree = ast.parse((_TRAIN / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    constants = {}
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id in (*_WORDS, _UNSEEN)
        ):
            constants[node.targets[0].id] = ast.literal_eval(node.value)
    required = {word.lower(): constants[word] for word in _WORDS}
    return Stabilizer(module=module, unseen=constants.get(_UNSEEN, ""), **required)


_TRAIN = Path(__file__).parent.parent
_WORDS = ("NAME", "LIFTS", "REMOVES", "COST", "WHEN")
_UNSEEN = "UNSEEN"  # the one constant that a member may leave out

STABILIZERS: tuple[Stabilizer, ...] = tuple(described(module) for module in ORDER)
