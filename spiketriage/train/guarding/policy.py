"""What the guard does about what it sees: a policy maps three kinds of verdict to five actions.

This module holds settings and their order only; it never looks at a value of training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from spiketriage.detect.detector import Trigger
from spiketriage.errors import UsageError

Action = Literal["none", "alert", "skip", "rollback", "stop"]
Kind = Literal["nonfinite", "outlier", "drift"]

ACTIONS: tuple[Action, ...] = get_args(Action)  # mildest first: of several the gravest is taken
KINDS: tuple[Kind, ...] = get_args(Kind)
_KIND_OF: dict[Trigger, Kind] = {
    "nonfinite": "nonfinite",
    "missing": "nonfinite",
    "vanished": "nonfinite",
    "band": "outlier",
    "ratio": "outlier",
    "start-up": "outlier",
    "lasting": "drift",
    "climb": "drift",
    "loss-scale": "drift",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What to do about each kind of verdict; all ranks hold the same policy.

    - `nonfinite`: a loss or norm that is NaN, infinite, missing, or vanished to zero.
    - `outlier`: one value out of its two-sided band, or beyond k × its running median.
    - `drift`: a lasting shift, a slow climb, a loss scale that sinks. It is known after the update,
      so that a skip
      would come too late: alert, rollback or stop.

    In the first `warmup_steps` steps only nonfinites act; the others are learned from as ever. The
    verdict that comes `skips_before_rollback` times becomes a rollback (None: never), and the
    `max_repeats`-th of one kind without progress stops. Progress is `progress_steps` steps in a row
    that were taken and lie behind the furthest bad step: what is trained again after a rollback is
    none.
    """

    nonfinite: Action = "skip"
    outlier: Action = "alert"
    drift: Action = "alert"
    warmup_steps: int = 0
    skips_before_rollback: int | None = None
    max_repeats: int = 5
    progress_steps: int = 20

    def __post_init__(self) -> None:
        unknown = [one for one in (self.nonfinite, self.outlier, self.drift) if one not in ACTIONS]
        if unknown:
            raise UsageError(f"actions {unknown} do not exist; there are {list(ACTIONS)}")
        if self.drift == "skip":
            raise UsageError(
                "a drift is known only after the update, so it cannot be skipped",
                hint="use rollback",
            )
        if self.skips_before_rollback is None:
            skips = 1
        else:
            skips = self.skips_before_rollback
        counts = (self.max_repeats, self.progress_steps, skips)
        if min(counts) < 1 or self.warmup_steps < 0:
            raise UsageError(
                "max_repeats, progress_steps and skips_before_rollback are at least 1, "
                "warmup_steps 0"
            )

    @property
    def may_roll_back(self) -> bool:
        """Whether a rollback can be the outcome."""
        return self.skips_before_rollback is not None or "rollback" in (
            self.nonfinite,
            self.outlier,
            self.drift,
        )

    def action(self, kind: Kind, step: int) -> Action:
        """The action for a verdict of `kind` at `step`, before anything is counted."""
        if kind != "nonfinite" and step < self.warmup_steps:
            return "none"
        action: Action = getattr(self, kind)
        return action


def kind_of(trigger: Trigger) -> Kind:
    """The kind of a trigger of `spiketriage.detect.detector`."""
    return _KIND_OF[trigger]
