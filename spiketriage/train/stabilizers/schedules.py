"""Learning rate as a pure function of the step: warm-up with cosine, and WSD.

WSD is warm-up, stable, decay.

It never counts steps itself: a resumed run asks for step n and gets what an uninterrupted one got,
to the bit.

Steps are counted from 1 (the first update), in optimizer steps: not in micro-batches, samples or
tokens. Python floats (fp64) throughout; nothing here carries a tensor, a mask or a gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from spiketriage.errors import RefusedError, UsageError

NAME = "schedule"
LIFTS = ("WarmupCosine", "WarmupStableDecay")
REMOVES = (
    "Large first steps on moments that know nothing yet, and learning rates that jump at a resume."
)
COST = "Nothing: a few Python floats a step; WSD asks for a decay before the model is at its best."
WHEN = "From step 0 of every run; WSD when the length of the run is not fixed."


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupCosine:
    """Linear warm-up to `peak`, cosine to `floor` at `total_steps`, then `floor`.

    It is equation 5 of arXiv 1608.03983, without restarts.
    """

    peak: float
    floor: float
    warmup_steps: int
    total_steps: int

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_steps < self.total_steps:
            raise UsageError(
                f"{self.warmup_steps} warm-up steps do not fit in {self.total_steps} steps"
            )

    def lr(self, step: int) -> float:
        """Learning rate of update `step`."""
        _counted(step)
        if step <= self.warmup_steps:
            return self.peak * step / self.warmup_steps
        progress = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        return self.floor + (self.peak - self.floor) * 0.5 * (
            1 + math.cos(math.pi * min(progress, 1.0))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupStableDecay:
    """Linear warm-up to `peak`, constant to `decay_start`, down to `floor` in `decay_steps`.

    The decay is `1 - sqrt(progress)` (arXiv 2405.18392, section 3, better than linear there); the
    shape as a whole is WSD of MiniCPM (arXiv 2404.06395, section 4).
    """

    peak: float
    floor: float
    warmup_steps: int
    decay_start: int
    decay_steps: int

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_steps <= self.decay_start or self.decay_steps < 1:
            raise UsageError(
                f"decay from {self.decay_start} in {self.decay_steps} after "
                f"{self.warmup_steps} of warm-up"
            )

    def lr(self, step: int) -> float:
        """Learning rate of update `step`."""
        _counted(step)
        if step < self.warmup_steps:
            return self.peak * step / self.warmup_steps
        progress = (step - self.decay_start) / self.decay_steps
        return self.floor + (self.peak - self.floor) * (1 - math.sqrt(min(max(progress, 0.0), 1.0)))

    def extended(self, *, resume_step: int, decay_start: int) -> WarmupStableDecay:
        """The schedule of a run that goes on from `resume_step` and decays later (or earlier).

        Every step up to `resume_step` keeps its learning rate, so the run is continuous.

        Raises:
            RefusedError: `resume_step` lies inside the decay of this schedule or of the new one.
        """
        if resume_step > min(self.decay_start, decay_start):
            raise RefusedError(
                f"step {resume_step} lies inside the decay from "
                f"{min(self.decay_start, decay_start)}",
                hint=f"resume from a generation of step {min(self.decay_start, decay_start)} or "
                "older",
            )
        return replace(self, decay_start=decay_start)


def _counted(step: int) -> None:
    if step < 1:
        raise UsageError(f"steps are counted from 1, not {step}")
