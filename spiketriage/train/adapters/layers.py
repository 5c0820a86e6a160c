"""What the blocks of a model put out, step by step: digests of every output, and their statistics.

It never keeps an output and never changes one; outputs of graphs that torch compiled have
statistics, but no digests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spiketriage.train.recording.layers import LayerStatistics
from spiketriage.train.recording.recorder import Recorder
from spiketriage.train.recording.step_recorder import StepRecorder


class Layers:
    """Hooks on named modules, which look at micro-batch `number` while `record` is there."""

    def __init__(self, modules: Mapping[str, nn.Module], recorder: Recorder) -> None:
        self.record: StepRecorder | None = None
        self.number = 0
        for name, module in modules.items():
            module.register_forward_hook(self._hook(name))
        self._statistics: LayerStatistics | None = None
        if modules:
            params = nn.ModuleList(modules.values()).parameters()
            device = next((param.device.type for param in params), "cpu")
            self._statistics = LayerStatistics(modules, recorder, device=device)

    def tell_to(self, recorder: Recorder) -> None:
        """Another recorder takes the steps from now on."""
        if self._statistics is not None:
            self._statistics.recorder = recorder

    def finish(self, record: StepRecorder) -> None:
        """After the last forward of a step: hand over its statistics."""
        if self._statistics is not None:
            self._statistics.record(record)
        self.record = None

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if torch.compiler.is_compiling() or self.record is None:
                return
            first = output
            if isinstance(output, tuple):
                first = output[0]
            if isinstance(first, Tensor):
                self.record.tensors("activations", {f"{name}#{self.number}": first.detach()})

        return hook
