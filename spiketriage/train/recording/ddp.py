"""Sees each rank's own gradient under DDP, which reduces it inside the backward pass.

It never changes what DDP computes: after the look, the bucket takes torch's own all-reduce.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from spiketriage.train.recording.observer import Observer


def watch(model: DistributedDataParallel, observer: Observer) -> None:
    """Record `grad/norm_local` and the digests of `local_gradient`, bucket by bucket.

    Both are of this rank's gradient / world size, its part of the mean: what is left where a
    reduction is left out.
    DDP holds one communication hook: this cannot be combined with another, and must come before the
    first backward.

    Raises:
        RuntimeError: torch's own, when the model has a hook already.
    """
    group: Any = model.process_group
    names = {id(one): name for name, one in observer.parameters.items()}

    # A lambda, because DDP refuses a hook whose annotations are strings, as they all are in this
    # module.
    model.register_comm_hook(
        state=None, hook=lambda state, bucket: _look(observer, names, group, bucket)
    )


def _look(observer: Observer, names: Mapping[int, str], group: Any, bucket: Any) -> Any:
    observer.add_local_part(bucket.buffer() / group.size())
    named = [names.get(id(one), "") for one in bucket.parameters()]
    observer.add_local_gradients(
        {
            name: one / group.size()
            for name, one in zip(named, bucket.gradients(), strict=True)
            if name
        }
    )
    return allreduce_hook(group, bucket)
