"""The step chain: its stages in order, and the registry of metric names with their units.

Both sides of the product import this page; it holds names only and never touches a file.
"""

from __future__ import annotations

STAGES: tuple[str, ...] = (
    "restored",  # only at a load: params, optimizer, scheduler, rng, cursor
    "ids",
    "content",
    "batch",  # keys: inputs, labels, valid, mask (apart, since each fails alone)
    "params_before",
    "activations",  # keys: <layer>#<microbatch>
    "loss",
    "local_gradient",  # before the reduction, already scaled by the global valid-token count
    "reduced_gradient",
    "clip_lr",
    "optimizer",
    "params_after",
)

STATE_FIELDS: tuple[str, ...] = ("params", "optimizer", "scheduler", "rng", "cursor")

# Local quantities are taken before the collective, global ones after it.
METRICS: dict[str, str] = {
    "loss/sum": "nats, this rank, over its valid tokens",
    "loss/mean": "nats per valid token, all ranks",
    "tokens/valid": "tokens, this rank",
    "tokens/valid_global": "tokens, all ranks",
    "tokens/total": "tokens consumed since the run began, all ranks",
    "grad/norm_local": "L2 of this rank's contribution before the reduction",
    "grad/norm": "L2 after the reduction, before clipping",
    "clip/coefficient": "factor applied to the gradient",
    "update/norm": "L2 of params after minus params before",
    "rms_t/max": "max over tensors of sqrt(mean(g^2 / v)), arXiv 2304.13013 section 4",
    "lr": "learning rate as applied",
    "beta1": "as applied",
    "beta2": "as applied",
    "eps": "as applied",
    "weight_decay": "as applied",
    "clip/threshold": "as applied",
    "loss_scale": "factor on the loss before backward; 1 when unused",
    "optimizer/num_entries": "tensors that have optimizer state",
    "optimizer/step": "the optimizer's own step counter",
    "scheduler/step": "the scheduler's own step counter",
    "steps_since_load": "steps since the last load in this attempt",
    "logz/mean": "mean log-partition over valid tokens",
    "time/step_s": "seconds",
}

# Vectors: one value per layer, or one per sample.
SERIES: dict[str, str] = {
    "loss/per_sample": "nats per valid token, one per row of this rank's batch",
    "activations/rms": "per layer, root mean square over this rank's batch",
    "attention/logit_max": "per layer, maximum over this rank's batch",
}


def position(stage: str) -> int:
    """Place of `stage` in the chain; unknown stages sort last."""
    return STAGES.index(stage) if stage in STAGES else len(STAGES)
