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

STATE_FIELDS: tuple[str, ...] = (
    "params",
    "optimizer",
    "buffers",
    "scheduler",
    "scaler",
    "guard",
    "rng",
    "cursor",
)

# how many ranks there were and which pieces each held: state is compared on equal ones alone
PLACEMENT = "placement"

# Local quantities are taken before the collective, global ones after it.
METRICS: dict[str, str] = {
    "loss/sum": "nats, this rank, over its valid tokens",
    "loss/mean": "nats per valid token, all ranks",
    "tokens/valid": "tokens, this rank",
    "tokens/valid_global": "tokens, all ranks",
    "tokens/total": "tokens consumed since the run began, all ranks",
    "tokens/entropy": "nats, unigram entropy of this rank's input ids",
    "grad/norm_local": "L2 of this rank's contribution before the reduction",
    "grad/norm": "L2 after the reduction, before clipping",
    "clip/coefficient": "factor applied to the gradient",
    "clip/threshold": "as applied",
    "update/norm": "L2 of params after minus params before",
    "rms_t/max": (
        "max over tensors of sqrt(mean(g^2 / v)), g clipped, v bias-corrected, arXiv "
        "2304.13013 section 4"
    ),
    "lr": "learning rate as applied",
    "beta1": "as applied",
    "beta2": "as applied",
    "eps": "as applied",
    "weight_decay": "as applied",
    "loss_scale": "factor on the loss before backward; 1 when unused",
    "loss_scale/skipped": "updates left out by loss scaling since the row before",
    "loss_scale/skipped_total": "updates left out by loss scaling since the run began",
    "optimizer/num_entries": "tensors that have optimizer state",
    "optimizer/step": "the optimizer's own step counter, of its first tensor",
    "optimizer/step_min": "smallest step counter of any tensor",
    "optimizer/step_max": "largest step counter of any tensor",
    "scheduler/step": "the scheduler's own step counter",
    "steps_since_load": "steps since the last load in this attempt",
    "logz/mean": "mean log-partition over valid tokens, nats",
    "logz/max": "largest log-partition of a valid token, nats",
    "moe/bias_amax": "largest magnitude of any router bias, this rank",
    "fp8/num_fallback": "tensors that should be FP8 and are not, this rank",
    "guard/action": "place in guard_policy.ACTIONS: 0 none to 4 stop",
    "guard/kind": "0 none, 1 nonfinite, 2 outlier, 3 drift",
    "guard/skipped": "1 if the update was not taken",
    "guard/repeats": "times this kind of verdict came without progress",
    "time/step_s": "seconds",
    "time/recorder_s": (
        "seconds inside the recorder during the step before, its wait for the writer included"
    ),
    "recorder/thinning": "level, 0 records everything that was asked for",
    "recorder/sample_stride": (
        "update norm and RMS_t of large tensors are measured on 1 in so many elements"
    ),
    "recorder/num_mirror_dropped": "points that no mirror got since the start",
}

# Vectors: one value per layer, tensor or expert, or one per sample.
SERIES: dict[str, str] = {
    "loss/per_sample": "nats per valid token, one per row of this rank's batch",
    "tokens/histogram": (
        "share of this rank's input ids in each of 64 ranges of ceil(vocabulary / 64) ids"
    ),
    "labels/histogram": (
        "share of this rank's valid labels in each of 64 ranges of ceil(vocabulary / 64) ids"
    ),
    "grad/norm_per_tensor": (
        "L2 after the reduction, one per tensor in the order of the notice `tensors`"
    ),
    "update/norm_per_tensor": (
        "L2 of after minus before, one per tensor in the order of the notice `tensors`"
    ),
    "rms_t/per_tensor": "sqrt(mean(g^2 / v)), one per tensor in the order of the notice `tensors`",
    "optimizer/lr": "learning rate as applied, one per parameter group",
    "optimizer/weight_decay": "as applied, one per parameter group",
    "activations/rms": "per layer, root mean square over this rank's batch",
    "activations/amax": "per layer, largest magnitude over this rank's batch",
    "attention/logit_max": "per layer, maximum over this rank's batch",
    "moe/load": "assigned tokens, one per expert, layer after layer",
    "moe/drop_share": "per layer, assignments dropped over assignments asked for",
    "moe/router_entropy": "nats, per layer, mean over tokens of the router's entropy",
    "moe/load_entropy": "nats, per layer, entropy of the load; log(experts) when balanced",
    "moe/bias": "one per expert, layer after layer, as used in this step",
    "fp8/amax": "largest magnitude before the cast, one per FP8 tensor",
    "fp8/amax_history": "largest magnitude in the amax history, one per FP8 tensor",
    "fp8/saturated_share": "elements clipped to the largest value, one per FP8 tensor",
    "fp8/underflow_share": "elements that became zero, one per FP8 tensor",
    "fp8/scale": "factor before the cast as used in this step, one per FP8 tensor",
    "fp8/scale_delay_steps": "steps since the amax behind the scale was seen, one per FP8 tensor",
}


def position(stage: str) -> int:
    """Place of `stage` in the chain; unknown stages sort last."""
    if stage in STAGES:
        return STAGES.index(stage)
    return len(STAGES)
