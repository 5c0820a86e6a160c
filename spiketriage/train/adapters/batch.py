"""A micro-batch on record.

Its tensors by the names of the chain, and its tokens in the ring of recent ones.

It never changes a batch and never asks a device for a number.
"""

# B rows, T positions.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from spiketriage.train.adapters.source import Micro
from spiketriage.train.recording.step_recorder import StepRecorder

NAMES = {
    "input_ids": "inputs",
    "attention_mask": "mask",
}  # as Hugging Face has them → as `wire.chain` has them
IGNORED = -100  # the label that no loss counts, of torch's cross-entropy


def record_batch(record: StepRecorder, number: int, micro: Micro) -> None:
    """Digests of every tensor of micro-batch `number` of its step, and of which labels count."""
    tensors = named(micro.batch)
    if "labels" in tensors and "valid" not in tensors and not tensors["labels"].is_floating_point():
        tensors["valid"] = tensors["labels"] != IGNORED
    record.tensors("batch", {f"{name}#{number}": one for name, one in tensors.items()})
    tokens_BT = tensors.get("inputs")
    if tokens_BT is not None and tokens_BT.ndim == 2 and not tokens_BT.is_floating_point():
        record.tokens(tokens_BT, list(micro.documents))


def named(batch: Any) -> dict[str, Tensor]:
    """The tensors of a batch by name.

    Of a mapping by its keys, of a pair inputs and labels, of others by place.
    """
    if isinstance(batch, Tensor):
        return {"inputs": batch}
    if isinstance(batch, Mapping):
        return {
            NAMES.get(str(name), str(name)): one
            for name, one in batch.items()
            if isinstance(one, Tensor)
        }
    if isinstance(batch, list | tuple):
        places = (
            ("inputs", "labels") if len(batch) == 2 else [f"part{n}" for n in range(len(batch))]
        )
        return {
            name: one for name, one in zip(places, batch, strict=True) if isinstance(one, Tensor)
        }
    return {}
