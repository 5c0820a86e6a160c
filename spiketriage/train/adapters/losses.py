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
    """Tell the mean of a micro-batch's loss as a sum.

    Over its labels that count, else over its rows.
    """
    count = num_valid(batch)
    session.loss(mean.detach().double() * count, count)


def num_valid(batch: Any) -> Tensor | float:
    """Labels of `batch` that are not ignored, where it has integer `labels`.

    Else its rows, else 1.
    """
    tensors = named(batch)
    labels = tensors.get("labels")
    if labels is not None and not labels.is_floating_point():
        return (labels != IGNORED).sum()
    first = next((one for one in tensors.values() if one.ndim), None)
    if first is None:
        return 1.0
    return float(first.shape[0])
