"""Statistics of layers by forward hooks: rms and amax of outputs, attention-logit maxima.

It never keeps an activation and never changes one; where the hooks do not run, a notice says that
they are off.

The hooks write into one small tensor and touch nothing else, so that `torch.compile` can trace
them: place them before the first call of the compiled model (dynamo does not look for hooks that
come later). They run again when activations are recomputed, which changes neither a root mean
square nor a maximum.
"""

# L layers, S = 4 statistics.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spiketriage.train.recording.norms import local
from spiketriage.train.recording.recorder import Recorder
from spiketriage.train.recording.step_recorder import StepRecorder

_SQUARES, _COUNT, _AMAX, _LOGIT = range(4)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one forward pass of one layer showed; tensors of shape ()."""

    place: int
    num_elements: int
    norm: Tensor
    low: Tensor
    high: Tensor
    logit: Tensor | None


class LayerStatistics:
    """Hooks on named modules; `record` hands a step's statistics over and starts afresh.

    A module may expose its largest attention logit as the attribute `logit_max` (a tensor () set by
    its forward).
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], recorder: Recorder, *, device: str = "cpu"
    ) -> None:
        self.names, self.recorder = tuple(modules), recorder
        self._buffer_LS = torch.zeros(len(modules), 4, dtype=torch.float32, device=device)
        self._buffer_LS[:, _LOGIT] = -torch.inf
        self._empty_LS = self._buffer_LS.clone()
        self._seen: list[_Seen] = []
        self._none = torch.zeros(0)
        self.is_on = True
        self._hooks = [
            module.register_forward_hook(self._hook(index))
            for index, module in enumerate(modules.values())
        ]
        recorder.notice("layers", f"{len(modules)} layers", data={"names": list(self.names)})

    def record(self, record: StepRecorder) -> None:
        """Hand over what the hooks saw since the last call; once a step, after the last forward."""
        with record.clock:
            if self.is_on:
                seen, self._seen = self._seen, []
                rows: list[list[float]] = []
                record.defer(self._buffer_LS.clone(), lambda values: rows.extend(_cut(values)))
                self._buffer_LS.copy_(self._empty_LS)
                if seen:
                    numbers: list[Tensor] = []
                    for output in seen:
                        numbers += (output.norm, output.low, output.high)
                    stacked = torch.stack(numbers).detach()
                    record.defer(stacked, lambda values: _add(rows, seen, values))
                places: list[int] = []
                logits: list[Tensor] = []
                for output in seen:
                    if output.logit is not None:
                        places.append(output.place)
                        logits.append(output.logit)
                if logits:
                    largest = torch.stack(logits)
                    record.defer(largest, lambda values: _add_logits(rows, places, values))
                record.defer(self._none, lambda _: self._tell(record, rows))
            self.is_on = (record.step + 1) % record.level.layer_period == 0

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, index: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if torch.compiler.is_compiling():
                # No clock, list or flag inside a graph: each would break it.
                self._measure_in_graph(index, module, output)
                return
            current = self.recorder.current
            if self.is_on and current is not None:
                with current.clock:
                    self._measure(index, module, output)

        return hook

    def _measure(self, index: int, module: nn.Module, output: Any) -> None:
        held = _values(output)
        if held is not None:
            ends = torch.aminmax(held)
            norm = torch.linalg.vector_norm(held, dtype=torch.float32)
            self._seen.append(
                _Seen(index, held.numel(), norm, ends.min, ends.max, _logit_max(module))
            )

    @torch.no_grad()
    def _measure_in_graph(self, index: int, module: nn.Module, output: Any) -> None:
        held = _values(output)
        if held is None:
            return
        row_S = self._buffer_LS[index]
        norm = torch.linalg.vector_norm(held, dtype=torch.float32)
        row_S[:_AMAX].add_(torch.stack([norm.square(), torch.full_like(norm, held.numel())]))
        ends = torch.aminmax(held)
        row_S[_AMAX].copy_(torch.maximum(row_S[_AMAX], torch.maximum(ends.max, -ends.min)))
        logit_max = _logit_max(module)
        if logit_max is not None:
            row_S[_LOGIT].copy_(torch.maximum(row_S[_LOGIT], logit_max))

    def _tell(self, record: StepRecorder, rows: list[list[float]]) -> None:
        """Series from the sums of a step; runs in the writing thread."""
        silent = [name for name, row in zip(self.names, rows, strict=True) if not row[_COUNT]]
        if silent:
            why = (
                "their hooks did not run (compiled before the hooks were placed, or the layer "
                "was not used)"
            )
            self.recorder.notice_once("off", f"layer statistics of {', '.join(silent)}: {why}")
        if len(silent) == len(rows):
            return
        record.vectors["activations/rms"] = [[_root(row[_SQUARES], row[_COUNT]) for row in rows]]
        record.vectors["activations/amax"] = [[_amax(row) for row in rows]]
        logits = [row[_LOGIT] for row in rows if row[_LOGIT] != -math.inf]
        if logits:
            record.vectors["attention/logit_max"] = [logits]
        else:
            self.recorder.notice_once("off", "attention/logit_max: no layer exposes logit_max")


