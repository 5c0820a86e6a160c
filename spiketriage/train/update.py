"""How far an update moved each parameter, and RMS_t: whole tensors, or a sample of the large ones.

It never changes a tensor and never communicates: it gives this rank's sums, which are then added over ranks.
"""

# P parameters, G parameters of one size, N elements measured of each.

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spiketriage.train.tensors import local_part

SMALL = 1 << 14  # elements; smaller tensors are always measured whole
# Elements measured side by side: a page of float32. Runs of one cache line cost four times as much (no prefetch).
SAMPLE_RUN = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """This rank's part per tensor, all fp64 (P,): squared change (scaled up from the sample), Σ g²/v̂, and its count."""

    squared_change_P: Tensor
    ratio_P: Tensor
    count_P: Tensor


class UpdateWatch:
    """Keeps parameters before an update and compares them after it."""

    def __init__(self, parameters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
        self.parameters = list(parameters.values())
        self.optimizer = optimizer
        self._layouts: dict[int, _Layout] = {}
        self._layout: _Layout | None = None
        self._kept: list[Tensor] = []
        self._betas_of: list[Any] = []
        self._betas_P = torch.zeros(0)

    @torch.no_grad()
    def keep(self, stride: int) -> None:
        """Copy what will be compared: all elements, or 1 in `stride` of the large tensors."""
        held = [local_part(one) for one in self.parameters]
        if stride not in self._layouts:
            self._layouts[stride] = _Layout(held, stride)
        self._layout = self._layouts[stride]
        self._kept = [
            _given(matrix).clone() if part.is_alone else _given(matrix)
            for part, matrix in zip(self._layout.parts, self._layout.gather("before", held), strict=True)
        ]

    @torch.no_grad()
    def sums(self) -> Sums | None:
        """What the update did since `keep`; None without one. RMS_t has v̂ = v / (1 − beta2^step).

        Stable and low-precision training, arXiv 2304.13013, section 4, whose v is bias-corrected too. An optimizer
        without `exp_avg_sq` gives counts of 0.
        """
        layout = self._layout
        if layout is None or not self._kept:
            return None
        states = [self.optimizer.state.get(one, {}) for one in self.parameters]
        grads = [one.grad for one in self.parameters]
        seconds: list[Tensor | None] = [state.get("exp_avg_sq") for state in states]
        both = [grad is not None and second is not None for grad, second in zip(grads, seconds, strict=True)]
        now = layout.gather("now", [local_part(one) for one in self.parameters])
        g = layout.gather("grad", _where(grads, both))
        v = layout.gather("second", _where(seconds, both))
        changes, ratios = [], []
        for part, before_GN, now_GN, g_GN, v_GN in zip(layout.parts, self._kept, now, g, v, strict=True):
            changes.append(_square_sums(_given(now_GN) - before_GN) * (part.num_elements / part.num_measured))
            if g_GN is None or v_GN is None:
                ratios.append(torch.zeros_like(changes[-1]))
            else:
                # The tiny number only keeps 0/0 from hiding everything else: where v is 0, so was g.
                ratios.append(_square_sums(g_GN * (v_GN + 1e-30).rsqrt()))
        self._kept = []
        ratio_P = torch.cat(ratios)[layout.order_P]
        if any(both):
            ratio_P = ratio_P * self._corrections(states).to(ratio_P.device)
        counts = [float(num) if ok else 0.0 for num, ok in zip(layout.measured, both, strict=True)]
        return Sums(
            squared_change_P=torch.cat(changes)[layout.order_P],
            ratio_P=ratio_P,
            count_P=torch.tensor(counts, dtype=torch.float64, device=ratio_P.device),
        )

    def steps(self) -> Tensor | None:
        """The optimizer's step counters, fp64, of the tensors that have one; None when none has."""
        found = [state["step"] for state in self.optimizer.state.values() if "step" in state]
        return _stacked(found) if found else None

    def _corrections(self, states: Sequence[Mapping[str, Any]]) -> Tensor:
        """1 − beta2^step of each tensor, fp64 (P,)."""
        groups = self.optimizer.param_groups
        key = [(len(group["params"]), group.get("betas", (0.0, 0.0))[1]) for group in groups]
        if any(isinstance(beta, Tensor) for _, beta in key) or self._betas_of != key:
            beta2 = {id(one): group.get("betas", (0.0, 0.0))[1] for group in groups for one in group["params"]}
            betas = [torch.as_tensor(beta2.get(id(one), 0.0), dtype=torch.float64) for one in self.parameters]
            self._betas_P, self._betas_of = torch.stack(betas), key
        steps_P = _stacked([state.get("step", 0) for state in states])
        return 1.0 - self._betas_P.to(steps_P.device) ** steps_P


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Tensors of one shape that are measured together: `num_runs` of `SAMPLE_RUN` elements of each, or 0 for all."""

    places: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    num_elements: int
    num_runs: int
    is_alone: bool

    @property
    def num_measured(self) -> int:
        return max(self.num_runs * SAMPLE_RUN or self.num_elements, 1)


class _Layout:
    """Which elements are measured, and room to gather them: one call copies those of all small and sampled tensors."""

    def __init__(self, tensors: Sequence[Tensor], stride: int) -> None:
        self.stride = stride
        self.parts = _parts(tensors, stride)
        flat = [place for part in self.parts for place in part.places]
        self._device = tensors[0].device
        self.order_P = torch.tensor(sorted(range(len(flat)), key=flat.__getitem__), device=self._device)
        self.measured = [0] * len(flat)
        for part in self.parts:
            for place in part.places:
                self.measured[place] = part.num_measured
        self._gathered = [place for part in self.parts if not part.is_alone for place in part.places]
        self._rooms: dict[str, list[Tensor]] = {}
        self._targets: dict[str, list[Tensor]] = {}

    def gather(self, what: str, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The measured elements of each part, fp32 or fp64 (G, N); overwritten by the next call for the same `what`.

        A tensor that is None counts as zeros among others, and as None by itself.
        """
        if what not in self._rooms:
            self._make_room(what)
        targets, sources = self._targets[what], self._sources(tensors)
        if any(source is None for source in sources):
            for target, source in zip(targets, sources, strict=True):
                if source is None:
                    target.zero_()
            targets = [target for target, source in zip(targets, sources, strict=True) if source is not None]
        there = [source for source in sources if source is not None]
        if there:
            torch._foreach_copy_(targets, there)  # casts too; one call, where a loop would cost more than the copies
        rooms = iter(self._rooms[what])
        return [_row(tensors[part.places[0]]) if part.is_alone else next(rooms) for part in self.parts]

    def _make_room(self, what: str) -> None:
        rooms, targets = [], []
        for part in self.parts:
            if not part.is_alone:
                dtype = torch.promote_types(part.dtype, torch.float32)
                room_GN = torch.zeros(len(part.places), part.num_measured, dtype=dtype, device=self._device)
                rooms.append(room_GN)
                shape = (part.num_runs, SAMPLE_RUN) if part.num_runs else part.shape
                targets += [row.view(shape) for row in room_GN[:, : math.prod(shape)]]
        self._rooms[what], self._targets[what] = rooms, targets

    def _sources(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """What is copied of each gathered tensor."""
        chosen = [tensors[place] for place in self._gathered]
        return [None if one is None else self._measured(one) for one in chosen]

    def _measured(self, tensor: Tensor) -> Tensor:
        runs = _num_runs(tensor.numel(), self.stride)
        if not runs:
            return tensor
        return torch.as_strided(tensor.contiguous(), (runs, SAMPLE_RUN), (SAMPLE_RUN * self.stride, 1))


def _parts(tensors: Sequence[Tensor], stride: int) -> tuple[_Part, ...]:
    """Equal shapes together, since small ones cost more to visit than to measure; a large whole one by itself."""
    placed: dict[object, list[int]] = {}
    for index, tensor in enumerate(tensors):
        alone = index if tensor.numel() >= SMALL and stride == 1 else None
        placed.setdefault((tuple(tensor.shape), tensor.dtype, alone), []).append(index)
    return tuple(
        _Part(
            places=tuple(places),
            shape=tuple(tensors[places[0]].shape),
            dtype=tensors[places[0]].dtype,
            num_elements=tensors[places[0]].numel(),
            num_runs=_num_runs(tensors[places[0]].numel(), stride),
            is_alone=tensors[places[0]].numel() >= SMALL and stride == 1,
        )
        for places in placed.values()
    )


def _num_runs(num_elements: int, stride: int) -> int:
    """Runs of `SAMPLE_RUN` elements, one in `stride`; 0 where all elements are measured."""
    if stride == 1 or num_elements < SMALL:
        return 0
    return -(-(num_elements - SAMPLE_RUN + 1) // (SAMPLE_RUN * stride))


def _row(tensor: Tensor | None) -> Tensor | None:
    """A whole tensor as one row, in place where it is contiguous."""
    if tensor is None:
        return None
    row_1N = tensor.reshape(1, -1)
    return row_1N if row_1N.dtype in (torch.float32, torch.float64) else row_1N.float()


def _where(tensors: Sequence[Tensor | None], both: Sequence[bool]) -> list[Tensor | None]:
    return [local_part(one) if ok and one is not None else None for one, ok in zip(tensors, both, strict=True)]


def _given(matrix: Tensor | None) -> Tensor:
    assert matrix is not None, "a parameter is always there"
    return matrix


def _stacked(steps: Sequence[Any]) -> Tensor:
    """Step counters as fp64, on the device where the optimizer keeps them."""
    if all(isinstance(step, Tensor) for step in steps):
        return torch.stack(list(steps)).detach().double()
    device = next((step.device for step in steps if isinstance(step, Tensor)), torch.device("cpu"))
    return torch.stack([torch.as_tensor(step, dtype=torch.float64, device=device) for step in steps])


def _square_sums(values_GN: Tensor) -> Tensor:
    norms_G: Tensor = torch.linalg.vector_norm(values_GN, dim=1)
    return norms_G.double().square()
