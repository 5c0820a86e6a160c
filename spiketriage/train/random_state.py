"""The state of every random generator that a training step may draw from, taken without asking a device.

This module never draws a number and never sets a state.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import torch

State = dict[str, Any]


def capture() -> State:
    """A snapshot by generator (`python`, `numpy`, `torch`, and `cuda` when it is in use); `pack` makes bytes of it.

    The CUDA state is a seed and an offset that live on the host; reading it does not wait for the device (untested).
    """
    state: State = {
        "python": random.getstate()[1],
        "numpy": np.random.get_state(legacy=True),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def pack(state: State) -> dict[str, bytes]:
    """Bytes by generator: `python` 625 u32, `numpy` 624 u32 and a position, the others as torch keeps them."""
    packed: dict[str, bytes] = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            packed[name] = value.numpy().tobytes()
        elif name == "python":
            packed[name] = struct.pack(f"<{len(value)}I", *value)
        elif value[0] == "MT19937":
            packed[name] = np.asarray(value[1], dtype="<u4").tobytes() + struct.pack("<I", int(value[2]))
    return packed
