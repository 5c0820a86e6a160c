"""What the ranks have decided about a step, as the loop reads it.

This module holds the outcome only; it never judges, votes or acts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spiketriage.detect.detector import Alarm
from spiketriage.train.guarding.policy import ACTIONS, INTERVENTIONS, KINDS, Action, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What all ranks do at `step`: equal on every rank, but for `alarms`, which are its own.

    `kind` is the gravest verdict's (None: nothing was wrong), `rank` the lowest rank that brought
    it, `num_repeats` how often it has come without progress; `nonfinite_rank` the lowest rank that
    saw a nonfinite. `generation` and `skip_ids` (of all ranks, in the order of ranks) are there for
    a rollback.
    """

    step: int
    action: Action
    kind: Kind | None
    rank: int | None
    nonfinite_rank: int | None
    num_repeats: int
    alarms: tuple[Alarm, ...]
    generation: Any = None
    skip_ids: tuple[Any, ...] = ()

    @property
    def skip(self) -> bool:
        """Whether the update must not be taken; a rollback's is not either."""
        return self.action in INTERVENTIONS

    @property
    def rollback(self) -> bool:
        """Whether `generation` is to be loaded."""
        return self.action == "rollback"

    @property
    def sentence(self) -> str:
        """The decision for a person, the same on every rank; empty when nothing was wrong."""
        if self.kind is None:
            return ""
        times = ""
        if self.num_repeats:
            times = f", number {self.num_repeats} without progress"
        return f"step {self.step}: {self.kind}, seen by rank {self.rank}{times}: {self.action}"

    def metrics(self) -> dict[str, float]:
        """For the recorder: the action's place in `ACTIONS`, the kind's place in `KINDS` plus 1."""
        kind = 0.0
        if self.kind is not None:
            kind = KINDS.index(self.kind) + 1.0
        return {
            "guard/action": float(ACTIONS.index(self.action)),
            "guard/kind": kind,
            "guard/skipped": float(self.skip),
            "guard/repeats": float(self.num_repeats),
        }


def no_verdict(step: int, action: Action = "none") -> Decision:
    """The decision where nothing was wrong; after a load, with the action that came before it."""
    return Decision(
        step=step,
        action=action,
        kind=None,
        rank=None,
        nonfinite_rank=None,
        num_repeats=0,
        alarms=(),
    )


def code_of(action: Action, kind: Kind) -> int:
    """A verdict as a number, so that the maximum over ranks is the gravest; 0 for no action."""
    if action == "none":
        return 0
    return ACTIONS.index(action) * len(KINDS) + len(KINDS) - 1 - KINDS.index(kind)


def verdict_of(code: int) -> tuple[Action, Kind | None]:
    """The action and the kind whose `code_of` this is."""
    if code == 0:
        return "none", None
    severity, place = divmod(code, len(KINDS))
    return ACTIONS[severity], KINDS[len(KINDS) - 1 - place]
