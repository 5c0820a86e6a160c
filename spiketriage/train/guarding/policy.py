"""What the guard does about what it sees: a policy maps three kinds of verdict to five actions.

This module holds settings and their order only; it never looks at a value of training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from spiketriage.detect.alarms import Over
from spiketriage.detect.detector import Alarm, Trigger
from spiketriage.errors import UsageError

Action = Literal["none", "alert", "skip", "rollback", "stop"]
Kind = Literal["nonfinite", "outlier", "drift"]

ACTIONS: tuple[Action, ...] = get_args(Action)  # mildest first: of several the gravest is taken
INTERVENTIONS: tuple[Action, ...] = ("skip", "rollback", "stop")  # what changes the run
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

# What an outlier must come to before a guard gives up an update, or more, for it: so many scales,
# and so much in absolute terms. The bar for an alert is 4 to 15 scales, and healthy runs pass that
# now and then; a page costs a look, but a skip changes the run. Among 422,400 healthy steps made by
# `tests/bench/bench_detection.py` (seeds 1 and 2) and 43,522 of real logs, the outliers of ten
# scales and more (up to 19.8) lie 0.6 nats of loss off, or 17.5 times the usual gradient norm.
FAR_SCALES = 10.0
FAR_NATS = 1.0
FAR_RATIO = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What to do about each kind of verdict; all ranks hold the same policy.

    - `nonfinite`: a loss or norm that is NaN, infinite, missing, or vanished to zero.
    - `outlier`: one value out of its two-sided band, or beyond k × its running median. One that is
      not far out, as `is_far_out` says, is an alert at most, whatever is asked for here.
    - `drift`: a lasting shift, a slow climb, a loss scale that sinks. It is known after the update,
      when a skip would come too late: alert, rollback or stop.

    In the first `warmup_steps` steps only nonfinites act; the others are learned from as ever. The
    verdict that comes `skips_before_rollback` times becomes a rollback (None: never), and the
    `max_repeats`-th of one kind without progress stops. Progress is `progress_steps` steps in a row
    that were taken and lie behind the furthest bad step; steps that are trained again after a
    rollback are no progress.
    """

    nonfinite: Action = "skip"
    outlier: Action = "alert"
    drift: Action = "alert"
    warmup_steps: int = 0
    skips_before_rollback: int | None = None
    max_repeats: int = 5
    progress_steps: int = 20

    def __post_init__(self) -> None:
        actions = (self.nonfinite, self.outlier, self.drift)
        unknown = [action for action in actions if action not in ACTIONS]
        if unknown:
            raise UsageError(f"actions {unknown} do not exist; there are {list(ACTIONS)}")
        if self.drift == "skip":
            raise UsageError(
                "a drift is known only after the update, so it cannot be skipped",
                hint="use rollback",
            )
        counts = [self.max_repeats, self.progress_steps]
        if self.skips_before_rollback is not None:
            counts.append(self.skips_before_rollback)
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

    def action(self, kind: Kind, step: int, *, is_far_out: bool = True) -> Action:
        """The action for a verdict of `kind` at `step`, before anything is counted."""
        if kind != "nonfinite" and step < self.warmup_steps:
            return "none"
        action: Action = getattr(self, kind)
        if kind == "outlier" and action in INTERVENTIONS and not is_far_out:
            return "alert"
        return action


def kind_of(trigger: Trigger | Over) -> Kind:
    """The kind of a trigger of `spiketriage.detect.detector`, which never says that it is over."""
    assert trigger != "over", "a guard feeds the detector, not episodes"
    return _KIND_OF[trigger]


def is_far_out(alarm: Alarm) -> bool:
    """Whether this outlier is so far out that training may be interfered with for it.

    Only loss and gradient norm have a say, and not at a run's start (`start-up`), where no scale is
    known yet; everything else pages.
    """
    if alarm.trigger == "start-up" or alarm.score < FAR_SCALES:
        return False
    if alarm.signal == "loss":
        return abs(alarm.value - alarm.expected) >= FAR_NATS
    if alarm.signal == "grad_norm":
        ratio = alarm.value / alarm.expected
        return max(ratio, 1 / ratio) >= FAR_RATIO
    return False
