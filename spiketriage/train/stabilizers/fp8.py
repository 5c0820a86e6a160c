"""FP8 with per-tensor scales, current or delayed by an amax history, emulated on any device.

It never speeds anything up: it shows what E4M3 and E5M2 do to a model, and holds the state that a
generation must carry.

- Tensor: the two inputs of a product in E4M3, the gradient of its output in E5M2 (arXiv 2209.05433,
  section 3).
- Precision: amax and scales fp32; values are cast to the 8-bit dtype and back, products are
  accumulated in fp32. What comes back has the tensor's own dtype, so bf16 adds its own rounding
  (2^-9), which a real kernel does not. Clamping before the cast makes E5M2 saturate too (the bare
  cast gives inf there, and 448 in E4M3).
- Scale: largest · 2^-margin / amax, no rounding to a power of two. amax 0 or nonfinite keeps the
  scale that was there: an all-zero tensor must not give 1/0 (pytorch/ao#3356). Delayed scaling uses
  the maximum of the history (Transformer Engine's default), so a jump of amax saturates until the
  next step; that share is reported.
- Distribution: reduce amax over the ranks that share the tensor (`group`), not over all data ranks
  by habit (NVIDIA/Megatron-LM#442 diverged near 1,000 iterations that way).
- Gradient: straight through the casts; products of the backward pass use the quantised operands.
"""

# N rows, I input width, O output width, A length of the amax history.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from spiketriage.errors import EvidenceError

NAME = "fp8-scaling"
LIFTS = ("linear_scales", "linear")
REMOVES = "FP8 values that saturate or vanish unseen, and scales that are forgotten at a resume."
COST = (
    "Two casts a tensor here; in a real kernel one amax a tensor and, for current scaling, one "
    "more pass."
)
WHEN = "With FP8 only; current scaling first, delayed once saturation shares stay at zero."


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """An 8-bit float.

    Torch's dtype, its largest finite value, and `reach`, half a step beyond it.
    """

    name: str
    dtype: torch.dtype
    largest: float
    reach: float


