"""One rank of the reference trainer, as a harness: production and replay run the same code.

Shapes: M rows, T positions, V vocabulary, N flattened parameters. It never decides whether a step
was good.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from spiketriage.digests import of_file
from spiketriage.nouns.telemetry import Identity, Link
from spiketriage.train.generations.generation import Provenance, load_verified, save
from spiketriage.train.generations.module_state import capture, put
from spiketriage.train.generations.rank_state import RankState, digest_state
from spiketriage.train.guarding.guard import Guard, Policy
from spiketriage.train.harness import Context, Loaded, Overrides
from spiketriage.train.recording import random_state
from spiketriage.train.recording.identity import identify
from spiketriage.train.recording.recorder import Recorder
from spiketriage.train.recording.step_recorder import StepRecorder
from spiketriage.train.stabilizers import loss_scale as dynamic
from spiketriage.train.stabilizers.cross_entropy import IGNORE, cross_entropy_sum
from spiketriage.train.stabilizers.softcap import cap_logits

from .config import Config, read_config
from .data import Batch, Micro, Raw, Reader, Sampler, build
from .experts import balance, record_routers, router_penalty
from .fp8_linear import put_scale_tensors, scale_tensors
from .model import GPT
from .passes import Masks, Pass, Trace
from .precision import loss_scale
from .recording import applied, record_batch, record_moments, record_rates, record_trace
from .restore import restore
from .schedule import learning_rate
from .widths import optimizer_groups

DEPLOYED = Pass(precision="bf16", kernel="fused")
Z_COEFFICIENT = 1e-4
LOGIT_CAP = 30.0
GUARD_POLICY = Policy(outlier="skip")
SCALE_RULE = dynamic.ScaleRule(interval=50)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Reduced gradients by name, the global number of valid tokens, and the microbatch traces."""

    by_name: Mapping[str, Tensor]
    num_valid: int
    traces: Sequence[Trace]


