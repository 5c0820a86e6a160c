"""Sees each rank's own gradient under DistributedDataParallel, which reduces it inside the backward pass.

It never changes what DDP computes: after the look, the bucket takes torch's own all-reduce.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from spiketriage.train.observer import Observer


def watch(model: DistributedDataParallel, observer: Observer) -> None:
    """Record `grad/norm_local`, bucket by bucket: the norm of this rank's gradient / world size, its part of the mean.

    DDP holds one communication hook: this cannot be combined with another, and must come before the first backward.

    Raises:
        RuntimeError: torch's own, when the model has a hook already.
    """
    group: Any = model.process_group

    # A lambda, because DDP refuses a hook whose annotations are strings, as they all are in this module.
    model.register_comm_hook(state=None, hook=lambda state, bucket: _look(observer, group, bucket))


def _look(observer: Observer, group: Any, bucket: Any) -> Any:
    observer.add_local_part(bucket.buffer() / group.size())
    return allreduce_hook(group, bucket)