@torch.no_grad()
def attention_logit_max(
    q_BHTK: Tensor, k_BHTK: Tensor, *, is_causal: bool = True, rows: int = 256
) -> Tensor:
    """Largest q·k/sqrt(K) that a softmax may see, fp32 (); a fused kernel does not show it.

    It costs the product QK^T once more, `rows` queries at a time: for some layers or some steps,
    not for all.
    """
    scale, length = q_BHTK.shape[-1] ** -0.5, k_BHTK.shape[-2]
    largest = q_BHTK.new_full((), -torch.inf, dtype=torch.float32)
    for first in range(0, q_BHTK.shape[-2], rows):
        part = q_BHTK[..., first : first + rows, :]
        logits = (part @ k_BHTK.transpose(-1, -2)).float() * scale
        if is_causal:
            reach = torch.arange(first, first + part.shape[-2], device=logits.device)[:, None]
            logits = logits.masked_fill(
                torch.arange(length, device=logits.device) > reach, -torch.inf
            )
        largest = torch.maximum(largest, logits.max())
    return largest


def _root(squares: float, count: float) -> float:
    if count and squares >= 0:
        return math.sqrt(squares / count)
    return math.nan


def _amax(row: Sequence[float]) -> float:
    if row[_COUNT]:
        return row[_AMAX]
    return math.nan


def _cut(values: Sequence[float]) -> list[list[float]]:
    return [list(values[at : at + 4]) for at in range(0, len(values), 4)]


def _add(rows: list[list[float]], seen: Sequence[_Seen], numbers: Sequence[float]) -> None:
    """Add each pass outside of graphs to its layer's row; runs in the writing thread."""
    for at, output in enumerate(seen):
        norm, low, high = numbers[3 * at : 3 * at + 3]
        row = rows[output.place]
        row[_SQUARES] += norm * norm
        row[_COUNT] += output.num_elements
        row[_AMAX] = _larger(row[_AMAX], _larger(high, -low))


def _add_logits(rows: list[list[float]], places: Sequence[int], logits: Sequence[float]) -> None:
    for place, logit in zip(places, logits, strict=True):
        rows[place][_LOGIT] = _larger(rows[place][_LOGIT], logit)


def _larger(first: float, second: float) -> float:
    """The larger of two numbers; NaN if either is, which `max` would hide."""
    if math.isnan(first) or math.isnan(second):
        return math.nan
    return max(first, second)


def _values(output: Any) -> Tensor | None:
    first = output[0] if isinstance(output, tuple) else output
    if isinstance(first, Tensor) and first.numel():
        return local(first)
    return None


def _logit_max(module: nn.Module) -> Tensor | None:
    logit_max = getattr(module, "logit_max", None)
    if isinstance(logit_max, Tensor):
        return local(logit_max)
    return None
