"""What settings of known trainers are called and say about each defence.

One explicit table, read by `defenses`.

This module holds data and the reading of one value; it opens no file and never guesses at a name it
does not hold.

The keys were read in the projects' own sources: torchtitan b5bcd76 (2026-08), Megatron-LM d98e8a6
(2026-08), OLMo-core fa6c501 (2026-06), OLMo 59a53e3 (2025-09), nanotron 2411b02 (2026-04), litgpt
2685705 (2026-06), nanoGPT 3adf61e (2025-11), llm-foundry 8c8dd48 (2025-07), DeepSpeed edaa722
(2026-08), and in transformers 5.24, accelerate 1.15 and lightning 2.6 as installed. `ours` is the
trainer of `spiketriage rehearse` and `records.Manifest`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

# on/off: says so. never: off whatever other keys say. unneeded: there is nothing to defend. hint:
# an amount that acts only if a switch elsewhere is on.
Mark = Literal["on", "off", "never", "unneeded", "hint"]
Reads = Callable[[Any], Mark | None]

_AMOUNT = re.compile(
    r"(\d+\.?\d*(?:[eE][+-]?\d+)?)\s*(?:ba|ep|tok|sp|dur|iter)?"
)  # Composer: 100ba, 0.1dur


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key, dotted from its section on (a leading `/`: at the top only), how its value reads, where it was seen."""

    name: str
    reads: Reads
    seen_in: str


def amount(value: Any) -> Mark | None:
    """A number or a flag: on above zero, off at zero, null or False.

    A text that is no amount says nothing.
    """
    if isinstance(value, list):  # Megatron: one coefficient for each kind of balancing
        marks = {amount(one) for one in value}
        if "on" in marks:
            return "on"
        if marks == {"off"}:
            return "off"
        return None
    if value is None:
        return "off"
    number = _number(value)
    if number is None or math.isnan(number):
        return None
    if number > 0:
        return "on"
    return "off"


def norm(value: Any) -> Mark | None:
    """A threshold of clipping: an infinite one clips nothing."""
    number = _number(value)
    if number is not None and number == math.inf:
        return "off"
    return amount(value)


def thing(value: Any) -> Mark | None:
    """A section that is there or null; also a flag."""
    if isinstance(value, Mapping):
        if value.get("enabled") is False:
            return "off"
        return "on"
    if value is None or isinstance(value, bool):
        return amount(value)
    return None


def eight_bits(value: Any) -> Mark | None:
    """A section that turns FP8 on: without it there is nothing to scale."""
    mark = thing(value)
    if mark == "off":
        return "unneeded"
    return mark


def switch(value: Any) -> Mark | None:
    """A flag without which its amounts do nothing."""
    return {True: "on", False: "never"}[value] if isinstance(value, bool) else None  # type: ignore[return-value]


def gate(value: Any) -> Mark | None:
    """A flag that turns off and says nothing when it is set."""
    if value is False:
        return "never"
    return None


def hint(value: Any) -> Mark | None:
    """An amount that needs a switch."""
    if amount(value) == "on":
        return "hint"
    return amount(value)


def mode(value: Any) -> Mark | None:
    """fp16 or not: without it a loss scale has nothing to do."""
    return {True: "on", False: "unneeded"}[value] if isinstance(value, bool) else None  # type: ignore[return-value]


def wide(value: Any) -> Mark | None:
    """bf16: a loss scale has nothing to do."""
    if value is True:
        return "unneeded"
    return None


def static(value: Any) -> Mark | None:
    """A constant loss scale, which is no dynamic one; 0 and null leave the question open."""
    if not isinstance(value, bool) and amount(value) == "on":
        return "never"
    return None


def several(value: Any) -> Mark | None:
    """A number of micro-batches or experts: with at most one there is nothing to defend."""
    if value is None:
        return "unneeded"
    if isinstance(value, bool):
        number = None
    else:
        number = _number(value)
    if number is not None and number <= 1:
        return "unneeded"
    return None


def words(**marks: str) -> Reads:
    """Words in any case, `-` and `_` alike.

    `null` and `false` stand for themselves, other words say nothing.
    """

    def reads(value: Any) -> Mark | None:
        if value is None or value is False:
            return marks.get("null")  # type: ignore[return-value]
        if isinstance(value, str):
            text = str(value).rpartition(".")[2].lower().replace("-", "_")
        else:
            text = ""
        return marks.get(text) or marks.get(f"_{text}")  # type: ignore[return-value]

    return reads


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        found = _AMOUNT.fullmatch(value.strip())
        if found:
            return float(found[1])
        return None
    try:
        if isinstance(value, int | float):
            return float(value)
        return None
    except OverflowError:  # an integer of more than 300 digits
        if value > 0:
            return math.inf
        return -math.inf


