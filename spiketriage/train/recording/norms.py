"""L2 norms of many tensors at once, over replicated, FSDP2-sharded and tensor-parallel ones.

It never reads a number back to the host, and never takes part in a collective that some ranks could
leave out: the groups depend on how tensors are placed alone.

Per tensor: the local shard's norm in fp32 (fp64 for fp64), squared in fp64, summed over the mesh
dimensions along which it is sharded, as `torch.nn.utils.get_total_norm` does for each tensor by a
collective of its own. Here one all-reduce serves all tensors that are placed alike.
"""

# P tensors.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from spiketriage.train.recording.tensors import is_dtensor, local_part

Groups = tuple[dist.ProcessGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Norms:
    """Norm of each tensor, fp64 (P,), and of all, fp32 (); equal on every rank if global."""

    each_P: Tensor
    total: Tensor


def global_norms(
    tensors: Mapping[str, Tensor], groups: Mapping[str, Groups] | None = None
) -> Norms:
    """Norms of whole tensors from the shards that the ranks hold; collective over their groups.

    A DTensor says by itself how it is placed. `groups` names, for plain tensors that hold a shard
    (Megatron's tensor parallelism), the process groups over which the shards are spread; replicated
    tensors are left out of it.
    """
    squares_P = local_squares(tensors)
    groups_P = [groups_of(name, tensor, groups) for name, tensor in tensors.items()]
    reduce_by_groups(squares_P[None], groups_P)
    return norms_of_squares(squares_P)


def local_norms(tensors: Mapping[str, Tensor]) -> Norms:
    """Norms of what this rank alone holds."""
    return norms_of_squares(local_squares(tensors))


def local_squares(tensors: Mapping[str, Tensor]) -> Tensor:
    """Squared norm of this rank's elements of each tensor, fp64 (P,)."""
    parts = [local(tensor) for tensor in tensors.values()]
    if not parts:
        return torch.zeros(0, dtype=torch.float64)
    places: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, part in enumerate(parts):
        places.setdefault((part.device, part.dtype), []).append(index)
    squares: list[Tensor] = [parts[0]] * len(parts)
    for (_, dtype), indices in places.items():
        wide = torch.promote_types(dtype, torch.float32)
        # The function that torch.nn.utils.get_total_norm itself uses; one kernel for many tensors
        # on CUDA.
        norms = torch._foreach_norm([parts[index] for index in indices], 2, dtype=wide)
        stacked = torch.stack(norms).double().square()
        if len(places) == 1:
            return stacked
        for index, square in zip(indices, stacked.unbind(), strict=True):
            squares[index] = square
    return torch.stack([square.to(parts[0].device) for square in squares])


def reduce_by_groups(rows_KP: Tensor, groups_P: Sequence[Groups]) -> None:
    """Sum the columns of `rows_KP` (K, P) in place over their groups, all placed alike at once."""
    placed: dict[Groups, list[int]] = {}
    for index, groups in enumerate(groups_P):
        if groups:
            placed.setdefault(groups, []).append(index)
    for groups, indices in placed.items():
        columns = torch.tensor(indices, device=rows_KP.device)
        part = rows_KP[:, columns].contiguous()
        for group in groups:
            dist.all_reduce(part, group=group)
        rows_KP[:, columns] = part


def groups_of(name: str, tensor: Tensor, groups: Mapping[str, Groups] | None) -> Groups:
    """Process groups over which the elements of `tensor` are spread; none for a replicated one."""
    if groups is not None and name in groups:
        return groups[name]
    if not is_dtensor(tensor):
        return ()
    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    spread = []
    for dim, placement in enumerate(placements):
        if not placement.is_replicate():
            spread.append(mesh.get_group(dim))
    return tuple(spread)


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a DTensor, or the tensor itself, detached."""
    return local_part(tensor).detach()


def norms_of_squares(squares_P: Tensor) -> Norms:
    """Norms from the squares of whole tensors."""
    return Norms(each_P=squares_P.sqrt(), total=squares_P.sum().sqrt().float())
