"""How far an update moved each parameter, and RMS_t: whole tensors, or a sample of the large ones.

It never changes a tensor and never communicates: it gives this rank's sums, which are then added
over ranks.
"""

# P parameters, G parameters of one size, N elements measured of each.

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spiketriage.train.recording.tensors import local_part

SMALL = 1 << 14  # elements; smaller tensors are always measured whole
# Elements measured side by side: a page of float32. Runs of one cache line cost four times as much
# (no prefetch).
SAMPLE_RUN = 1024
TINY = 1e-30


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """This rank's squared change (scaled up from a sample), Σ g²/v̂, and its count, fp64 (P,)."""

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
        self._before = _Room(rows=(), targets=())
        # Place and copy of each large tensor that is measured whole.
        self._whole: list[tuple[int, Tensor]] = []
        self._betas_of: list[Any] = []
        self._betas_P = torch.zeros(0)
        self._steps_P: Tensor | None = None

    @torch.no_grad()
    def keep(self, stride: int) -> None:
        """Copy what will be compared: all elements, or 1 in `stride` of the large tensors."""
        parts = [local_part(parameter) for parameter in self.parameters]
        if stride not in self._layouts:
            self._layouts[stride] = _Layout(parts, stride)
        self._layout = self._layouts[stride]
        self._before = self._layout.gather("before", parts)
        self._whole = [(place, _flat(parts[place]).clone()) for place in self._layout.whole]

    @torch.no_grad()
    def sums(self) -> Sums | None:
        """What the update did since `keep`; None without one. RMS_t has v̂ = v / (1 − beta2^step).

        Stable and low-precision training, arXiv 2304.13013, section 4, whose v is bias-corrected
        too. An optimizer without `exp_avg_sq` gives counts of 0.
        """
        layout = self._layout
        if layout is None:
            return None
        self._layout = None  # the next update is compared with what is kept then
        states = [self.optimizer.state.get(parameter, {}) for parameter in self.parameters]
        grads = [parameter.grad for parameter in self.parameters]
        seconds: list[Tensor | None] = [state.get("exp_avg_sq") for state in states]
        both = [
            grad is not None and second is not None
            for grad, second in zip(grads, seconds, strict=True)
        ]
        change = layout.gather("now", [local_part(parameter) for parameter in self.parameters])
        gradient = layout.gather("grad", _where(grads, both))
        ratio = layout.gather("second", _where(seconds, both))
        # in place of what was gathered, and a part at a time: few enough elements for one thread
        if layout.parts:
            torch._foreach_sub_(change.rows, self._before.rows)
            # The tiny number only keeps 0/0 from hiding everything else: where v is 0, so was g.
            torch._foreach_add_(ratio.rows, TINY)
            for row_GN in ratio.rows:
                # not sqrt_: MKL's runs on threads of its own, which wait for a core on a busy
                # machine
                row_GN.rsqrt_()
            torch._foreach_mul_(gradient.rows, ratio.rows)
        changes, ratios = _norms(change.rows), _norms(gradient.rows)
        for place, before_N in self._whole:
            changes.append(_norm(_flat(local_part(self.parameters[place])) - before_N))
            grad, second = grads[place], seconds[place]
            if grad is None or second is None:
                ratios.append(torch.zeros_like(changes[-1]))
            else:
                g_N, v_N = _flat(local_part(grad)), _flat(local_part(second))
                ratios.append(_norm(_over_root(g_N, v_N)))
        self._whole = []
        ratio_P = torch.cat(ratios)[layout.order_P].square()
        if any(both):
            ratio_P = ratio_P * self._corrections(states).to(ratio_P.device)
        counts = [float(num) if ok else 0.0 for num, ok in zip(layout.measured, both, strict=True)]
        return Sums(
            squared_change_P=torch.cat(changes)[layout.order_P].square() * layout.scale_P,
            ratio_P=ratio_P,
            count_P=torch.tensor(counts, dtype=torch.float64, device=ratio_P.device),
        )

    def steps(self) -> Tensor | None:
        """The optimizer's step counters, fp64, of the tensors that have one; None when none has."""
        states = self.optimizer.state
        gathered, self._steps_P = self._steps_P, None
        counters = [state["step"] for state in states.values() if "step" in state]
        if not counters:
            return None
        if gathered is not None and len(gathered) == len(states) == len(counters):
            return gathered  # just gathered for the corrections, and of all tensors
        return _stacked(counters)

    def _corrections(self, states: Sequence[Mapping[str, Any]]) -> Tensor:
        """1 − beta2^step of each tensor, fp64 (P,)."""
        groups = self.optimizer.param_groups
        key = [(len(group["params"]), group.get("betas", (0.0, 0.0))[1]) for group in groups]
        if any(isinstance(beta, Tensor) for _, beta in key) or self._betas_of != key:
            beta2: dict[int, Any] = {}
            for group in groups:
                for parameter in group["params"]:
                    beta2[id(parameter)] = group.get("betas", (0.0, 0.0))[1]
            betas = []
            for parameter in self.parameters:
                beta = beta2.get(id(parameter), 0.0)
                betas.append(torch.as_tensor(beta, dtype=torch.float64))
            self._betas_P, self._betas_of = torch.stack(betas), key
        self._steps_P = _stacked([state.get("step", 0) for state in states])
        return 1.0 - self._betas_P.to(self._steps_P.device) ** self._steps_P


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Tensors of one shape, measured together: `num_runs` runs of each, or all elements (0)."""

    places: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    num_elements: int
    num_runs: int

    @property
    def num_measured(self) -> int:
        return self.num_runs * SAMPLE_RUN or self.num_elements

    @property
    def row_shape(self) -> tuple[int, ...]:
        if self.num_runs:
            return (self.num_runs, SAMPLE_RUN)
        return self.shape


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """Where a part's elements are gathered: `rows` (G, N), `targets` the same as (G, *shape)."""

    rows: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]


