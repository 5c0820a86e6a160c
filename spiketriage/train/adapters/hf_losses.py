"""What a Hugging Face model's loss counts: which labels, and how much each row weighs.

It never changes a loss; it looks at labels and logits that the trainer has at hand.
"""

# B rows, T positions, V vocabulary.

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers.loss.loss_utils import ForCausalLMLoss

MAX_LOGITS = 1 << 22  # of a micro-batch whose losses per sample are recorded: 16 MB in fp32


def counted_labels(inputs: Any, *, is_shifted: bool) -> Tensor | None:
    """The labels that the loss counts, -100 where it does not; where it shifts, the next ones."""
    shifted, labels = inputs.get("shift_labels"), inputs.get("labels")
    if isinstance(shifted, Tensor):
        return shifted
    if not isinstance(labels, Tensor):
        return None
    if is_shifted:
        return labels[..., 1:]
    return labels


def shifts_labels(trainer: Any) -> bool:
    """Whether the model's loss predicts the next label.

    The trainer's own idea of it (`_loss_shifts_labels`) misses models without a `loss_type`, as
    GPT-2 is: transformers 5.24 divides their loss by the first label of every row, too, and logs a
    mean that is a little too small.
    """
    if getattr(getattr(trainer.model, "config", None), "is_encoder_decoder", False):
        return False
    is_causal = getattr(trainer.model, "loss_function", None) is ForCausalLMLoss
    return is_causal or bool(getattr(trainer, "_loss_shifts_labels", False))


def per_sample(outputs: Any, labels: Tensor | None) -> Tensor | None:
    """Mean loss per valid token of each row, (B,), whatever loss the trainer minimises.

    It is the plain cross-entropy of the logits; None where these are too many, or not those of a
    language model.
    """
    if not hasattr(outputs, "get") or labels is None:
        return None
    logits_BTV = outputs.get("logits")
    if not isinstance(logits_BTV, Tensor) or logits_BTV.ndim != 3:
        return None
    if logits_BTV.numel() > MAX_LOGITS:
        return None
    if labels.ndim != 2 or labels.shape[1] > logits_BTV.shape[1]:
        return None
    kept_BVT = logits_BTV[:, : labels.shape[1]].float().transpose(1, 2)
    losses_BT = F.cross_entropy(kept_BVT, labels, ignore_index=-100, reduction="none")
    return losses_BT.sum(1) / labels.ne(-100).sum(1).clamp(min=1)
