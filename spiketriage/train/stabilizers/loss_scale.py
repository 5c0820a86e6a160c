"""Dynamic loss scaling for fp16, whose state is one frozen record for the generation.

It never decides on one rank alone: an overflow anywhere in the group skips the step everywhere.

- Tensor: the loss is multiplied before backward, gradients are divided after their reduction and
  before clipping.
- Precision: powers of two, so scaling is exact in every binary format away from its limits;
  gradients must be fp32 (dividing fp16 gradients would underflow what the scale had saved), as
  `torch.amp.GradScaler` demands too.
- Skip: `unscale_` reports, the caller leaves out `optimizer.step()`; parameters, moments and
  scheduler are then untouched, not multiplied by 0. One host sync a step, to read the flag.
- Rule: arXiv 1710.03740, section 3.2, and `torch.amp.GradScaler`: after `interval` finite steps in
  a row twice the scale, after a nonfinite one half of it. GradScaler checks this rank's gradients
  only, and its state does not hold the skips.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from spiketriage.errors import EvidenceError, UsageError

NAME = "loss-scale"
LIFTS = ("ScaleState", "after", "unscale_")
REMOVES = (
    "fp16 gradients that underflow to zero or overflow to inf, and a scale that restarts wrong "
    "after a resume."
)
COST = "One pass over the gradients, one flag all-reduce and one host sync a step."
WHEN = "With fp16 only; bf16 and fp32 have the exponent range and need none."


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRule:
    """How the scale moves.

    `floor` is where it stops falling (a scale that stays there is an alarm, as in GLM-130B).
    """

    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    floor: float = 1.0
    ceiling: float = 2.0**24


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleState:
    """The scale, finite steps in a row, and skips in a row and in all."""

    scale: float = 2.0**16
    num_finite: int = 0
    num_skipped_in_row: int = 0
    num_skipped: int = 0

    def to_json(self) -> dict[str, Any]:
        """The state as JSON values; floats come back bit for bit."""
        return asdict(self)


def from_json(stored: Mapping[str, Any]) -> ScaleState:
    """The state that `to_json` wrote.

    Raises:
        EvidenceError: a field is missing, unknown, or not a number: a partial state is never
        completed by defaults.
    """
    fields = set(ScaleState.__dataclass_fields__)
    if set(stored) != fields or not all(
        isinstance(value, int | float) for value in stored.values()
    ):
        raise EvidenceError(f"loss-scale state: expected {sorted(fields)}, found {stored}")
    return ScaleState(**stored)


def after(state: ScaleState, *, finite: bool, rule: ScaleRule) -> ScaleState:
    """The state behind a step whose gradients were `finite` or not; pure."""
    if not finite:
        return ScaleState(
            scale=max(state.scale * rule.backoff, rule.floor),
            num_finite=0,
            num_skipped_in_row=state.num_skipped_in_row + 1,
            num_skipped=state.num_skipped + 1,
        )
    grown = state.num_finite + 1 == rule.interval
    return ScaleState(
        scale=min(state.scale * rule.growth, rule.ceiling) if grown else state.scale,
        num_finite=0 if grown else state.num_finite + 1,
        num_skipped_in_row=0,
        num_skipped=state.num_skipped,
    )


def unscale_(
    parameters: Iterable[Tensor], scale: float, *, group: dist.ProcessGroup | None = None
) -> bool:
    """Divide every gradient by `scale` in place; whether all are finite on every rank of `group`.

    Collective when a process group exists (`group` = all ranks of the model, whatever they hold).

    Raises:
        UsageError: a gradient is fp16 or bf16.
    """
    flag: Tensor | None = None
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if isinstance(parameter.grad, DTensor):
            held = parameter.grad.to_local()
        else:
            held = parameter.grad
        if held.dtype in (torch.float16, torch.bfloat16):
            raise UsageError(
                f"gradients are unscaled in fp32, not {held.dtype}",
                hint="keep fp32 master parameters",
            )
        bad = ~torch.isfinite(held).all()
        flag = bad if flag is None else flag | bad
        held.mul_(1.0 / scale)
    if flag is None:
        overflow = torch.zeros(())
    else:
        overflow = flag.float()
    if dist.is_initialized():
        dist.all_reduce(overflow, op=dist.ReduceOp.MAX, group=group)
    return not bool(overflow)
