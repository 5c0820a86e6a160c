"""What FP8 costs in a step, one tensor at a time, as vectors of `wire.chain.SERIES`.

It never quantises a tensor for anybody: it measures what a scale, as used, does to the values.
"""

# A length of the amax history.

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from spiketriage.train.recording.recorder import Recorder
from spiketriage.train.recording.step_recorder import StepRecorder


@torch.no_grad()
def record_fp8(
    record: StepRecorder,
    values: Tensor,
    scale: Tensor,
    dtype: torch.dtype,
    *,
    history_A: Tensor | None = None,
    delay_steps: int = 0,
) -> None:
    """amax, saturated and underflowed share of `values` times `scale` in an 8-bit float `dtype`.

    Called once a tensor, in an order that does not change. `delay_steps`: 0 for current scaling;
    with delayed scaling, how many steps ago the amax behind the scale was seen. Shares are of all
    elements.
    """
    with record.clock:
        held = values.detach()
        ends = torch.aminmax(held)
        scaled = held.float() * scale
        limits = torch.finfo(dtype)
        num = max(held.numel(), 1)
        # Half the smallest subnormal rounds to zero (ties to even); above it, something is left.
        underflow = (scaled.abs() <= limits.smallest_normal * limits.eps / 2) & (held != 0)
        record.series("fp8/amax", torch.maximum(ends.max, -ends.min).float())
        record.series("fp8/saturated_share", (scaled.abs() > limits.max).sum() / num)
        record.series("fp8/underflow_share", underflow.sum() / num)
        record.series("fp8/scale", scale.detach().float().clone())
        record.series("fp8/scale_delay_steps", [float(delay_steps)])
        if history_A is not None:
            record.series("fp8/amax_history", history_A.detach().max())


def record_fallback(record: StepRecorder, recorder: Recorder, names: Collection[str]) -> None:
    """Tensors that should be FP8 and are kept wider in this step; a notice names each new set."""
    record.log({"fp8/num_fallback": float(len(names))})
    if names:
        recorder.notice_once("fp8-fallback", f"not in FP8: {', '.join(sorted(names))}")
