"""A micro-batch on record: its tensors by the chain's names, its tokens in the ring.

It never changes a batch and never asks a device for a number.
"""

# B rows, T positions.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from spiketriage.train.adapters.source import Micro
from spiketriage.train.recording.step_recorder import StepRecorder

# As Hugging Face has them → as `wire.chain` has them.
NAMES = {"input_ids": "inputs", "attention_mask": "mask"}
IGNORED = -100  # the label that no loss counts, of torch's cross-entropy


def record_batch(record: StepRecorder, number: int, micro: Micro) -> None:
    """Digests of every tensor of micro-batch `number` of its step, and of which labels count."""
    tensors = named(micro.batch)
    if "labels" in tensors and "valid" not in tensors and not tensors["labels"].is_floating_point():
        tensors["valid"] = tensors["labels"] != IGNORED
    record.tensors("batch", {f"{name}#{number}": tensor for name, tensor in tensors.items()})
    tokens_BT = tensors.get("inputs")
    if tokens_BT is not None and tokens_BT.ndim == 2 and not tokens_BT.is_floating_point():
        record.tokens(tokens_BT, list(micro.documents))


def named(batch: Any) -> dict[str, Tensor]:
    """The tensors of a batch by name: its keys; of a pair inputs and labels; else its places."""
    parts: Mapping[str, Any] = {}
    if isinstance(batch, Tensor):
        parts = {"inputs": batch}
    elif isinstance(batch, Mapping):
        parts = {NAMES.get(str(name), str(name)): part for name, part in batch.items()}
    elif isinstance(batch, list | tuple) and len(batch) == 2:
        parts = {"inputs": batch[0], "labels": batch[1]}
    elif isinstance(batch, list | tuple):
        parts = {f"part{number}": part for number, part in enumerate(batch)}
    return {name: part for name, part in parts.items() if isinstance(part, Tensor)}
