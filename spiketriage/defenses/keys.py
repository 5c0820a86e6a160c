"""What the settings of known trainers are called, and what they say about each stabilizer.

This module is one table and the reading of settings by it; it never guesses at a name it does not
hold.

The keys were read in the projects' own sources: torchtitan b5bcd76 (2026-08), Megatron-LM d98e8a6
(2026-08), OLMo-core fa6c501 (2026-06), OLMo 59a53e3 (2025-09), nanotron 2411b02 (2026-04), litgpt
2685705 (2026-06), nanoGPT 3adf61e (2025-11), llm-foundry 8c8dd48 (2025-07), DeepSpeed edaa722
(2026-08), and in transformers 5.24, accelerate 1.15 and lightning 2.6 as installed. `ours` is the
trainer of `spiketriage rehearse` and `nouns.checkpoint.Manifest`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spiketriage.defenses.values import (
    Reads,
    amount,
    bf16,
    flag,
    fp8_section,
    fp16,
    more_than_one,
    needs_flag,
    off_only,
    section,
    static_scale,
    threshold,
    words,
)
from spiketriage.defenses.weigh import Evidence, Layer, Mark
from spiketriage.readers.config_file import Setting

_GRADIENT_DTYPE = words(fp32="on", fp16="off", bf16="off")

# `kaiming_normal` and `fan_in` do not scale with depth and are left open.
_OLMO_INIT = words(mitchell="on", full_megatron="on", normal="off")
_OLMO_CORE_INIT = words(llama="on", llama_depth="on", normal="off")
_NANOTRON_INIT = words(num_layers="on", layer_index="on", none="off")

_CONSTANT_RATE = words(constant="never")
_BY_VALUE = words(value="never")

# Names of a precision that is not fp16: a loss scale has nothing to do.
_NO_FP16: Mapping[str, Mark] = {
    "bf16": "unneeded",
    "bf16_mixed": "unneeded",
    "bf16_true": "unneeded",
    "bfloat16": "unneeded",
    "amp_bf16": "unneeded",
    "fp32": "unneeded",
    "_32": "unneeded",
    "_32_true": "unneeded",
    "float32": "unneeded",
    "no": "unneeded",
}
_FP16_WORD = words(fp16="on", **_NO_FP16)
_BF16_WORD = words(**_NO_FP16)
_PRECISION = words(_16_mixed="on", **_NO_FP16)

_FP8_FORMAT = words(e4m3="on", hybrid="on", null="unneeded")
_FP8_WORD = words(fp8="on", no="unneeded", fp16="unneeded", bf16="unneeded")
_FP8_PRECISION = words(transformer_engine="on")

# Models whose attention has `q_norm` and `k_norm` whatever their configuration says.
_QK_NORM_MODELS = words(
    qwen3="on",
    qwen3_moe="on",
    olmo2="on",
    olmo3="on",
    olmoe="on",
    gemma3="on",
    gemma3_text="on",
    exaone4="on",
    apertus="on",
)

# By stabilizer: a key, dotted from its section on (a leading `/`: at the top only), how its value
# reads, and where the key was seen.
# fmt: off
KEYS: Mapping[str, Mapping[str, Reads]] = {
    "z-loss": {
        "z_loss_multiplier":         amount,      # OLMo-core TransformerTrainModuleConfig
        "softmax_auxiliary_loss":    flag,        # OLMo olmo/config.py TrainConfig
        "auxiliary_loss_multiplier": needs_flag,  # OLMo, acts with softmax_auxiliary_loss
        "z_loss_enabled":            flag,        # nanotron models_config.py
        "z_loss_coefficient":        needs_flag,  # nanotron, acts with z_loss_enabled
        "/z_loss_weight":            needs_flag,  # marin; elsewhere a router's: decides nothing
    },
    "fp32-accumulation": {
        "accumulate_allreduce_grads_in_fp32": amount,           # Megatron-LM arguments.py
        "accumulate_grad_in_fp32":            amount,           # nanotron OptimizerArgs
        "data_types.grad_accum_dtype":        _GRADIENT_DTYPE,  # DeepSpeed runtime/constants.py
        "gradient_accumulation_steps":        more_than_one,    # transformers, DeepSpeed, nanoGPT
        "accumulate_grad_batches":            more_than_one,    # lightning Trainer
        "batch_accumulation_per_replica":     more_than_one,    # nanotron TokensArgs
        "/num_micro":                         more_than_one,    # ours
    },
    "scaled-init": {
        "init_fn":                    _OLMO_INIT,       # OLMo InitFnType
        "init_method":                _OLMO_CORE_INIT,  # OLMo-core transformer/init.py InitMethod
        "init_method.scaling_method": _NANOTRON_INIT,   # nanotron InitScalingMethod
        "init_div_is_residual":       amount,           # llm-foundry param_init_fns.py
        "depth_init":                 amount,           # torchtitan transformers_modeling_backend
    },
    "mup": {
        "use_mup": amount,  # Megatron-LM, nanotron SpectralMupInit
    },
    "schedule": {
        "warmup_steps":       amount,          # transformers, torchtitan, OLMo-core, ours
        "warmup_ratio":       amount,          # transformers before 5
        "warmup_fraction":    amount,          # OLMo-core optim/scheduler.py
        "scheduler.warmup":   amount,          # OLMo-core optim/scheduler.py
        "scheduler.t_warmup": amount,          # OLMo SchedulerConfig, llm-foundry (100ba)
        "lr_warmup_steps":    amount,          # nanotron LRSchedulerArgs, litgpt args.py
        "lr_warmup_iters":    amount,          # Megatron-LM SchedulerConfig
        "lr_warmup_samples":  amount,          # Megatron-LM SchedulerConfig
        "lr_warmup_fraction": amount,          # Megatron-LM SchedulerConfig, litgpt args.py
        "/warmup_iters":      amount,          # nanoGPT train.py
        "warmup_num_steps":   amount,          # DeepSpeed lr_schedules.py
        "/decay_lr":          off_only,        # nanoGPT: False is a constant rate
        "lr_scheduler_type":  _CONSTANT_RATE,  # transformers get_scheduler
    },
    "global-clip": {
        "max_grad_norm":                        threshold,  # transformers, OLMo, OLMo-core
        "clip_grad":                            threshold,  # Megatron-LM, nanotron, DeepSpeed state
        "gradient_clip_val":                    threshold,  # lightning Trainer
        "gradient_clip_algorithm":              _BY_VALUE,  # lightning Trainer: by value, not norm
        "training.max_norm":                    threshold,  # torchtitan TrainingConfig
        "train.max_norm":                       threshold,  # litgpt TrainArgs
        "/grad_clip":                           threshold,  # nanoGPT train.py
        "gradient_clipping":                    threshold,  # DeepSpeed constants.py
        "gradient_clipping.clipping_threshold": threshold,  # llm-foundry pretrain yamls
        "gradient_clipping.clipping_type":      _BY_VALUE,  # llm-foundry: by value, not norm
        "/clip":                                threshold,  # ours
        "/clip/threshold":                      threshold,  # ours
        "/clip_norm":                           threshold,  # ours
    },
    "guard": {},  # others check for NaN on one rank and stop or skip: another thing
    "loss-scale": {
        "fp16":                     fp16,          # transformers, Megatron-LM OptimizerConfig
        "fp16.enabled":             fp16,          # DeepSpeed precision_config.py
        "fp16.loss_scale":          static_scale,  # DeepSpeed: 0 is dynamic
        "fp16.initial_scale_power": needs_flag,    # DeepSpeed, acts with fp16.enabled
        "/loss_scale":              static_scale,  # Megatron-LM: a number is ConstantGradScaler
        "args.loss_scale":          static_scale,  # Megatron-LM, in its checkpoints
        "initial_loss_scale":       needs_flag,    # Megatron-LM, acts with fp16
        "bf16":                     bf16,          # transformers TrainingArguments, Megatron-LM
        "bf16.enabled":             bf16,          # DeepSpeed precision_config.py
        "mixed_precision":          _FP16_WORD,    # accelerate Accelerator: fp16 has a GradScaler
        "mixed_precision_param":    _BF16_WORD,    # torchtitan TrainingConfig
        "/precision":               _PRECISION,    # lightning, OLMo, llm-foundry, our Identity
        "trainer.precision":        _PRECISION,    # lightning's command line
        "hparams.precision":        _PRECISION,    # litgpt, in its checkpoints
    },
    "qk-norm": {
        "qk_layernorm":         amount,           # Megatron-LM; transformers phi, stablelm
        "qk_l2_norm":           amount,           # Megatron-LM TransformerConfig
        "use_qk_norm":          amount,           # transformers cohere, glm4_moe, llama4
        "qk_norm":              section,          # OLMo-core AttentionConfig, torchtitan
        "attention_layer_norm": amount,           # OLMo ModelConfig
        "norm_qk":              amount,           # litgpt Config
        "qk_ln":                amount,           # llm-foundry attention.py
        "qk_gn":                amount,           # llm-foundry attention.py
        "model_type":           _QK_NORM_MODELS,  # transformers: these models always have it
    },
    "softcap": {
        "final_logit_softcapping":     amount,  # transformers gemma2, llm-foundry, litgpt
        "attn_logit_softcapping":      amount,  # transformers gemma2, llm-foundry
        "attention_logit_softcapping": amount,  # litgpt Config
        "logits_soft_cap":             amount,  # transformers recurrent_gemma
    },
    "router-balance": {
        "moe_z_loss_coeff":               amount,         # Megatron-LM TransformerConfig
        "moe_aux_loss_coeff":             amount,         # Megatron-LM TransformerConfig
        "moe_router_enable_expert_bias":  amount,         # Megatron-LM TransformerConfig
        "lb_loss_weight":                 amount,         # OLMo-core nn/moe/moe.py
        "feed_forward_moe.z_loss_weight": amount,         # OLMo-core nn/moe/moe.py
        "router.bias_gamma":              amount,         # OLMo-core nn/moe/router.py
        "load_balance_coeff":             amount,         # torchtitan models/common/config_utils.py
        "output_router_logits":           flag,           # transformers mixtral: no loss without it
        "router_aux_loss_coef":           needs_flag,     # nanotron; transformers, with that flag
        "num_moe_experts":                more_than_one,  # Megatron-LM: null is a dense model
        "num_local_experts":              more_than_one,  # transformers mixtral
        "n_expert":                       more_than_one,  # litgpt Config
    },
    "fp8-scaling": {
        "fp8":             _FP8_FORMAT,     # Megatron-LM TransformerConfig
        "float8_config":   fp8_section,     # OLMo-core float8/__init__.py Float8Config
        "mixed_precision": _FP8_WORD,       # accelerate Accelerator
        "/precision":      _FP8_PRECISION,  # lightning
    },
}
# fmt: on

# Sections that have keys of the same names and are not the recipe of the model that is trained.
ELSEWHERE = frozenset(
    {
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
    }
)


def from_settings(
    settings: Sequence[Setting], layer: Layer, *, selectable: Sequence[str] = ()
) -> list[Evidence]:
    """What the table of keys reads in `settings`.

    `selectable` are the names that a list `stabilizers` chooses from.
    """
    by_last_key: dict[str, list[Setting]] = {}
    for setting in settings:
        by_last_key.setdefault(_plain(setting.keys[-1]), []).append(setting)
    evidence = []
    for stabilizer, reads_by_name in KEYS.items():
        for name, reads in reads_by_name.items():
            for setting in by_last_key.get(_parts(name)[-1], []):
                if not _names(name, setting):
                    continue
                mark = reads(setting.value)
                if mark is not None:
                    evidence.append(_evidence(stabilizer, mark, layer, setting))
    return evidence + _listed(settings, layer, selectable)


def _listed(settings: Sequence[Setting], layer: Layer, selectable: Sequence[str]) -> list[Evidence]:
    """What the list of `spiketriage rehearse` says: a member is on, any other is off."""
    evidence = []
    for setting in settings:
        if setting.keys[-1] != "stabilizers" or not _is_list_of_names(setting.value):
            continue
        for stabilizer in selectable:
            mark: Mark = "on" if stabilizer in setting.value else "off"
            evidence.append(_evidence(stabilizer, mark, layer, setting))
    return evidence


def _is_list_of_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(member, str) for member in value)


def _names(name: str, setting: Setting) -> bool:
    """Whether a key of the table names this setting, and not one of another section."""
    parts = _parts(name)
    keys = list(map(_plain, setting.keys))
    if name.startswith("/") and len(keys) != len(parts):
        return False
    return keys[-len(parts) :] == parts and not ELSEWHERE.intersection(keys[:-1])


def _parts(name: str) -> list[str]:
    """The parts of a key; one with a `/` inside it (`clip/threshold`) is a single part."""
    return name.removeprefix("/").split(".")


def _plain(key: str) -> str:
    return key.replace("-", "_").removeprefix("__")


def _evidence(stabilizer: str, mark: Mark, layer: Layer, setting: Setting) -> Evidence:
    text = f"{setting.name:.80} = {_shown(setting.value)}"
    return Evidence(stabilizer=stabilizer, mark=mark, layer=layer, text=text, where=setting.where)


def _shown(value: object) -> str:
    """A value on one line, whatever somebody wrote into a configuration."""
    if isinstance(value, Mapping):
        return "{…}"
    try:
        return f"{value!r:.60}"
    except (ValueError, RecursionError):  # an integer of too many digits, or lists within lists
        return f"a {type(value).__name__} too large to show"
