"""One rank leaves the gradient's all-reduce out for one step and goes on with its own contribution.

The plant acts inside the running process; the collective itself takes place, so that nobody hangs.
"""

from __future__ import annotations

from typing import Any

from spiketriage.practice.rehearsal.staging import Staging

NAME = "skipped-all-reduce"
CAUSE = "skipped-all-reduce"
ABOUT = "one rank skips the gradient's all-reduce for one step"


def plant(stage: Staging) -> None:
    """One step, one rank."""
    stage.hook(step=stage.fault_step, rank=stage.rank)


def before_step(trainer: Any, number: int, *, step: int, rank: int) -> None:
    """Throw away the next large reduction of `step` on `rank`."""
    import torch.distributed as dist

    if number != step or trainer.context.rank != rank:
        return
    reduce = dist.all_reduce

    def skipping(values: Any, *rest: Any, **named: Any) -> Any:
        if values.numel() < 1000:
            return reduce(values, *rest, **named)
        vars(dist)["all_reduce"] = reduce
        return reduce(values.clone(), *rest, **named)

    vars(dist)["all_reduce"] = skipping
