"""Four gloo ranks that use the stabilizers on replicated, FSDP2, HSDP and tensor-parallel models, all in one start.

A fork server imports torch once for all ranks; each leaves what it saw in `rank-N.pt`, which tests
hold against fp64.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rank_processes import run_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from spiketriage.train.stabilizers import clip, fp8, loss_scale, moe
from spiketriage.train.stabilizers.cross_entropy import (
    IGNORE,
    global_count,
    linear_cross_entropy_sum,
    next_tokens,
    normalised,
)

NUM_RANKS = 4
MAX_NORM = 0.5
VOCABULARY, WIDTH, LENGTH, NUM_ROWS = 23, 8, 16, 4
Z = 1e-2


def start(folder: Path) -> list[dict[str, Any]]:
    """Run every case on four ranks; what each rank reports, by the case's name."""
    preload = ("torch.distributed.fsdp", "torch.distributed.tensor.parallel")
    assert run_ranks(_rank, NUM_RANKS, str(folder), preload=preload) == [0] * NUM_RANKS
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(NUM_RANKS)]


def rows(dtype: torch.dtype = torch.float32) -> Tensor:
    """The inputs of all ranks (16, 8); each rank takes four rows."""
    return torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)


def model() -> nn.Sequential:
    """The same small model in every process.

    Its widths divide by 2 but not by 4, so that FSDP2 shards are uneven.
    """
    generator = torch.Generator().manual_seed(2)
    built = nn.Sequential(nn.Linear(WIDTH, 14), nn.GELU(), nn.Linear(14, 6))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return built


def objective(built: nn.Module, inputs: Tensor) -> Tensor:
    """A loss sum whose gradient is large enough to be clipped."""
    value: Tensor = built(inputs).square().sum()
    return value


def tokens() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens and valid flags (4, 16), hidden (4, 16, 8) and head (23, 8).

    Rows differ much in padding.
    """
    generator = torch.Generator().manual_seed(3)
    tokens_BL = torch.randint(0, VOCABULARY, (NUM_ROWS, LENGTH), generator=generator)
    valid_BL = torch.arange(LENGTH)[None, :] < torch.tensor([16, 9, 3, 14])[:, None]
    hidden_BLD = torch.randn(NUM_ROWS, LENGTH, WIDTH, generator=generator)
    return tokens_BL, valid_BL, hidden_BLD, torch.randn(VOCABULARY, WIDTH, generator=generator)


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=NUM_RANKS)
    told = {case.__name__: case(rank) for case in CASES}
    torch.save(told, Path(folder) / f"rank-{rank}.pt")
    dist.destroy_process_group()


def _clipped(built: nn.Module, *, sharded: bool = True) -> dict[str, Any]:
    """Clip, and report this rank's norm by three rules and the whole gradients afterwards."""
    parameters = list(built.parameters())
    of_torch = torch.nn.utils.get_total_norm(
        [p.grad for p in parameters if isinstance(p.grad, DTensor) == sharded]
    )
    of_torch = of_torch.full_tensor() if isinstance(of_torch, DTensor) else of_torch
    local = clip.local_norm(parameters)
    done = clip.clip_(parameters, MAX_NORM)
    after = [
        p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        for p in parameters
        if p.grad is not None
    ]
    return {
        "norm": done.norm,
        "coefficient": done.coefficient,
        "finite": done.finite,
        "local": local,
        "torch": of_torch,
        "grads": after,
        "locals_of_ranks": clip.norms_of_ranks(local),
        "norms_of_ranks": clip.norms_of_ranks(done.norm),
    }


def replicated(rank: int) -> dict[str, Any]:
    """Plain tensors, gradients summed by hand."""
    built = model()
    objective(built, rows().chunk(NUM_RANKS)[rank]).backward()
    for parameter in built.parameters():
        dist.all_reduce(parameter.grad)
    return _clipped(built, sharded=False)


def fsdp2(rank: int) -> dict[str, Any]:
    """One sharded dimension of four; FSDP averages, so the loss is multiplied by four."""
    built = model()
    fully_shard(built, mesh=init_device_mesh("cpu", (NUM_RANKS,)))
    (objective(built, rows().chunk(NUM_RANKS)[rank]) * NUM_RANKS).backward()
    return _clipped(built)


def hsdp(rank: int) -> dict[str, Any]:
    """Replicated over two, sharded over two."""
    built = model()
    fully_shard(built, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards")))
    (objective(built, rows().chunk(NUM_RANKS)[rank]) * NUM_RANKS).backward()
    return _clipped(built)


def tensor_parallel(rank: int) -> dict[str, Any]:
    """Sharded by FSDP2 over two and by tensor parallelism over two, with a plain replicated gain on top."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    built = model()
    parallelize_module(built, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(built, mesh=mesh["data"])
    (objective(built, rows().chunk(2)[mesh["data"].get_local_rank()]) * 2).backward()
    built.register_parameter("gain", nn.Parameter(torch.ones(3)))
    built.gain.grad = torch.tensor([3.0, -4.0, 12.0])
    return _clipped(built)


def nonfinite(rank: int) -> dict[str, Any]:
    """Rank 2's shard alone holds an inf; no rank may touch its gradients."""
    built = model()
    fully_shard(built, mesh=init_device_mesh("cpu", (NUM_RANKS,)))
    objective(built, rows().chunk(NUM_RANKS)[rank]).backward()
    if rank == 2:
        next(built.parameters()).grad.to_local()[0, 0] = float("inf")
    before = [p.grad.to_local().clone() for p in built.parameters()]
    done = clip.clip_(built.parameters(), MAX_NORM)
    same = all(
        torch.equal(p.grad.to_local(), was)
        for p, was in zip(built.parameters(), before, strict=True)
    )
    return {"norm": done.norm, "coefficient": done.coefficient, "finite": done.finite, "same": same}


def desynchronised(rank: int) -> dict[str, Any]:
    """Replicas whose gradients differ on rank 1 (a skipped all-reduce).

    The norms of the ranks tell.
    """
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0]) * (2.0 if rank == 1 else 1.0)
    return {"norms": clip.norms_of_ranks(clip.global_norm([parameter]))}


