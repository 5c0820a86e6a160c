"""What a batch and its logits look like: histograms of ids, their entropy, log-partitions.

It never reads a number back to the host and never keeps a batch.
"""

# B rows, T positions, V vocabulary, H bins.

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from spiketriage.train.recording.step_recorder import StepRecorder

NUM_BINS = 64


@torch.no_grad()
def record_batch(
    record: StepRecorder, inputs_BT: Tensor, labels_BT: Tensor, valid_BT: Tensor, *, vocabulary: int
) -> None:
    """Valid tokens, unigram entropy of the inputs, and both histograms.

    `valid_BT` is bool, ids are below `vocabulary`. A label that is not valid may be anything, such
    as −100.
    """
    with record.clock:
        counts_V = _counts(inputs_BT, None, vocabulary)
        labels_V = _counts(labels_BT, valid_BT, vocabulary)
        record.log({"tokens/valid": valid_BT.sum()})
        # Entropy of the shares c/N is log N − Σ c log c / N: one number to bring over instead of V.
        num = max(inputs_BT.numel(), 1)
        weighed = torch.special.xlogy(counts_V, counts_V).sum()
        metrics = record.metrics
        record.defer(
            weighed,
            lambda sums: metrics.__setitem__("tokens/entropy", math.log(num) - sums[0] / num),
        )
        for name, counts in (("tokens/histogram", counts_V), ("labels/histogram", labels_V)):
            part: list[float] = []
            record.vectors.setdefault(name, []).append(part)
            record.defer(counts.view(NUM_BINS, -1).sum(1), partial(_share_out, part))


@torch.no_grad()
def record_logz(record: StepRecorder, logz_BT: Tensor, valid_BT: Tensor) -> None:
    """Mean and maximum of log Σ exp(logits) over valid tokens; a z-loss has them at hand."""
    with record.clock:
        kept_BT = logz_BT.detach().float().masked_fill(~valid_BT, 0.0)
        highest = logz_BT.detach().float().masked_fill(~valid_BT, -torch.inf).max()
        record.log({"logz/mean": kept_BT.sum() / valid_BT.sum().clamp(min=1), "logz/max": highest})


def _counts(ids_BT: Tensor, valid_BT: Tensor | None, vocabulary: int) -> Tensor:
    """Occurrences of each id, fp32 (V,) padded with zeros to 64 equal ranges.

    Not `bincount`, which waits for a device to learn the size of its result.
    """
    ids = ids_BT.detach().reshape(-1).clamp(0, vocabulary - 1)
    if valid_BT is None:
        ones = torch.ones_like(ids, dtype=torch.float32)
    else:
        ones = valid_BT.detach().reshape(-1).float()
    return torch.zeros(-(-vocabulary // NUM_BINS) * NUM_BINS, device=ids.device).scatter_add_(
        0, ids.long(), ones
    )


def _share_out(part: list[float], counts: list[float]) -> None:
    """Shares of 64 ranges of ⌈V/64⌉ ids; in the writing thread."""
    total = sum(counts) or 1.0
    part.extend(count / total for count in counts)
