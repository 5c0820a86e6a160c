"""Watches parameters, gradients and optimizer around one update, and tells the recorder.

It never changes a parameter, a gradient or the optimizer, and computes the norm that clips only
once.

    observer = Observer(model.named_parameters(), optimizer, recorder=recorder)
    with recorder.step(n) as s:
        observer.begin(s)  # digests of the parameters as they were
        …  # forward, backward
        observer.local_gradients(s)  # before the all-reduce, where the loop has such a moment
        …  # all-reduce
        norm = observer.reduced_gradients(s)  # () on every rank; hand it to the clipping
        torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, norm)
        observer.clipped(s, norm, 1.0)
        optimizer.step()
        observer.updated(s)  # before zero_grad: RMS_t needs the gradient

`reduced_gradients` and `updated` are collective when parameters are sharded: every rank calls them
in every step.
"""

# P parameters, N elements of one of them.

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spiketriage.train.recording.norms import (
    Groups,
    Norms,
    groups_of,
    local_norms,
    local_squares,
    norms_of_squares,
    reduce_by_groups,
)
from spiketriage.train.recording.recorder import Recorder
from spiketriage.train.recording.step_recorder import StepRecorder
from spiketriage.train.recording.update import UpdateWatch

CLIP_EPS = 1e-6  # of torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """What an update showed, fp32 (), for `Guard.finish`; None where it was not measured."""

    update_norm: Tensor | None = None
    rms_t: Tensor | None = None


