"""The state of every random generator that a step may draw from, taken without a device's help.

This module never draws a number.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

State = dict[str, Any]


def capture() -> State:
    """A snapshot by generator (`python`, `numpy`, `torch`, and `cuda` when it is in use).

    `pack` makes bytes of it.

    The CUDA state is a seed and an offset that live on the host; reading it does not wait for the
    device (untested).
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
    """Bytes by generator.

    `python` 625 u32, `numpy` 624 u32 and a position, the others as torch keeps them.
    """
    packed: dict[str, bytes] = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            packed[name] = value.numpy().tobytes()
        elif name == "python":
            packed[name] = struct.pack(f"<{len(value)}I", *value)
        elif value[0] == "MT19937":
            packed[name] = np.asarray(value[1], dtype="<u4").tobytes() + struct.pack(
                "<I", int(value[2])
            )
    return packed


def saved() -> dict[str, str]:
    """The whole state by generator, as text for a generation; `restore` takes it back.

    Generators that the job made itself (`torch.Generator`, `numpy.random.Generator`) are part of
    its data cursor.
    """
    name, keys, *rest = np.random.get_state(legacy=True)
    state = {
        "python": json.dumps(random.getstate()),
        "numpy": json.dumps([name, np.asarray(keys, dtype="<u4").tobytes().hex(), *rest]),
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state().numpy().tobytes().hex()
    return state


def restore(state: Mapping[str, str]) -> None:
    """Set every generator that `state` names, which `saved` wrote; the others are left alone."""
    if "python" in state:
        version, numbers, gauss = json.loads(state["python"])
        random.setstate((version, tuple(numbers), gauss))
    if "numpy" in state:
        name, keys, *rest = json.loads(state["numpy"])
        np.random.set_state((name, np.frombuffer(bytes.fromhex(keys), dtype="<u4"), *rest))
    if "torch" in state:
        torch.set_rng_state(_bytes(state["torch"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_bytes(state["cuda"]))


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
