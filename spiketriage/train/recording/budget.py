"""How much the recorder may cost, and what it leaves out first when it costs more.

It never thins what the trainer itself logs, nor loss, gradient norm and clipping, and never changes
a level unseen.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

WINDOW_STEPS = 32
WARM_UP_STEPS = 8  # first steps allocate, compile and fill caches
CALM_WINDOWS = 8  # so many windows far below the budget before a level is taken back


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What is recorded.

    Each tensor's digest every `digest_period` steps, layers every `layer_period`.

    `sample_stride`: 1 measures every element of large tensors for update norm and RMS_t; s measures
    1 in s. They are taken every `update_period` steps; with sharded parameters in every step, since
    ranks on different levels would otherwise wait for each other in a collective that one of them
    leaves out.
    """

    digest_period: int = 1
    sample_stride: int = 1
    layer_period: int = 1
    update_period: int = 1

    def at_least(self, other: Level) -> Level:
        """The sparser of two levels in each respect."""
        return Level(
            **{
                each.name: max(getattr(self, each.name), getattr(other, each.name))
                for each in fields(self)
            }
        )


# Periods are powers of two, so that ranks on different levels still digest common tensors.
LEVELS: tuple[Level, ...] = (
    Level(),
    Level(digest_period=8),
    Level(digest_period=32, sample_stride=16),
    Level(digest_period=128, sample_stride=64, layer_period=4),
    Level(digest_period=1024, sample_stride=256, layer_period=16, update_period=8),
)


class Budget:
    """Watches the share of step time that the recorder takes and chooses the level.

    `share` None records everything.
    """

    def __init__(self, share: float | None) -> None:
        self.share = share
        self.number = 0
        self._num_seen = 0
        self._spent_s = self._step_s = 0.0
        self._num_steps = self._num_calm = 0
        self._calm_needed = CALM_WINDOWS
        self._said_last = False

    @property
    def level(self) -> Level:
        """What is recorded now."""
        return LEVELS[self.number]

    def add(self, spent_s: float, step_s: float) -> str:
        """Count one step, `spent_s` of whose `step_s` seconds were the recorder's.

        Returns a notice when the level changes, else an empty text.
        """
        self._num_seen += 1
        if self.share is None or self._num_seen <= WARM_UP_STEPS:
            return ""
        self._spent_s += spent_s
        self._step_s += step_s
        self._num_steps += 1
        if self._num_steps < WINDOW_STEPS:
            return ""
        seen = self._spent_s / max(self._step_s - self._spent_s, 1e-9)
        self._spent_s = self._step_s = 0.0
        self._num_steps = 0
        return self._judge(seen, self.share)

    def _judge(self, seen: float, share: float) -> str:
        if seen > share:
            self._num_calm = 0
            if self.number + 1 < len(LEVELS):
                self.number += 1
                # A level that was taken back too early is tried again later and later.
                self._calm_needed *= 2
                return f"recorder took {seen:.2%} of step time, budget {share:.2%}: {self._words()}"
            if self._said_last:
                return ""
            self._said_last = True
            return f"recorder takes {seen:.2%} of step time at its last level, budget {share:.2%}"
        self._num_calm += 1
        if seen >= share / 4:
            self._num_calm = 0
        if self.number and self._num_calm >= self._calm_needed:
            self.number -= 1
            self._num_calm = 0
            return f"recorder took {seen:.2%} of step time, budget {share:.2%}: {self._words()}"
        return ""

    def _words(self) -> str:
        level = self.level
        return (
            f"level {self.number}: digest of each tensor every {level.digest_period} "
            f"steps, 1 in {level.sample_stride} "
            "elements of large tensors for update norm and RMS_t, these every "
            f"{level.update_period} steps, "
            f"layers every {level.layer_period} steps"
        )
