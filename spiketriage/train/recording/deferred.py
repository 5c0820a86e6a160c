"""The one copy a step: numbers that are still tensors, in one vector for another thread to read.

It never waits for a device in the training thread; on an accelerator it is untested (no such
machine was at hand).
"""

# N numbers.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(slots=True)
class Copy:
    """Numbers under way to the host: `host_N` (float64) is complete once `event` has happened."""

    host_N: Tensor
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    event: Any = None

    @property
    def is_here(self) -> bool:
        """Whether the numbers were on the host from the start."""
        return self.event is None

    @property
    def has_arrived(self) -> bool:
        """Whether reading would not wait."""
        return self.event is None or bool(self.event.query())

    def read_array(self) -> np.ndarray[Any, Any]:
        """All numbers as they lie; waits for the device, so not for trainers."""
        if self.event is not None:
            self.event.synchronize()
        array: np.ndarray[Any, Any] = self.host_N.numpy()
        return array

    def read(self) -> list[list[float]]:
        """The numbers of each tensor, in the order given; waits for the device, too."""
        values: list[float] = self.read_array().tolist()
        parts: list[list[float]] = [[]] * len(self.sizes)
        at = 0
        for index, size in zip(self.order, self.sizes, strict=True):
            parts[index] = values[at : at + size]
            at += size
        return parts


def start(tensors: Sequence[Tensor]) -> Copy:
    """Start the copy of real `tensors` (any shape, dtype, device), as they are now.

    The copy is float64, which keeps integers to 2^53. It takes one concatenation per dtype and
    device and one non-blocking copy per device: one in all where they are on one.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(index)
    by_device: dict[torch.device, list[Tensor]] = {}
    order: list[int] = []
    for device in dict.fromkeys(device for device, _ in groups):
        for (own, _), indices in groups.items():
            if own == device:
                flat = [tensors[index].detach().reshape(-1) for index in indices]
                by_device.setdefault(device, []).append(torch.cat(flat).double())
                order += indices
    sizes = tuple(tensors[index].numel() for index in order)
    if not by_device:
        return Copy(torch.empty(0, dtype=torch.float64), sizes, tuple(order))
    joined = {device: torch.cat(parts) for device, parts in by_device.items()}
    if all(device.type == "cpu" for device in joined):
        return Copy(torch.cat(list(joined.values())), sizes, tuple(order))
    return _from_devices(joined, sizes, tuple(order))


def start_tokens(tokens_BT: Tensor) -> Copy:
    """Start the copy of token ids, as int32 of the same shape: no vocabulary has 2^31 entries."""
    held = tokens_BT.detach()
    narrow = held.to(torch.int32, copy=True)
    if held.device.type != "cuda":
        return Copy(narrow.cpu() if held.device.type != "cpu" else narrow, (held.numel(),), (0,))
    host = torch.empty(narrow.shape, dtype=torch.int32, pin_memory=True)
    host.copy_(narrow, non_blocking=True)
    return Copy(host, (held.numel(),), (0,), torch.cuda.current_stream(held.device).record_event())


def _from_devices(
    joined: dict[torch.device, Tensor], sizes: tuple[int, ...], order: tuple[int, ...]
) -> Copy:
    total = sum(part.numel() for part in joined.values())
    host_N = torch.empty(total, dtype=torch.float64, pin_memory=torch.cuda.is_available())
    at = 0
    event: Any = None
    for device, part in joined.items():
        host_N[at : at + part.numel()].copy_(part, non_blocking=True)
        at += part.numel()
        if device.type == "cuda":
            # Events on the streams of several devices: the last one is waited for after all others
            # were recorded.
            event = _After(event, torch.cuda.current_stream(device).record_event())
    if event is None:  # an accelerator without events here: its copies block, and are complete
        return Copy(host_N, sizes, order)
    return Copy(host_N, sizes, order, event)


@dataclass(slots=True)
class _After:
    before: Any
    event: Any

    def query(self) -> bool:
        return (self.before is None or self.before.query()) and bool(self.event.query())

    def synchronize(self) -> None:
        if self.before is not None:
            self.before.synchronize()
        self.event.synchronize()
