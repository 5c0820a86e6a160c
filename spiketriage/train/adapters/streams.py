"""Streams of randomness for the order of the data and for reading it, beside the training's.

The training's generators never feel that data was read: what a batch holds follows from its name
alone.
"""

from __future__ import annotations

import random
from types import TracebackType
from typing import Any

import numpy as np
import torch

from spiketriage.digests import raw_of_bytes

State = tuple[Any, Any, torch.Tensor]


class Stream:
    """`with stream:` the CPU generators of Python, numpy and torch draw from this stream.

    It starts at a place that `names` fix and goes on where it was. Generators of devices are left
    alone: a data set that draws on an accelerator is not covered.
    """

    def __init__(self, *names: object) -> None:
        self._names = names
        self._own: State | None = None
        self._outer: list[State] = []

    @classmethod
    def from_here(cls) -> Stream:
        """A stream that begins where the generators stand: a block draws as training would."""
        stream = cls()
        stream._own = _take()
        return stream

    def __enter__(self) -> None:
        self._outer.append(_take())
        if self._own is None:
            seed = int.from_bytes(raw_of_bytes(repr(self._names).encode())[:4], "little")
            random.seed(seed)
            np.random.seed(seed)
            # torch.manual_seed would seed the accelerators, too.
            torch.default_generator.manual_seed(seed)
        else:
            _put(self._own)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._own = _take()
        _put(self._outer.pop())


def _take() -> State:
    return random.getstate(), np.random.get_state(legacy=True), torch.default_generator.get_state()


def _put(state: State) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.default_generator.set_state(state[2])