_QK_NORM_MODELS = words(
    **dict.fromkeys(
        (
            "qwen3",
            "qwen3_moe",
            "olmo2",
            "olmo3",
            "olmoe",
            "gemma3",
            "gemma3_text",
            "exaone4",
            "apertus",
        ),
        "on",
    )
)
_BF16 = dict.fromkeys(
    (
        "bf16",
        "bf16_mixed",
        "bf16_true",
        "bfloat16",
        "amp_bf16",
        "fp32",
        "_32",
        "_32_true",
        "float32",
        "no",
    ),
    "unneeded",
)
_NO_FP8 = dict.fromkeys(("no", "fp16", "bf16"), "unneeded")

KEYS: Mapping[str, tuple[Key, ...]] = {
    "z-loss": (
        Key(
            name="z_loss_multiplier", reads=amount, seen_in="OLMo-core TransformerTrainModuleConfig"
        ),
        Key(name="softmax_auxiliary_loss", reads=switch, seen_in="OLMo olmo/config.py TrainConfig"),
        Key(
            name="auxiliary_loss_multiplier",
            reads=hint,
            seen_in="OLMo, acts with softmax_auxiliary_loss",
        ),
        Key(name="z_loss_enabled", reads=switch, seen_in="nanotron models_config.py"),
        Key(name="z_loss_coefficient", reads=hint, seen_in="nanotron, acts with z_loss_enabled"),
        Key(
            name="/z_loss_weight",
            reads=hint,
            seen_in="marin SimpleTrainConfig; elsewhere a router's, so it decides nothing",
        ),
    ),
    "fp32-accumulation": (
        Key(
            name="accumulate_allreduce_grads_in_fp32",
            reads=amount,
            seen_in="Megatron-LM arguments.py",
        ),
        Key(name="accumulate_grad_in_fp32", reads=amount, seen_in="nanotron OptimizerArgs"),
        Key(
            name="data_types.grad_accum_dtype",
            reads=words(fp32="on", fp16="off", bf16="off"),
            seen_in="DeepSpeed runtime/constants.py",
        ),
        Key(
            name="gradient_accumulation_steps",
            reads=several,
            seen_in="transformers TrainingArguments, DeepSpeed, nanoGPT",
        ),
        Key(name="accumulate_grad_batches", reads=several, seen_in="lightning Trainer"),
        Key(name="batch_accumulation_per_replica", reads=several, seen_in="nanotron TokensArgs"),
        Key(name="/num_micro", reads=several, seen_in="ours"),
    ),
    "scaled-init": (
        Key(
            name="init_fn",
            reads=words(mitchell="on", full_megatron="on", normal="off"),
            seen_in="OLMo InitFnType; kaiming_normal and fan_in do not scale with depth and are "
            "left open",
        ),
        Key(
            name="init_method",
            reads=words(llama="on", llama_depth="on", normal="off"),
            seen_in="OLMo-core nn/transformer/init.py InitMethod",
        ),
        Key(
            name="init_method.scaling_method",
            reads=words(num_layers="on", layer_index="on", none="off"),
            seen_in="nanotron InitScalingMethod",
        ),
        Key(name="init_div_is_residual", reads=amount, seen_in="llm-foundry param_init_fns.py"),
        Key(name="depth_init", reads=amount, seen_in="torchtitan transformers_modeling_backend"),
    ),
    "mup": (
        Key(
            name="use_mup",
            reads=amount,
            seen_in="Megatron-LM TransformerConfig, nanotron SpectralMupInit",
        ),
    ),
    "schedule": (
        Key(
            name="warmup_steps",
            reads=amount,
            seen_in="transformers, torchtitan LRSchedulersContainer, OLMo-core, ours",
        ),
        Key(name="warmup_ratio", reads=amount, seen_in="transformers before 5"),
        Key(name="warmup_fraction", reads=amount, seen_in="OLMo-core optim/scheduler.py"),
        Key(name="scheduler.warmup", reads=amount, seen_in="OLMo-core optim/scheduler.py"),
        Key(
            name="scheduler.t_warmup",
            reads=amount,
            seen_in="OLMo SchedulerConfig, llm-foundry (100ba)",
        ),
        Key(
            name="lr_warmup_steps", reads=amount, seen_in="nanotron LRSchedulerArgs, litgpt args.py"
        ),
        Key(name="lr_warmup_iters", reads=amount, seen_in="Megatron-LM SchedulerConfig"),
        Key(name="lr_warmup_samples", reads=amount, seen_in="Megatron-LM SchedulerConfig"),
        Key(
            name="lr_warmup_fraction",
            reads=amount,
            seen_in="Megatron-LM SchedulerConfig, litgpt args.py",
        ),
        Key(name="/warmup_iters", reads=amount, seen_in="nanoGPT train.py"),
        Key(name="warmup_num_steps", reads=amount, seen_in="DeepSpeed lr_schedules.py"),
        Key(
            name="/decay_lr",
            reads=gate,
            seen_in="nanoGPT train.py: False is a constant rate from step 0",
        ),
        Key(
            name="lr_scheduler_type",
            reads=words(constant="never"),
            seen_in="transformers optimization.py get_scheduler",
        ),
    ),
    "global-clip": (
        Key(
            name="max_grad_norm",
            reads=norm,
            seen_in="transformers TrainingArguments, OLMo, OLMo-core",
        ),
        Key(
            name="clip_grad",
            reads=norm,
            seen_in="Megatron-LM OptimizerConfig, nanotron OptimizerArgs, DeepSpeed state",
        ),
        Key(name="gradient_clip_val", reads=norm, seen_in="lightning Trainer"),
        Key(
            name="gradient_clip_algorithm",
            reads=words(value="never"),
            seen_in="lightning Trainer: by value, not norm",
        ),
        Key(name="training.max_norm", reads=norm, seen_in="torchtitan TrainingConfig"),
        Key(name="train.max_norm", reads=norm, seen_in="litgpt TrainArgs"),
        Key(name="/grad_clip", reads=norm, seen_in="nanoGPT train.py"),
        Key(name="gradient_clipping", reads=norm, seen_in="DeepSpeed constants.py"),
        Key(
            name="gradient_clipping.clipping_threshold",
            reads=norm,
            seen_in="llm-foundry pretrain yamls",
        ),
        Key(
            name="gradient_clipping.clipping_type",
            reads=words(value="never"),
            seen_in="llm-foundry: by value, not norm",
        ),
        Key(name="/clip", reads=norm, seen_in="ours"),
        Key(name="/clip/threshold", reads=norm, seen_in="ours"),
        Key(name="/clip_norm", reads=norm, seen_in="ours"),
    ),
    "guard": (),  # others' checks for NaN stop a job or skip on one rank's word: another thing
    "loss-scale": (
        Key(
            name="fp16",
            reads=mode,
            seen_in="transformers TrainingArguments, Megatron-LM OptimizerConfig",
        ),
        Key(name="fp16.enabled", reads=mode, seen_in="DeepSpeed precision_config.py"),
        Key(name="fp16.loss_scale", reads=static, seen_in="DeepSpeed: 0 is dynamic"),
        Key(
            name="fp16.initial_scale_power", reads=hint, seen_in="DeepSpeed, acts with fp16.enabled"
        ),
        Key(
            name="/loss_scale", reads=static, seen_in="Megatron-LM: a number is ConstantGradScaler"
        ),
        Key(name="args.loss_scale", reads=static, seen_in="Megatron-LM, in its checkpoints"),
        Key(name="initial_loss_scale", reads=hint, seen_in="Megatron-LM, acts with fp16"),
        Key(name="bf16", reads=wide, seen_in="transformers TrainingArguments, Megatron-LM"),
        Key(name="bf16.enabled", reads=wide, seen_in="DeepSpeed precision_config.py"),
        Key(
            name="mixed_precision",
            reads=words(fp16="on", **_BF16),
            seen_in="accelerate Accelerator: fp16 has a GradScaler",
        ),
        Key(
            name="mixed_precision_param", reads=words(**_BF16), seen_in="torchtitan TrainingConfig"
        ),
        Key(
            name="/precision",
            reads=words(_16_mixed="on", **_BF16),
            seen_in="lightning, OLMo, llm-foundry, our Identity",
        ),
        Key(
            name="trainer.precision",
            reads=words(_16_mixed="on", **_BF16),
            seen_in="lightning's command line",
        ),
        Key(
            name="hparams.precision",
            reads=words(_16_mixed="on", **_BF16),
            seen_in="litgpt, in its checkpoints",
        ),
    ),
    "qk-norm": (
        Key(
            name="qk_layernorm",
            reads=amount,
            seen_in="Megatron-LM TransformerConfig, transformers phi, persimmon, stablelm",
        ),
        Key(name="qk_l2_norm", reads=amount, seen_in="Megatron-LM TransformerConfig"),
        Key(name="use_qk_norm", reads=amount, seen_in="transformers cohere, glm4_moe, llama4"),
        Key(
            name="qk_norm",
            reads=thing,
            seen_in="OLMo-core AttentionConfig, torchtitan models/common/attention.py",
        ),
        Key(name="attention_layer_norm", reads=amount, seen_in="OLMo ModelConfig"),
        Key(name="norm_qk", reads=amount, seen_in="litgpt Config"),
        Key(name="qk_ln", reads=amount, seen_in="llm-foundry attention.py"),
        Key(name="qk_gn", reads=amount, seen_in="llm-foundry attention.py"),
        Key(
            name="model_type",
            reads=_QK_NORM_MODELS,
            seen_in="transformers: these models always have q_norm and k_norm",
        ),
    ),
    "softcap": (
        Key(
            name="final_logit_softcapping",
            reads=amount,
            seen_in="transformers gemma2, llm-foundry, litgpt",
        ),
        Key(
            name="attn_logit_softcapping",
            reads=amount,
            seen_in="transformers gemma2, llm-foundry attention.py",
        ),
        Key(name="attention_logit_softcapping", reads=amount, seen_in="litgpt Config"),
        Key(name="logits_soft_cap", reads=amount, seen_in="transformers recurrent_gemma"),
    ),
    "router-balance": (
        Key(name="moe_z_loss_coeff", reads=amount, seen_in="Megatron-LM TransformerConfig"),
        Key(name="moe_aux_loss_coeff", reads=amount, seen_in="Megatron-LM TransformerConfig"),
        Key(
            name="moe_router_enable_expert_bias",
            reads=amount,
            seen_in="Megatron-LM TransformerConfig",
        ),
        Key(name="lb_loss_weight", reads=amount, seen_in="OLMo-core nn/moe/moe.py"),
        Key(name="feed_forward_moe.z_loss_weight", reads=amount, seen_in="OLMo-core nn/moe/moe.py"),
        Key(name="router.bias_gamma", reads=amount, seen_in="OLMo-core nn/moe/router.py"),
        Key(
            name="load_balance_coeff",
            reads=amount,
            seen_in="torchtitan models/common/config_utils.py",
        ),
        Key(
            name="output_router_logits",
            reads=switch,
            seen_in="transformers mixtral: without it no auxiliary loss is added",
        ),
        Key(
            name="router_aux_loss_coef",
            reads=hint,
            seen_in="transformers, acts with output_router_logits; nanotron",
        ),
        Key(name="num_moe_experts", reads=several, seen_in="Megatron-LM: null is a dense model"),
        Key(name="num_local_experts", reads=several, seen_in="transformers mixtral"),
        Key(name="n_expert", reads=several, seen_in="litgpt Config"),
    ),
    "fp8-scaling": (
        Key(
            name="fp8",
            reads=words(e4m3="on", hybrid="on", null="unneeded"),
            seen_in="Megatron-LM TransformerConfig",
        ),
        Key(
            name="float8_config",
            reads=eight_bits,
            seen_in="OLMo-core float8/__init__.py Float8Config",
        ),
        Key(
            name="mixed_precision",
            reads=words(fp8="on", **_NO_FP8),
            seen_in="accelerate Accelerator",
        ),
        Key(name="/precision", reads=words(transformer_engine="on"), seen_in="lightning"),
    ),
}

# Keys that mean the same thing: if one says on and another off, nobody knows which one acts.
ONE_MEANING = ("global-clip",)
# Sections that have keys of the same names and are not the recipe of the model that is trained.
ELSEWHERE = frozenset(
    (
        "callbacks",
        "profiler",
        "profiling",
        "data",
        "dataset",
        "data_loader",
        "eval",
        "evaluation",
        "evaluators",
        "teacher",
    )
)