class Trainer:
    """Model, optimizer, data and counters of one rank."""

    def __init__(self, context: Context, config: Config) -> None:
        self.context, self.config = context, config
        self.index = context.run / "data" / "index.json"
        self.model = GPT(config)
        self.params = dict(self.model.named_parameters())
        self.optimizer = torch.optim.AdamW(
            optimizer_groups(self.params.items(), config),
            lr=0.0,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
        )
        self.reader = Reader(self.index)
        self.sampler = Sampler(config, self.reader.lengths(), context.world_size)
        self.loaded_cursor = dict(self.sampler.cursor)
        self.scheduler_base = 0
        self.loaded_step = 0
        self.last_step = 0
        self.num_tokens = 0
        self.scale: dynamic.ScaleState | None = None
        if "loss-scale" in config.stabilizers:
            self.scale = dynamic.ScaleState(scale=1024.0)
        self.guard: Guard | None = None
        if "guard" in config.stabilizers:
            self.guard = Guard(GUARD_POLICY)

    def environment(self) -> Identity:
        """Identity of this process."""
        return identify(
            run=self.context.run,
            code=self.context.code,
            config=self.context.run / "config.json",
            world_size=self.context.world_size,
            device=self.context.device,
            precision=DEPLOYED.precision,
            kernel=DEPLOYED.kernel,
            hparams=self.config.hparams(),
            dataset=self.index,
        )

    def capabilities(self) -> frozenset[str]:
        """Factor values that this trainer can set."""
        return frozenset({"loader=deployed", "loader=verified", "precision=fp32", "kernel=math"})

    def load(self, generation: Path, loader: str) -> Loaded:
        """Replace the whole state by that of `generation`."""
        if loader == "verified":
            state = load_verified(generation)
        else:
            state = restore(generation)
        put(state, self.model, self.optimizer)
        put_scale_tensors(self.model, state.buffers)
        random_state.restore(state.rng)
        step = int(state.cursor["step"])
        self.loaded_cursor = dict(state.cursor)
        self.sampler.cursor = dict(state.cursor)
        self.scheduler_base = int(state.scheduler["last_step"])
        self.loaded_step = self.last_step = step
        self.num_tokens = state.num_tokens
        if self.scale is not None:
            self.scale = dynamic.from_json(state.scaler)
        if self.guard is not None:
            self.guard.restore(state.guard)
        return Loaded(generation=generation.name, step=step, digests=digest_state(self.state()))

    def state(self) -> RankState:
        """Everything that this rank needs to continue, as it stands in memory."""
        tensors = capture(self.model, self.optimizer)
        return RankState(
            params=tensors.params,
            optimizer=tensors.optimizer,
            buffers={**tensors.buffers, **scale_tensors(self.model)},
            scheduler={"last_step": self.scheduler_step(self.last_step)},
            scaler={} if self.scale is None else self.scale.to_json(),
            guard={} if self.guard is None else self.guard.state(),
            rng=random_state.saved(),
            cursor=dict(self.sampler.cursor),
            is_cursor_global=True,
            num_tokens=self.num_tokens,
        )

    def save(self, generations_folder: Path) -> Path:
        """Write the generation of the last step; collective."""
        identity = self.environment()
        provenance = Provenance(
            hparams=self.config.hparams(),
            schedule=self.config.schedule(),
            code_path=identity.code_path,
            code_digest=identity.code_digest,
            config_digest=identity.config_digest,
            index_digest=of_file(self.index),
        )
        return save(
            generations_folder, step=self.last_step, state=self.state(), provenance=provenance
        )

    def ids(self, step: int) -> Any:
        """This rank's batch at `step`, from the loaded cursor on."""
        if step <= self.sampler.cursor["step"]:
            self.sampler.cursor = dict(self.loaded_cursor)
        return self.sampler.draw(step)[self.context.rank]

    def read(self, ids: Any) -> Raw:
        """The documents that `ids` names."""
        return self.reader.read(ids)

    def build(self, raw: Raw) -> Batch:
        """Tensors from documents."""
        return build(raw)

    def lr(self, step: int) -> float:
        """Learning rate of `step`, by the scheduler's own counter."""
        return learning_rate(self.config, self.scheduler_step(step))

    def scheduler_step(self, step: int) -> int:
        """The scheduler's counter at `step`."""
        return self.scheduler_base + step - self.loaded_step

    def hparams(self) -> Mapping[str, Any]:
        """Hyper-parameters as the optimizer holds them."""
        return self.config.hparams()

    def step(self, step: int, recorder: Recorder, ids: Any = None) -> None:
        """Execute and record one training step."""
        own = self.ids(step)
        with recorder.step(step) as record:
            batch = self.build(self.read(own if ids is None else ids))
            record.tensors("params_before", self.params)
            scales = scale_tensors(self.model)
            gradients = self._gradients(batch, DEPLOYED, step, record)
            if not self._update(step, gradients, record):
                put_scale_tensors(self.model, scales)
            self.last_step = step
            self.num_tokens += gradients.num_valid
            record.log(
                {"tokens/total": self.num_tokens, "steps_since_load": step - self.loaded_step}
            )

    def forward_backward(self, batch: Batch, overrides: Overrides, record: StepRecorder) -> None:
        """One pass on the current state; the state is left as it was."""
        how = DEPLOYED
        if overrides.precision != "deployed":
            how = replace(how, precision=overrides.precision)
        if overrides.kernel != "deployed":
            how = replace(how, kernel=overrides.kernel)
        record.tensors("params_before", self.params)
        scales = scale_tensors(self.model)
        self._gradients(batch, how, self.last_step + 1, record)
        put_scale_tensors(self.model, scales)

    def _gradients(self, batch: Batch, how: Pass, step: int, record: StepRecorder) -> Gradients:
        """Forward and backward of all microbatches, and the reduction."""
        record_batch(batch, record)
        num_valid = torch.tensor(float(sum(int(micro.valid_MT.sum()) for micro in batch.micros)))
        totals = torch.stack([num_valid, torch.zeros(())])
        dist.all_reduce(totals[:1])
        scale = loss_scale(step, how.precision) * (1.0 if self.scale is None else self.scale.scale)
        loss_sum, traces = torch.zeros(()), [Trace() for _ in batch.micros]
        for number, micro in enumerate(batch.micros):
            loss_sum = loss_sum + self._micro_pass(
                micro, traces[number], how, scale / float(totals[0]), record
            )
            record_trace(traces[number], number, len(traces), record)
        record_routers(self.model.mixtures, traces, record)
        record.tensor("loss", "sum", loss_sum)
        gradients = self._take_gradients(scale)
        record.tensors("local_gradient", gradients)
        flat_N = torch.cat([gradient.reshape(-1) for gradient in gradients.values()])
        norm_local = float(flat_N.norm())
        dist.all_reduce(flat_N)
        totals[1] = loss_sum
        dist.all_reduce(totals[1:])
        cut = torch.split(flat_N, [gradient.numel() for gradient in gradients.values()])
        reduced = {}
        for name, part in zip(gradients, cut, strict=True):
            reduced[name] = part.view_as(gradients[name])
        record.tensors("reduced_gradient", reduced)
        record.log(
            {
                "loss/sum": float(loss_sum),
                "loss/mean": float(totals[1] / totals[0]),
                "tokens/valid": float(num_valid),
                "tokens/valid_global": float(totals[0]),
                "grad/norm_local": norm_local,
                "grad/norm": float(flat_N.norm()),
                "loss_scale": scale,
            }
        )
        return Gradients(by_name=reduced, num_valid=int(totals[0]), traces=traces)

    def _take_gradients(self, scale: float) -> dict[str, Tensor]:
        """Take the accumulated gradients, unscaled, in the order of the backward pass."""
        taken = {}
        for name, parameter in reversed(self.params.items()):
            if parameter.grad is not None:
                taken[name] = parameter.grad / scale
        self.optimizer.zero_grad(set_to_none=True)
        return taken

    def _micro_pass(
        self, micro: Micro, trace: Trace, how: Pass, factor: float, record: StepRecorder
    ) -> Tensor:
        """Forward and backward of one microbatch; returns its loss sum, detached."""
        masks = Masks(attend_B1TT=micro.mask_M1TT, valid_BT=micro.valid_MT)
        logits_MTV = self.model(micro.inputs_MT, masks, how, trace)
        if "softcap" in self.config.stabilizers:
            logits_MTV = cap_logits(logits_MTV, LOGIT_CAP)
        losses_MT = (
            F.cross_entropy(logits_MTV.transpose(1, 2), micro.labels_MT, reduction="none")
            * micro.valid_MT
        )
        loss_sum = objective = losses_MT.sum()
        if "z-loss" in self.config.stabilizers:
            labels_MT = micro.labels_MT.masked_fill(~micro.valid_MT, IGNORE)
            objective = cross_entropy_sum(
                logits_MTV, labels_MT, z_coefficient=Z_COEFFICIENT
            ).objective_sum
        torch.autograd.backward((objective + router_penalty(trace)) * factor)
        per_row = losses_MT.detach().sum(1) / micro.valid_MT.sum(1).clamp(min=1)
        record.series("loss/per_sample", per_row.tolist())
        return loss_sum.detach()

    def _update(self, step: int, gradients: Gradients, record: StepRecorder) -> bool:
        """Clip, decide, apply and record; returns whether the update was taken."""
        lr, norm = self.lr(step), record.metrics["grad/norm"]
        if norm == norm:
            coefficient = min(1.0, self.config.clip / (norm + 1e-6))
        else:
            coefficient = norm
        record.links[Link("clip_lr", "all")] = struct.pack("<2d", coefficient, lr)
        before = {name: parameter.detach().clone() for name, parameter in self.params.items()}
        for name, parameter in self.params.items():
            parameter.grad = gradients.by_name[name] * coefficient
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["lr_factor"]
        taken = self._may_update(step, lr, record)
        if taken:
            self.optimizer.step()
            balance(self.model.mixtures, gradients.traces)
        record_moments(self.params, self.optimizer, record)
        record.tensors("params_after", self.params)
        record_rates(self.optimizer, record)
        metrics = applied(self.params, before, self.optimizer)
        if not taken:
            del metrics["rms_t/max"]  # of a gradient that the moments never saw
        clip = {"clip/coefficient": coefficient, "clip/threshold": self.config.clip}
        record.log(
            {"lr": lr, **clip, **metrics, "scheduler/step": float(self.scheduler_step(step))}
        )
        if self.guard is not None:
            self.guard.finish(update_norm=metrics["update/norm"], rms_t=metrics.get("rms_t/max"))
        self.optimizer.zero_grad(set_to_none=True)
        return taken

    def _may_update(self, step: int, lr: float, record: StepRecorder) -> bool:
        """Whether this update is taken: not where the loss scale overflowed or the guard skips.

        The norm is of the reduced gradient and so equal on all ranks: nonfinite on one is nonfinite
        on each.
        """
        overflow = self.scale is not None and not math.isfinite(record.metrics["grad/norm"])
        skips = False
        if self.guard is not None:
            decision = self.guard.decide(
                step=step,
                loss_sum=record.metrics["loss/mean"] * record.metrics["tokens/valid_global"],
                num_tokens=record.metrics["tokens/valid_global"],
                grad_norm=record.metrics["grad/norm"],
                lr=lr,
                loss_scale=record.metrics["loss_scale"],
                overflow=overflow,
            )
            record.log(decision.metrics())
            skips = decision.skip
        if self.scale is not None and not skips:
            self.scale = dynamic.after(self.scale, finite=not overflow, rule=SCALE_RULE)
        return not (overflow or skips)


def factory(context: Context) -> Trainer:
    """The harness of this rank (`trainer.trainer:factory`)."""
    torch.set_num_threads(1)
    return Trainer(context, read_config(context.run / "config.json"))
