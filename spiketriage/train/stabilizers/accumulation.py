"""Accumulation of gradients over micro-batches in fp32, weighted by token and not by micro-batch.

It never averages micro-batches: each adds the gradient of its *sum* of losses, and one division by
the count ends the step.

- Tensor: `.grad` of every parameter after each backward of a loss sum; moved into an fp32 buffer
  and cleared.
- Precision: buffers and division in fp32 (fp64 for fp64 parameters). Equal to one fp32 pass over
  the full batch within 1e-5 of its largest element (rounding of the order of summation); bf16
  `.grad` accumulation is off by about 1e-2.
- Masking: none here; padding is already out of the sum and of the count (`cross_entropy`).
- Range: a sum's gradient is N times a mean's: with fp16 compute multiply the loss by 1/N, known
  before the pass, and finish with a count of 1. Sums are linear, so both are the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from spiketriage.errors import RefusedError

NAME = "fp32-accumulation"
LIFTS = ("Accumulator",)
REMOVES = (
    "Small gradients lost when bf16 sums over micro-batches, and short micro-batches weighing "
    "as much as full ones."
)
COST = "4 bytes a local parameter element, and one addition a micro-batch."
WHEN = "Whenever there is more than one micro-batch; the buffer matters when parameters are bf16."


class Accumulator:
    """fp32 sums of the gradients of named parameters; of DTensors, of this rank's shard."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = dict(parameters)
        self._sums: dict[str, Tensor] = {}
        self.num_micro = 0

    def add(self) -> None:
        """Move every `.grad` into its buffer and clear it, after each `backward()` of a sum."""
        for name, parameter in self._parameters.items():
            if parameter.grad is None:
                continue
            grad = parameter.grad.detach().to(
                torch.promote_types(parameter.grad.dtype, torch.float32)
            )
            if name in self._sums:
                self._sums[name] += grad
            else:
                self._sums[name] = grad.clone()
            parameter.grad = None
        self.num_micro += 1

    def take(self, num_valid_global: Tensor | float) -> dict[str, Tensor]:
        """Gradients over the global count, wide, by name; empties the buffers.

        Where ranks each hold a part of the sum, reduce (sum) what comes back. A parameter that no
        micro-batch reached is absent. To feed an optimizer, assign to `.grad` of fp32 master
        parameters; a cast to bf16 happens once, here.

        Raises:
            RefusedError: nothing was added since the last `take`.
        """
        if not self.num_micro:
            raise RefusedError("no micro-batch was added since the last update")
        taken, self._sums, self.num_micro = self._sums, {}, 0
        return {name: total.div_(num_valid_global) for name, total in taken.items()}