class Observer:
    """Parameters by name, in their order, and the optimizer that updates them.

    `groups` as for `norms.global_norms`. Squared averages are found under `exp_avg_sq` (the Adam
    family of torch); for an optimizer without them RMS_t is off, and a notice says so.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        optimizer: torch.optim.Optimizer,
        *,
        recorder: Recorder,
        groups: Mapping[str, Groups] | None = None,
    ) -> None:
        self.parameters = {name: tensor for name, tensor in parameters if tensor.requires_grad}
        self.optimizer, self.recorder, self.groups = optimizer, recorder, groups
        self._groups_P = [
            groups_of(name, tensor, groups) for name, tensor in self.parameters.items()
        ]
        self._is_sharded = any(self._groups_P)
        self._update = UpdateWatch(self.parameters, optimizer)
        self._record: StepRecorder | None = None  # of the step under way
        self._saw_local = False
        self._bucket_squares: list[Tensor] = []
        recorder.notice(
            "tensors", f"{len(self.parameters)} tensors", data={"names": list(self.parameters)}
        )

    def begin(self, record: StepRecorder) -> None:
        """Digests of the parameters before the step."""
        self._record = record
        record.tensors("params_before", self.parameters)

    def local_gradients(self, record: StepRecorder) -> None:
        """Digests and norm of this rank's own contribution, before the reduction.

        FSDP2 reduces inside the backward pass, so there is no such moment; DDP neither, but see
        `ddp.watch`.
        """
        with record.clock:
            gradients = self._gradients()
            norms = local_norms(gradients)
            record.tensors("local_gradient", gradients, norms_P=norms.each_P)
            record.log({"grad/norm_local": norms.total})
            self._saw_local = True

    def add_local_part(self, part: Tensor) -> None:
        """Count a piece of this rank's contribution to its norm, logged with the reduced one."""
        self._bucket_squares.append(
            torch.linalg.vector_norm(part.detach().float()).double().square()
        )

    def add_local_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Digest this rank's contribution to some tensors, where it is seen piece by piece."""
        if self._record is not None:
            self._record.tensors("local_gradient", gradients)

    def reduced_gradients(self, record: StepRecorder) -> Tensor:
        """Digests and norms after the reduction; returns the global norm before clipping, fp32."""
        gradients = self._gradients()
        # Not on the recorder's clock: clipping needs this norm anyway, and is spared to take it
        # again.
        norms, norms_P = self._norms(gradients)
        with record.clock:
            record.tensors("reduced_gradient", gradients, norms_P=norms_P)
            record.series("grad/norm_per_tensor", norms.each_P)
            record.log({"grad/norm": norms.total})
            if self._bucket_squares:
                record.log({"grad/norm_local": torch.stack(self._bucket_squares).sum().sqrt()})
                self._bucket_squares = []
            elif not self._saw_local:
                self.recorder.notice_once(
                    "off", "grad/norm_local: nobody told of the gradient before its reduction"
                )
            if self._is_sharded or record.step % record.level.update_period == 0:
                self._update.keep(record.level.sample_stride)
            return norms.total

    def clipped(self, record: StepRecorder, norm: Tensor, max_norm: float) -> None:
        """The threshold, and the factor that torch's `clip_grads_with_norm_` applied."""
        with record.clock:
            coefficient = (max_norm / (norm + CLIP_EPS)).clamp(max=1.0)
            record.log({"clip/threshold": max_norm, "clip/coefficient": coefficient})

    def updated(self, record: StepRecorder) -> Updated:
        """Update norm, RMS_t, settings as applied, step counters; digests of what is new."""
        with record.clock:
            seen = self._log_update(record)
            self._log_applied(record)
            record.tensors("optimizer", self._moments())
            record.tensors("params_after", self.parameters)
        return seen

    def _norms(self, gradients: Mapping[str, Tensor]) -> tuple[Norms, Tensor]:
        """Global norms of all parameters, and local norms of those that have a gradient here."""
        # A rank without a gradient takes part in the collective all the same.
        whole = {}
        for name, parameter in self.parameters.items():
            if name in gradients:
                whole[name] = gradients[name]
            else:
                whole[name] = parameter.detach().new_zeros(())
        squares_P = local_squares(whole)
        local_P = squares_P.sqrt()
        if len(gradients) < len(self.parameters):
            here = [index for index, name in enumerate(self.parameters) if name in gradients]
            local_P = local_P[here]
        reduce_by_groups(squares_P[None], self._groups_P)
        return norms_of_squares(squares_P), local_P

    def _gradients(self) -> dict[str, Tensor]:
        gradients = {}
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                gradients[name] = parameter.grad
        return gradients

    def _moments(self) -> dict[str, Tensor]:
        state = self.optimizer.state
        moments: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            for key, value in state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    moments[f"{name}/{key}"] = value
        return moments

    def _log_update(self, record: StepRecorder) -> Updated:
        """Update norm and RMS_t: sums over ranks, then norms and means of whole tensors."""
        sums = self._update.sums()
        if sums is None:
            return Updated()
        rows_KP = torch.stack([sums.squared_change_P, sums.ratio_P, sums.count_P])
        reduce_by_groups(rows_KP, self._groups_P)
        record.series("update/norm_per_tensor", rows_KP[0].sqrt())
        norm = rows_KP[0].sum().sqrt()
        record.log({"update/norm": norm})
        if not any("exp_avg_sq" in state for state in self.optimizer.state.values()):
            self.recorder.notice_once("off", "rms_t: the optimizer keeps no exp_avg_sq")
            return Updated(update_norm=norm)
        rms_P = (rows_KP[1] / rows_KP[2].clamp(min=1)).sqrt()
        record.series("rms_t/per_tensor", rms_P)
        largest = rms_P.max()
        record.log({"rms_t/max": largest})
        return Updated(update_norm=norm, rms_t=largest)

    def _log_applied(self, record: StepRecorder) -> None:
        groups = self.optimizer.param_groups
        record.log(_hyperparameters(groups[0]))
        if len(groups) > 1:
            for name, key in (("optimizer/lr", "lr"), ("optimizer/weight_decay", "weight_decay")):
                for group in groups:
                    value = group.get(key, math.nan)
                    if isinstance(value, Tensor):
                        record.series(name, value.clone())
                    else:
                        record.series(name, [value])
        steps = self._update.steps()
        record.log({"optimizer/num_entries": float(len(self.optimizer.state))})
        if steps is not None:
            ends = torch.aminmax(steps)
            record.log(
                {
                    "optimizer/step": steps[0],
                    "optimizer/step_min": ends.min,
                    "optimizer/step_max": ends.max,
                }
            )


def _hyperparameters(group: Mapping[str, Any]) -> dict[str, float | Tensor]:
    applied: dict[str, float | Tensor] = {}
    for key in ("lr", "eps", "weight_decay"):
        if group.get(key) is not None:
            applied[key] = group[key]
    if "betas" in group:
        applied["beta1"], applied["beta2"] = group["betas"]
    for name, value in applied.items():
        if isinstance(value, Tensor):
            # A schedule may write the next step's rate into the same tensor before this step ends.
            applied[name] = value.clone()
    return applied