def stages(rank: int) -> dict[str, Any]:
    """Each rank is a pipeline stage with other parameters, and one of them has no gradient."""
    mine = [nn.Parameter(torch.zeros(2)) for _ in range(rank + 1)]
    for number, parameter in enumerate(mine[: rank or 1]):
        parameter.grad = torch.full((2,), float(rank + number))
    return {"norm": clip.clip_(mine, 1e9, stage_group=dist.group.WORLD).norm}


def language_model(rank: int) -> dict[str, Any]:
    """Two data ranks of two context ranks.

    Rows split over the first, positions over the second, labels before both.
    """
    data, context = divmod(rank, 2)
    tokens_BL, valid_BL, hidden_BLD, head_VD = tokens()
    mine = (slice(2 * data, 2 * data + 2), slice(8 * context, 8 * context + 8))
    labels = next_tokens(tokens_BL, valid_BL)[mine]
    late = next_tokens(tokens_BL[mine], valid_BL[mine])
    hidden, head = hidden_BLD[mine].clone().requires_grad_(), head_VD.clone().requires_grad_()
    loss = linear_cross_entropy_sum(hidden, head, labels, z_coefficient=Z, chunk_tokens=5)
    num_valid = global_count(loss.num_valid)
    normalised(loss.objective_sum, num_valid, num_averaged_ranks=NUM_RANKS).backward()
    dist.all_reduce(head.grad)  # gloo has no average: what DDP and FSDP would do
    mean = loss.ce_sum.clone()
    dist.all_reduce(mean)
    mean_of_means = loss.ce_sum / loss.num_valid.clamp(min=1) / NUM_RANKS
    dist.all_reduce(mean_of_means)
    return {
        "num_valid": num_valid,
        "num_valid_late": global_count((late != IGNORE).sum()),
        "mean": mean / num_valid,
        "mean_of_means": mean_of_means,
        "head_grad": head.grad / NUM_RANKS,
        "hidden_grad": hidden.grad / NUM_RANKS,
    }


def overflow(rank: int) -> dict[str, Any]:
    """An overflow on rank 1 alone.

    Parameters, moments and the scale's state behind a skipped step.
    """
    built = model()
    optimizer = torch.optim.AdamW(built.parameters(), lr=0.1)
    state, rule = loss_scale.ScaleState(scale=2.0**10), loss_scale.ScaleRule(interval=2)
    taken, scales, kept = [], [], []
    for step in range(4):
        (objective(built, rows().chunk(NUM_RANKS)[rank]) * state.scale).backward()
        if step == 1 and rank == 1:
            built[0].bias.grad[0] = float("nan")
        before = deepcopy((built.state_dict(), optimizer.state_dict()))
        finite = loss_scale.unscale_(built.parameters(), state.scale)
        if finite:
            optimizer.step()
        kept.append(_equal(before, (built.state_dict(), optimizer.state_dict())))
        optimizer.zero_grad()
        state = loss_scale.after(state, finite=finite, rule=rule)
        taken.append(finite)
        scales.append(state.scale)
    return {"taken": taken, "scales": scales, "kept": kept, "skipped": state.num_skipped}


def balance(rank: int) -> dict[str, Any]:
    """Experts that are balanced over all ranks but on none, and the amax of a tensor that ranks share."""
    bias = moe.BalanceBias(4, speed=0.5)
    load_E = torch.zeros(4, dtype=torch.int64)
    load_E[rank] = 8
    bias.update(load_E)
    balanced = bias.bias_E.clone()
    bias.update(torch.tensor([5, 1, 1, 1]) if rank == 3 else torch.tensor([1, 1, 1, 1]))
    shared = fp8.DelayedScale(fp8.E4M3, history_len=2, group=dist.group.WORLD)
    shared.quantise(torch.full((3,), float(rank + 1)))
    return {
        "balanced": balanced,
        "bias": bias.bias_E,
        "updates": bias.num_updates,
        "scale": shared.scale,
    }


def _equal(one: Any, other: Any) -> bool:
    """Whether two nested states hold the same bits."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


CASES: tuple[Callable[[int], dict[str, Any]], ...] = (
    replicated,
    fsdp2,
    hsdp,
    tensor_parallel,
    nonfinite,
    desynchronised,
    stages,
    language_model,
    overflow,
    balance,
)
