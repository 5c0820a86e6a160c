"""The loss of a micro-batch from its mean, where a framework shows nothing else.

It never looks at a model's output.
"""

# B rows, T positions.

from __future__ import annotations

from typing import Any

from torch import Tensor

from spiketriage.train.adapters.batch import IGNORED, named
from spiketriage.train.adapters.session import Session


def tell_mean(session: Session, mean: Tensor, batch: Any) -> None:
    """Tell the mean of a micro-batch's loss as a sum over labels that count, else over rows."""
    count = num_valid(batch)
    session.loss(mean.detach().double() * count, count)


def num_valid(batch: Any) -> Tensor | float:
    """Labels of `batch` that are not ignored; without integer `labels` its rows, else 1."""
    tensors = named(batch)
    labels = tensors.get("labels")
    if labels is not None and not labels.is_floating_point():
        return (labels != IGNORED).sum()
    for tensor in tensors.values():
        if tensor.ndim:
            return float(tensor.shape[0])
    return 1.0