class _Layout:
    """Which elements are measured, and room for those of all small and sampled tensors.

    The number of operations is what costs, so there is one copy a shape.
    """

    def __init__(self, tensors: Sequence[Tensor], stride: int) -> None:
        self.stride = stride
        self.parts = _parts(tensors, stride)
        self.whole: list[int] = []
        if stride == 1:
            self.whole = [at for at, tensor in enumerate(tensors) if tensor.numel() >= SMALL]
        sizes = [max(tensor.numel(), 1) for tensor in tensors]
        self.measured = list(sizes)
        visited: list[int] = []
        for part in self.parts:
            visited += part.places
            for place in part.places:
                self.measured[place] = max(part.num_measured, 1)
        visited += self.whole
        device = tensors[0].device
        order = sorted(range(len(visited)), key=visited.__getitem__)
        self.order_P = torch.tensor(order, device=device)
        shares = [size / num for size, num in zip(sizes, self.measured, strict=True)]
        self.scale_P = torch.tensor(shares, dtype=torch.float64, device=device)
        self._device = device
        self._rooms: dict[str, _Room] = {}
        self._views: dict[tuple[bool, int], tuple[int, Tensor]] = {}

    def gather(self, what: str, tensors: Sequence[Tensor | None]) -> _Room:
        """The measured elements, fp32 or fp64, until the next call for `what`; None is zeros."""
        room = self._rooms.get(what) or self._make_room(what)
        for part, target in zip(self.parts, room.targets, strict=True):
            sources = [self._measured(what, place, tensors[place], part) for place in part.places]
            present = [source for source in sources if source is not None]
            if len(present) == len(sources):
                torch.stack(present, out=target)  # casts too
                continue
            for row, source in zip(target, sources, strict=True):
                if source is None:
                    row.zero_()
                else:
                    row.copy_(source)
        return room

    def _make_room(self, what: str) -> _Room:
        rows, targets = [], []
        for part in self.parts:
            size = (len(part.places), part.num_measured)
            row = torch.zeros(size, dtype=_wide(part), device=self._device)
            rows.append(row)
            targets.append(row.view(len(part.places), *part.row_shape))
        self._rooms[what] = _Room(rows=tuple(rows), targets=tuple(targets))
        return self._rooms[what]

    def _measured(self, what: str, place: int, tensor: Tensor | None, part: _Part) -> Tensor | None:
        if tensor is None or not part.num_runs:
            return tensor
        key = (what == "second", place)
        seen = self._views.get(key)
        if what != "grad" and seen is not None and seen[0] == tensor.data_ptr():
            return seen[1]
        size, strides = (part.num_runs, SAMPLE_RUN), (SAMPLE_RUN * self.stride, 1)
        view = torch.as_strided(tensor.contiguous(), size, strides)
        if what != "grad" and tensor.is_contiguous():
            # A view of a gradient would keep its memory after zero_grad.
            self._views[key] = (tensor.data_ptr(), view)
        return view


def _parts(tensors: Sequence[Tensor], stride: int) -> tuple[_Part, ...]:
    """Equal shapes together, since small ones cost more to visit than to measure; no large ones."""
    placed: dict[tuple[tuple[int, ...], torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        if stride > 1 or tensor.numel() < SMALL:
            placed.setdefault((tuple(tensor.shape), tensor.dtype), []).append(index)
    parts = []
    for (shape, dtype), places in placed.items():
        num = math.prod(shape)
        parts.append(
            _Part(
                places=tuple(places),
                shape=shape,
                dtype=dtype,
                num_elements=num,
                num_runs=_num_runs(num, stride),
            )
        )
    return tuple(parts)


def _wide(part: _Part) -> torch.dtype:
    return torch.promote_types(part.dtype, torch.float32)


def _num_runs(num_elements: int, stride: int) -> int:
    """Runs of `SAMPLE_RUN` elements, one in `stride`; 0 where all elements are measured."""
    if stride == 1 or num_elements < SMALL:
        return 0
    return -(-(num_elements - SAMPLE_RUN + 1) // (SAMPLE_RUN * stride))


def _flat(tensor: Tensor) -> Tensor:
    """A whole tensor as one vector, in place where it is contiguous."""
    flat = tensor.reshape(-1)
    if flat.dtype in (torch.float32, torch.float64):
        return flat
    return flat.float()


def _over_root(g_N: Tensor, v_N: Tensor) -> Tensor:
    return g_N * (v_N + TINY).rsqrt()


def _where(tensors: Sequence[Tensor | None], both: Sequence[bool]) -> list[Tensor | None]:
    parts: list[Tensor | None] = []
    for tensor, is_there in zip(tensors, both, strict=True):
        if is_there and tensor is not None:
            parts.append(local_part(tensor))
        else:
            parts.append(None)
    return parts


def _stacked(steps: Sequence[Any]) -> Tensor:
    """Step counters as fp64, on the device where the optimizer keeps them."""
    if all(isinstance(step, Tensor) for step in steps):
        return torch.stack(list(steps)).detach().double()
    device = next((step.device for step in steps if isinstance(step, Tensor)), torch.device("cpu"))
    counters = [torch.as_tensor(step, dtype=torch.float64, device=device) for step in steps]
    return torch.stack(counters)


def _norms(rows: Sequence[Tensor]) -> list[Tensor]:
    return [torch.linalg.vector_norm(row_GN, dim=1).double() for row_GN in rows]


def _norm(values_N: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(values_N)
    return norm.double()[None]