E4M3 = Format(name="e4m3", dtype=torch.float8_e4m3fn, largest=448.0, reach=464.0)
E5M2 = Format(name="e5m2", dtype=torch.float8_e5m2, largest=57344.0, reach=61440.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """A tensor after its trip through 8 bits, in its dtype, and what that cost, fp32 ().

    Shares are of all elements: clipped by more than rounding would (beyond the reach), and nonzero
    that became zero.
    """

    values: Tensor
    amax: Tensor
    scale: Tensor
    saturated_share: Tensor
    underflow_share: Tensor


def amax_of(values: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Largest magnitude over the ranks of `group`, fp32 (); collective only if one is given."""
    if not values.numel():
        return torch.zeros((), device=values.device)
    amax = values.detach().abs().amax().float()
    if group is not None:
        dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
    return amax


def scale_for(amax: Tensor, kept: Tensor, form: Format, margin: int) -> Tensor:
    """The factor that brings `amax` to the largest value over 2^margin.

    `kept` where amax says nothing.
    """
    scale = form.largest * 2.0**-margin / amax
    return torch.where((amax > 0) & torch.isfinite(amax) & torch.isfinite(scale), scale, kept)


def quantise(values: Tensor, scale: Tensor, form: Format) -> Quantised:
    """`values` · scale, clamped, rounded to `form` (ties to even), and back; NaN stays NaN."""
    scaled = values.detach().float() * scale
    stored = scaled.clamp(-form.largest, form.largest).to(form.dtype).float()
    num = max(scaled.numel(), 1)
    return Quantised(
        values=(stored / scale).to(values.dtype),
        amax=amax_of(values),
        scale=scale,
        saturated_share=(scaled.abs() > form.reach).sum() / num,
        underflow_share=((stored == 0) & (values.detach() != 0)).sum() / num,
    )


def quantise_current(
    values: Tensor, form: Format, *, margin: int = 0, group: dist.ProcessGroup | None = None
) -> Quantised:
    """Quantise by the tensor's own amax.

    It is stateless and never saturates, but needs the amax before the cast.
    """
    previous_scale = torch.ones((), device=values.device)
    scale = scale_for(amax_of(values, group), previous_scale, form, margin)
    return quantise(values, scale, form)


class DelayedScale:
    """Scale of one tensor by the maximum of its last `history_len` amax values.

    A step's amax counts from the next step on.
    """

    def __init__(
        self,
        form: Format,
        *,
        history_len: int = 1024,
        margin: int = 0,
        group: dist.ProcessGroup | None = None,
        device: str = "cpu",
    ) -> None:
        self.form, self.margin, self.group = form, margin, group
        self.history_A = torch.zeros(history_len, device=device)
        self.scale = torch.ones((), device=device)
        self.last: Quantised | None = None

    def quantise(self, values: Tensor) -> Quantised:
        """Quantise by the scale as it stands, then learn the amax unless it is nonfinite."""
        self.last = quantise(values, self.scale, self.form)
        amax = amax_of(values, self.group)
        self.history_A = self.history_A.roll(1)
        self.history_A[0] = torch.where(torch.isfinite(amax), amax, 0.0)
        self.scale = scale_for(self.history_A.max(), self.scale, self.form, self.margin)
        return self.last

    def state_tensors(self, prefix: str) -> dict[str, Tensor]:
        """Copies of the state by name, fp32.

        `<prefix>/amax_history` (A,), newest first, and `<prefix>/scale` ().
        """
        return {
            f"{prefix}/amax_history": self.history_A.clone(),
            f"{prefix}/scale": self.scale.clone(),
        }

    def load_state_tensors(self, prefix: str, stored: Mapping[str, Tensor]) -> None:
        """Take the state back, bit for bit.

        Raises:
            EvidenceError: a tensor is missing or has another shape or dtype; nothing is changed
            then.
        """
        for name, mine in self.state_tensors(prefix).items():
            saved = stored.get(name)
            kind = None
            if saved is not None:
                kind = (tuple(saved.shape), saved.dtype)
            if kind != (tuple(mine.shape), mine.dtype):
                raise EvidenceError(
                    f"{name}: expected {tuple(mine.shape)} {mine.dtype}, found {kind}"
                )
        self.history_A = stored[f"{prefix}/amax_history"].to(self.scale.device, copy=True)
        self.scale = stored[f"{prefix}/scale"].to(self.scale.device, copy=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScales:
    """The three scales of one linear layer."""

    inputs: DelayedScale
    weight: DelayedScale
    grad: DelayedScale

    def state_tensors(self, prefix: str) -> dict[str, Tensor]:
        """The state of all three, by name."""
        parts = (part.state_tensors(f"{prefix}/{name}") for name, part in self._parts())
        return {name: tensor for part in parts for name, tensor in part.items()}

    def load_state_tensors(self, prefix: str, stored: Mapping[str, Tensor]) -> None:
        """Take the state of all three back."""
        for name, part in self._parts():
            part.load_state_tensors(f"{prefix}/{name}", stored)

    def _parts(self) -> tuple[tuple[str, DelayedScale], ...]:
        return (("inputs", self.inputs), ("weight", self.weight), ("grad", self.grad))


def linear_scales(
    *,
    history_len: int = 1024,
    margin: int = 0,
    group: dist.ProcessGroup | None = None,
    device: str = "cpu",
) -> LinearScales:
    """Fresh scales: E4M3 for input and weight, E5M2 for the gradient.

    `group` as for `DelayedScale`.
    """

    def fresh(form: Format) -> DelayedScale:
        return DelayedScale(
            form, history_len=history_len, margin=margin, group=group, device=device
        )

    return LinearScales(inputs=fresh(E4M3), weight=fresh(E4M3), grad=fresh(E5M2))


def linear(inputs_NI: Tensor, weight_OI: Tensor, scales: LinearScales) -> Tensor:
    """`inputs @ weight.T` (…, O) as FP8 would compute it, forward and backward.

    Call it once in each pass of a step.
    """
    result: Tensor = _Linear.apply(inputs_NI, weight_OI, scales)  # type: ignore[no-untyped-call]
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs_NI: Tensor, weight_OI: Tensor, scales: LinearScales) -> Tensor:
        inputs, weight = (
            scales.inputs.quantise(inputs_NI).values,
            scales.weight.quantise(weight_OI).values,
        )
        ctx.save_for_backward(inputs, weight)
        ctx.scales = scales
        return (inputs.float() @ weight.float().T).to(inputs_NI.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor, Tensor, None]:
        inputs, weight = ctx.saved_tensors
        grad = ctx.scales.grad.quantise(grad_NO).values.float()
        grad_weight = grad.flatten(0, -2).T @ inputs.float().flatten(0, -2)
        return (grad @ weight.float()).to(inputs.dtype), grad_weight.to(weight.dtype), None
