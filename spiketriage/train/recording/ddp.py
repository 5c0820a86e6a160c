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
    reduction is left out. DDP holds one communication hook: this cannot be combined with another,
    and must come before the first backward.

    Raises:
        RuntimeError: torch's own, when the model has a hook already.
    """
    group: Any = model.process_group
    names = {id(parameter): name for name, parameter in observer.parameters.items()}

    # A lambda, because DDP refuses a hook whose annotations are strings, as they all are in this
    # module.
    model.register_comm_hook(
        state=None, hook=lambda state, bucket: _look(observer, names, group, bucket)
    )


def _look(observer: Observer, names: Mapping[int, str], group: Any, bucket: Any) -> Any:
    observer.add_local_part(bucket.buffer() / group.size())
    gradients = {}
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        name = names.get(id(parameter))
        if name is not None:
            gradients[name] = gradient / group.size()
    observer.add_local_gradients(gradients)
    return allreduce_hook(group, bucket)
