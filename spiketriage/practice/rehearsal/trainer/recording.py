"""What a step of the trainer tells the recorder of its batch and its update.

It never changes a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from spiketriage.train.recording.step_recorder import StepRecorder

from .data import Batch
from .fp8_linear import record_casts
from .passes import Trace


def record_batch(batch: Batch, record: StepRecorder) -> None:
    """Name, content and tensors of a batch."""
    record.ids(batch.ids)
    record.content(batch.digests)
    for number, micro in enumerate(batch.micros):
        parts = {
            "inputs": micro.inputs_MT,
            "labels": micro.labels_MT,
            "valid": micro.valid_MT,
            "mask": micro.mask_M1TT,
        }
        record.tensors("batch", {f"{name}#{number}": value for name, value in parts.items()})


def record_trace(trace: Trace, number: int, num_micro: int, record: StepRecorder) -> None:
    """What the forward and backward pass of microbatch `number` left behind."""
    record.tensors(
        "activations", {f"{name}#{number}": value for name, value in trace.activations.items()}
    )
    record.series("activations/rms", trace.rms)
    record.series("attention/logit_max", trace.logit_max)
    record_casts(trace, number, num_micro, record)


def record_moments(
    params: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, record: StepRecorder
) -> None:
    """The optimizer's tensors by parameter and moment."""
    record.tensors(
        "optimizer",
        {f"{n}/{key}": v for n, p in params.items() for key, v in optimizer.state[p].items()},
    )


def record_rates(optimizer: torch.optim.Optimizer, record: StepRecorder) -> None:
    """Learning rate and weight decay as applied, where groups of parameters have their own."""
    groups = optimizer.param_groups
    if len(groups) > 1:
        record.series("optimizer/lr", [group["lr"] for group in groups])
        record.series("optimizer/weight_decay", [group["weight_decay"] for group in groups])


def applied(
    params: Mapping[str, Tensor], before: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> dict[str, float]:
    """Metrics of an update from the parameters `before` it, with the first group's settings."""
    group = optimizer.param_groups[0]
    change = torch.stack([(p.detach() - before[n]).pow(2).sum() for n, p in params.items()])
    beta2 = group["betas"][1]
    ratio = torch.stack(
        [
            (
                (1 - beta2 ** entry["step"])
                * (p.grad.pow(2) / (entry["exp_avg_sq"] + 1e-30)).mean()
            ).sqrt()
            for p, entry in optimizer.state.items()
            if p.grad is not None
        ]
    )
    return {
        "beta1": group["betas"][0],
        "beta2": group["betas"][1],
        "eps": group["eps"],
        "weight_decay": group["weight_decay"],
        "update/norm": float(change.sum().sqrt()),
        "rms_t/max": float(ratio.max()),
        "optimizer/num_entries": float(len(optimizer.state)),
        "optimizer/step": float(next(iter(optimizer.state.values()))["step"]),
    }
