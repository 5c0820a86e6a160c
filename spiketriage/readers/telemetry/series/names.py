"""What other people call a metric, and what `wire.chain.METRICS` calls it.

This module never guesses from a value: a name that is not in the table stays as it was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Of two keys of one metric in one log the earlier here is the one to be believed: a bar that
# smooths calls its mean `loss`, and Hugging Face's `train_loss` is that of the whole run.
# nanoGPT's `train loss` is an evaluation.
ALIASES: Mapping[str, str] = {
    "reduced_train_loss": "loss/mean",
    "lm-loss-training/lm loss": "loss/mean",
    "train/lm_loss": "loss/mean",
    "train/lm loss": "loss/mean",
    "learning/loss": "loss/mean",
    "train/loss_step": "loss/mean",
    "train_loss_step": "loss/mean",
    "train_inner/loss": "loss/mean",
    "loss/average": "loss/mean",
    "loss/train": "loss/mean",
    "loss": "loss/mean",
    "train/loss": "loss/mean",
    "train/ce_loss": "loss/mean",
    "train/ce loss": "loss/mean",
    "loss train": "loss/mean",
    "lm loss": "loss/mean",
    "lm-loss": "loss/mean",
    "lm_loss": "loss/mean",
    "trl": "loss/mean",
    "loss_metrics/global_avg_loss": "loss/mean",
    "loss/train/total": "loss/mean",
    "train/samples/train_loss": "loss/mean",
    "training_loss": "loss/mean",
    "training/loss": "loss/mean",
    "train/total_loss": "loss/mean",
    "train/cross_entropy_loss": "loss/mean",
    "train-loss": "loss/mean",
    "loss_train": "loss/mean",
    "step_loss": "loss/mean",
    "train_loss": "loss/mean",
    "grad_norm": "grad/norm",
    "grad norm": "grad/norm",
    "grad-norm": "grad/norm",
    "l2_norm/grad/global": "grad/norm",
    "gradient_norm": "grad/norm",
    "train/grad_norm": "grad/norm",
    "optim/total grad norm": "grad/norm",
    "norm": "grad/norm",
    "actor/grad_norm": "grad/norm",
    "grad/norm/total": "grad/norm",
    "gnorm": "grad/norm",
    "train_inner/gnorm": "grad/norm",
    "train/gnorm": "grad/norm",
    "learning/grad_norm": "grad/norm",
    "learning/raw_grad_norm": "grad/norm",
    "gradient norm": "grad/norm",
    "gradnorm": "grad/norm",
    "global_grad_norm": "grad/norm",
    "train/global_grad_norm": "grad/norm",
    "total_grad_norm": "grad/norm",
    "grad_norm/total": "grad/norm",
    "grad_2.0_norm_total": "grad/norm",
    "optim/grad_norm": "grad/norm",
    "training/grad_norm": "grad/norm",
    "train/grad-norm": "grad/norm",
    "lr": "lr",
    "learning_rate": "lr",
    "learning rate": "lr",
    "learning-rate": "lr",
    "train/samples/lr": "lr",
    "train/learning_rate": "lr",
    "optim/lr": "lr",
    "actor/lr": "lr",
    "train_inner/lr": "lr",
    "learning/current_learning_rate": "lr",
    "train/lr": "lr",
    "training/lr": "lr",
    "lr-adam": "lr",
    "lr-adamw": "lr",
    "loss scale": "loss_scale",
    "loss-scale": "loss_scale",
    "train/samples/loss_scale": "loss_scale",
    "consumed tokens": "tokens/total",
    "consumed_tokens": "tokens/total",
    "throughput/total tokens": "tokens/total",
    "loss_scale": "loss_scale",
    "train/loss_scale": "loss_scale",
    "skipped": "loss_scale/skipped",
    "number of skipped iterations": "loss_scale/skipped",
    "skipped iterations": "loss_scale/skipped",
    "skipped-iterations": "loss_scale/skipped",
    "skipped_iterations": "loss_scale/skipped",
    "skipped_iter": "loss_scale/skipped",
    "num_skipped_iterations": "loss_scale/skipped",
    "overflow": "loss_scale/skipped",
    "grad_overflow": "loss_scale/skipped",
    "found_inf": "loss_scale/skipped",
    "skipped_steps": "loss_scale/skipped_total",
    "skipped steps": "loss_scale/skipped_total",
    "num_skipped_steps": "loss_scale/skipped_total",
    "train/skipped_steps": "loss_scale/skipped_total",
}
STEP_KEYS = (
    "step",
    "global_step",
    "train/global_step",
    "trainer/global_step",
    "iteration",
    "iter",
    "_step",
    "batch",
    "current_steps",
    "num_updates",
    "optimizer_step",
    "training_step",
    "train_step",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The aliases, with the run's own on top.

    `columns` maps a key as written to a name of ours (or to `step`).
    """

    columns: Mapping[str, str] = field(default_factory=dict)

    def canonical(self, written: str) -> str:
        """Our name of a metric that was written as `written`, else `written` itself."""
        if written in self.columns:
            return self.columns[written]
        return ALIASES.get(written.strip().lower(), written)

    def rank(self, written: str) -> int:
        """How much a key is to be believed among those of one metric; the least is the best."""
        if written in self.columns:
            return -1
        known = list(ALIASES)
        key = written.strip().lower()
        if key in known:
            return known.index(key)
        return len(known)

    def step_key(self, keys: Mapping[str, object]) -> str | None:
        """The key among `keys` that holds the step; None if there is none."""
        own = [key for key, name in self.columns.items() if name == "step"]
        return next((key for key in (*own, *STEP_KEYS) if key in keys), None)


DEFAULT = Names()
