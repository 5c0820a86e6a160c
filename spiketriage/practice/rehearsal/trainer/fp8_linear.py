"""Linear layers through emulated FP8 with delayed scaling, and their scales as state of the run.

The head, the embeddings and a router are never FP8; a pass in fp32 goes around it and teaches the
scales nothing.
"""

# A length of the amax history.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch.distributed as dist
from torch import Tensor, nn

from spiketriage.train.recording.fp8_signals import record_fp8
from spiketriage.train.recording.step_recorder import StepRecorder
from spiketriage.train.stabilizers import fp8

from .config import Config
from .linear import Linear
from .passes import Cast, Pass, Trace
from .precision import rounded

HISTORY_LEN = 16  # passes, of which a step has one a microbatch


class Fp8Linear(Linear):
    """Inputs and weight in E4M3, the gradient in E5M2; amax is that of all ranks together."""

    def __init__(self, num_inputs: int, num_outputs: int, place: str) -> None:
        super().__init__(num_inputs, num_outputs, place)
        self.scales = fp8.linear_scales(history_len=HISTORY_LEN, group=dist.group.WORLD)

    def forward(self, inputs: Tensor, how: Pass, trace: Trace) -> Tensor:
        """The product of the quantised operands, rounded."""
        if how.precision == "fp32":
            return super().forward(inputs, how, trace)
        trace.casts += [_cast(inputs, self.scales.inputs), _cast(self.weight, self.scales.weight)]
        outputs = fp8.linear(inputs, self.weight, self.scales)
        if outputs.requires_grad:
            # Runs before the layer's own backward, which learns this gradient's amax.
            hook = partial(self._see_gradient, trace)
            outputs.register_hook(hook)  # type: ignore[no-untyped-call]
        return rounded(outputs, self.place, how.precision)

    def _see_gradient(self, trace: Trace, gradient: Tensor) -> None:
        trace.casts.append(_cast(gradient, self.scales.grad))


def linear_class(config: Config) -> type[Linear]:
    """The kind of linear layer that the blocks are made of."""
    if "fp8-scaling" in config.stabilizers:
        return Fp8Linear
    return Linear


def scale_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Copies of every scale and amax history by name, fp32; empty without FP8."""
    tensors: dict[str, Tensor] = {}
    for prefix, scales in _scales(model):
        tensors |= scales.state_tensors(prefix)
    return tensors


def put_scale_tensors(model: nn.Module, stored: Mapping[str, Tensor]) -> None:
    """Take scales and histories back, bit for bit.

    Raises:
        EvidenceError: one is missing in `stored`.
    """
    for prefix, scales in _scales(model):
        scales.load_state_tensors(prefix, stored)


def record_casts(trace: Trace, number: int, num_micro: int, record: StepRecorder) -> None:
    """The FP8 vectors of microbatch `number`, after its backward: a value a cast, in order."""
    for cast in trace.casts:
        record_fp8(
            record,
            cast.values,
            cast.scale,
            cast.dtype,
            history_A=cast.history_A,
            delay_steps=delay_steps(cast.history_A, number, num_micro),
        )


def delay_steps(history_A: Tensor, number: int, num_micro: int) -> int:
    """How many steps before microbatch `number` the largest amax of the history was seen.

    It is 0 where nothing was seen yet.
    """
    if not history_A.any():
        return 0
    num_passes = int(history_A.argmax()) + 1
    return max(0, -((number - num_passes) // num_micro))


def _cast(values: Tensor, scale: fp8.DelayedScale) -> Cast:
    # Learning replaces both tensors of the scale and never writes into them.
    return Cast(
        values=values.detach(), scale=scale.scale, history_A=scale.history_A, dtype=scale.form.dtype
    )


def _scales(model: nn.Module) -> Iterator[tuple[str, fp8.LinearScales]]:
    for name, layer in model.named_modules():
        if isinstance(layer, Fp8Linear):
            yield f"fp8/{name}", layer.scales
