"""What a Hugging Face `Trainer` holds that decides a run's numbers, in this package's words.

It never changes a setting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from spiketriage.train.adapters.settings import hparams_of

# Names and places, which differ between machines and attempts while the numbers are the same.
VOLATILE = frozenset(
    {
        "output_dir",
        "run_name",
        "logging_dir",
        "local_rank",
        "report_to",
        "disable_tqdm",
        "log_level",
        "log_level_replica",
        "resume_from_checkpoint",
        "hub_token",
        "push_to_hub_token",
        "save_strategy",
        "save_steps",
        "save_total_limit",
        "project",
        "trackio_space_id",
    }
)
SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "warmup-constant",
    "linear": "warmup-linear",
    "cosine": "warmup-cosine",
}


def hparams(trainer: Any) -> dict[str, Any]:
    """Hyper-parameters as the optimizer and the arguments hold them."""
    args = trainer.args
    settings = hparams_of(
        getattr(trainer.optimizer, "optimizer", trainer.optimizer),
        clip=float(args.max_grad_norm),
        num_micro=args.gradient_accumulation_steps,
        seed=args.seed,
    )
    return {
        **settings,
        "learning_rate": float(args.learning_rate),
        "lr_scheduler_type": str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)),
        "warmup_steps": args.get_warmup_steps(trainer.state.max_steps),
        "max_steps": trainer.state.max_steps,
        "batch_size": args.per_device_train_batch_size,
        "precision": precision(trainer),
    }


def schedule(trainer: Any) -> dict[str, Any]:
    """The schedule for a manifest; of a kind that the desk does not know, its name alone.

    Hugging Face's schedules count from 0: step 1 has the rate of counter 0, and a step that was
    left out is not counted.
    """
    args = trainer.args
    kind = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    scheduler = trainer.lr_scheduler
    if type(scheduler).__name__ != "LambdaLR" or args.lr_scheduler_kwargs:
        return {"kind": f"hf-{type(scheduler).__name__}"}
    if kind not in SCHEDULES:
        return {"kind": f"hf-{kind}"}
    return {
        "kind": SCHEDULES[kind],
        "peak": float(args.learning_rate),
        "floor": 0.0,
        "warmup_steps": args.get_warmup_steps(trainer.state.max_steps),
        "total_steps": trainer.state.max_steps,
        "first": 0,
    }


def config(trainer: Any) -> dict[str, Any]:
    """Arguments and model config, plain JSON, without what differs between attempts."""
    args = {name: value for name, value in trainer.args.to_dict().items() if name not in VOLATILE}
    if hasattr(trainer.model, "config"):
        model = trainer.model.config.to_dict()
    else:
        model = repr(trainer.model)
    text = json.dumps({"args": args, "model": model}, default=repr, sort_keys=True)
    plain: dict[str, Any] = json.loads(text)
    return plain


def precision(trainer: Any) -> str:
    """What autocast computes in, else the dtype of the parameters."""
    mixed = trainer.accelerator.mixed_precision
    if mixed not in (None, "no"):
        return str(mixed)
    kinds: Mapping[torch.dtype, str] = {
        torch.float32: "fp32",
        torch.bfloat16: "bf16",
        torch.float16: "fp16",
    }
    dtype = next(trainer.model.parameters()).dtype
    return kinds.get(dtype, str(dtype).removeprefix("torch."))


def kernel(trainer: Any) -> str:
    """The attention implementation."""
    return str(
        getattr(getattr(trainer.model, "config", None), "_attn_implementation", None) or "deployed"
    )
