"""Clipping by the global norm, over replicated, FSDP2-sharded and tensor-parallel parameters.

It never clips by a norm that only one rank has seen: each rank would scale differently, and
replicas part for good.

- Tensor: every `.grad`, after its reduction and before the optimizer. A plain tensor counts as
  replicated, a DTensor as its parameter's placements say; a gradient placed otherwise (Partial) is
  brought there for the norm.
- Precision: a tensor's norm in fp32 (an element beyond 1.8e19 overflows to inf and counts as
  nonfinite), the sum of squares over tensors and ranks in fp64, the result in fp32.
- Equality: each sharded mesh dimension adds one all-reduce of one number; every rank then holds the
  same bits, if replicas do. `norms_of_ranks` shows whether they do.
- Nonfinite norm: gradients stay as they are, bit for bit, the coefficient is 1 and `finite` is
  False on every rank.
  The caller must skip the step; clipping cannot repair it (g · c/inf = 0 or NaN, which hides the
  evidence).
- Gradient: scaled by min(1, max_norm / (norm + 1e-6)) as `torch.nn.utils.clip_grad_norm_` does
  (arXiv 1211.5063, section 3.2). Steps under the threshold are multiplied by exactly 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from spiketriage.errors import UsageError

NAME = "global-clip"
LIFTS = ("clip_",)
REMOVES = (
    "One bad batch moving the weights by an unbounded step, and ranks that part because each "
    "clips by its own norm."
)
COST = (
    "One pass over the gradients and one scalar all-reduce a sharded mesh dimension; the norm "
    "is recorded anyway."
)
WHEN = (
    "From step 0 of every run, at 1.0; lower it when the running median of the norm lies far below."
)

Groups = tuple[dist.ProcessGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped:
    """What was done.

    Tensors of shape (), equal on every rank, on the gradients' device (reading one is a sync).

    `norm` fp32 before clipping, `coefficient` fp32 in (0, 1], `finite` bool: False means that the
    step must be skipped.
    """

    norm: Tensor
    coefficient: Tensor
    finite: Tensor


def global_norm(
    parameters: Iterable[Tensor], *, stage_group: dist.ProcessGroup | None = None
) -> Tensor:
    """L2 norm of all gradients, fp32 (); collective over the mesh of every sharded parameter.

    `stage_group` holds one rank of each pipeline stage, when there are stages. Every rank passes
    the same parameters in the same order; one without a gradient counts 0, so that no rank leaves
    out a collective.

    Raises:
        UsageError: there is no parameter.
    """
    squares: dict[Groups, list[Tensor]] = {}
    for parameter in parameters:
        squares.setdefault(_sharded_over(parameter), []).append(_local_square(parameter))
    if not squares:
        raise UsageError("a norm needs at least one parameter")
    parts = []
    for groups, terms in squares.items():
        part = torch.stack(terms).sum()
        for group in groups:
            dist.all_reduce(part, group=group)
        parts.append(part)
    total = torch.stack(parts).sum()
    if stage_group is not None:
        dist.all_reduce(total, group=stage_group)
    return total.sqrt().float()


def local_norm(parameters: Iterable[Tensor]) -> Tensor:
    """L2 norm of what this rank alone holds, fp32 (): for telemetry, never to clip by."""
    return torch.stack([_local_square(parameter) for parameter in parameters]).sum().sqrt().float()


def clip_(
    parameters: Iterable[Tensor], max_norm: float, *, stage_group: dist.ProcessGroup | None = None
) -> Clipped:
    """Scale all gradients in place so that their global norm is at most `max_norm`; collective.

    Raises:
        UsageError: `max_norm` is not positive, or there is no parameter.
    """
    if not max_norm > 0:
        raise UsageError(f"a clipping threshold is positive, not {max_norm}")
    parameters = list(parameters)
    norm = global_norm(parameters, stage_group=stage_group)
    finite = torch.isfinite(norm)
    # Selected, not multiplied: inf and NaN must not reach the gradients through the coefficient.
    coefficient = torch.where(finite, (max_norm / (norm + 1e-6)).clamp(max=1.0), 1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            if isinstance(parameter.grad, DTensor):
                held = parameter.grad.to_local()
            else:
                held = parameter.grad
            held.mul_(coefficient)
    return Clipped(norm=norm, coefficient=coefficient, finite=finite)


def norms_of_ranks(norm: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Each rank's own `norm`, fp32 (R,); collective, and distinct values are a fault."""
    gathered = [torch.empty_like(norm) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, norm.detach().clone(), group=group)
    return torch.stack(gathered)


def _sharded_over(parameter: Tensor) -> Groups:
    """Groups over which the elements of `parameter` are spread; none for a replicated one."""
    if not isinstance(parameter, DTensor):
        return ()
    mesh = parameter.device_mesh
    # Not `is_shard()`: it is False for the strided shards of FSDP2 over tensor parallelism (torch
    # 2.13).
    result = []
    for dim, place in enumerate(parameter.placements):
        if not place.is_replicate():
            result.append(mesh.get_group(dim))
    return tuple(result)


def _local_square(parameter: Tensor) -> Tensor:
    """Squared norm of this rank's elements of the gradient, fp64 ()."""
    grad = parameter.grad
    if grad is None:
        return torch.zeros((), dtype=torch.float64, device=parameter.device)
    if isinstance(grad, DTensor) and isinstance(parameter, DTensor):
        if grad.placements != parameter.placements:
            grad = grad.redistribute(placements=parameter.placements)
        grad = grad.to_local()
    wide = torch.promote_types(grad.dtype, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(grad.detach(), dtype=wide)
    return norm.double().square()
