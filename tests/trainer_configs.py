"""Configurations as the known trainers write them, and what each says of its defences.

Nothing here is ours.
"""

from __future__ import annotations

import math
from typing import Any

# Written from each project's documentation of its own options, by hand; every name that is not
# listed is unknown.
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "Megatron-LM, dense bf16": (
        {
            "clip_grad": 1.0,
            "qk_layernorm": True,
            "qk_l2_norm": False,
            "lr_warmup_iters": 0,
            "lr_warmup_fraction": 0.01,
            "lr_decay_style": "cosine",
            "fp16": False,
            "bf16": True,
            "initial_loss_scale": 4294967296,
            "loss_scale": None,
            "num_moe_experts": None,
            "moe_aux_loss_coeff": 0.0,
            "accumulate_allreduce_grads_in_fp32": True,
            "fp8": None,
            "use_mup": False,
        },
        {
            "global-clip": "on",
            "qk-norm": "on",
            "schedule": "on",
            "loss-scale": "not needed",
            "router-balance": "not needed",
            "fp32-accumulation": "on",
            "fp8-scaling": "not needed",
            "mup": "off",
        },
    ),
    "Megatron-LM, experts, FP8, fp16 with a constant scale": (
        {
            "num_moe_experts": 8,
            "moe_aux_loss_coeff": [0.0, 0.01],
            "fp8": "hybrid",
            "fp16": True,
            "loss_scale": 128,
            "clip_grad": 0.0,
        },
        {"router-balance": "on", "fp8-scaling": "on", "loss-scale": "off", "global-clip": "off"},
    ),
    "transformers, a constant rate has no warm-up whatever the steps say": (
        {"lr_scheduler_type": "constant", "warmup_steps": 100, "max_grad_norm": 1.0, "fp16": True},
        {"schedule": "off", "global-clip": "on", "loss-scale": "on"},
    ),
    "transformers, mixtral without its auxiliary loss": (
        {
            "model_type": "mixtral",
            "num_local_experts": 8,
            "router_aux_loss_coef": 0.02,
            "output_router_logits": False,
        },
        {"router-balance": "off"},
    ),
    "transformers, qwen3": ({"model_type": "qwen3", "num_hidden_layers": 28}, {"qk-norm": "on"}),
    "transformers, gemma2": (
        {"model_type": "gemma2", "final_logit_softcapping": 30.0, "attn_logit_softcapping": None},
        {"softcap": "on"},
    ),
    "OLMo, its multiplier acts only with the switch": (
        {
            "softmax_auxiliary_loss": False,
            "auxiliary_loss_multiplier": 1e-5,
            "max_grad_norm": 1.0,
            "scheduler": {"name": "cosine_with_warmup", "t_warmup": 2000},
            "model": {"attention_layer_norm": True, "init_fn": "mitchell"},
            "precision": "amp_bf16",
        },
        {
            "z-loss": "off",
            "global-clip": "on",
            "schedule": "on",
            "qk-norm": "on",
            "scaled-init": "on",
            "loss-scale": "not needed",
        },
    ),
    "OLMo-core, warm-up of a callback is not the schedule": (
        {
            "train_module": {
                "z_loss_multiplier": 1e-5,
                "max_grad_norm": None,
                "float8_config": {"enabled": False},
            },
            "trainer": {
                "callbacks": {"sequence_length": {"warmup_steps": 2000}, "profiler": {"warmup": 5}}
            },
            "model": {"block": {"attention": {"qk_norm": {"eps": 1e-6}}}, "init_method": "llama"},
        },
        {
            "z-loss": "on",
            "global-clip": "off",
            "fp8-scaling": "not needed",
            "qk-norm": "on",
            "scaled-init": "on",
        },
    ),
    "torchtitan": (
        {
            "training": {"max_norm": 1.0, "mixed_precision_param": "bfloat16"},
            "lr_scheduler": {"warmup_steps": 200, "decay_type": "cosine"},
        },
        {"global-clip": "on", "schedule": "on", "loss-scale": "not needed"},
    ),
    "DeepSpeed": (
        {
            "gradient_clipping": 1.0,
            "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16},
            "bf16": {"enabled": False},
            "data_types": {"grad_accum_dtype": "fp32"},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1000}},
        },
        {"global-clip": "on", "loss-scale": "on", "fp32-accumulation": "on", "schedule": "on"},
    ),
    "llm-foundry": (
        {
            "algorithms": {
                "gradient_clipping": {"clipping_type": "norm", "clipping_threshold": 1.0}
            },
            "scheduler": {"name": "cosine_with_warmup", "t_warmup": "100ba"},
            "precision": "amp_bf16",
            "model": {
                "attn_config": {"qk_ln": False, "qk_gn": True},
                "init_config": {"init_div_is_residual": False},
            },
        },
        {
            "global-clip": "on",
            "schedule": "on",
            "loss-scale": "not needed",
            "qk-norm": "on",
            "scaled-init": "off",
        },
    ),
    "nanotron": (
        {
            "optimizer": {
                "clip_grad": None,
                "accumulate_grad_in_fp32": True,
                "learning_rate_scheduler": {"lr_warmup_steps": 0},
            },
            "model": {"model_config": {"z_loss_enabled": True, "z_loss_coefficient": 1e-4}},
        },
        {"global-clip": "off", "fp32-accumulation": "on", "schedule": "off", "z-loss": "on"},
    ),
    "Lightning, clipping by value is not clipping by norm": (
        {
            "gradient_clip_val": 0.5,
            "gradient_clip_algorithm": "value",
            "precision": "16-mixed",
            "accumulate_grad_batches": 1,
        },
        {"global-clip": "off", "loss-scale": "on", "fp32-accumulation": "not needed"},
    ),
    "keys that mean the same and disagree": ({"max_grad_norm": 0.0, "gradient_clipping": 1.0}, {}),
    "an infinite threshold": ({"max_grad_norm": math.inf}, {"global-clip": "off"}),
    "values that are decided elsewhere": (
        {"gradient_clipping": "auto", "fp16": {"enabled": "auto"}, "warmup_steps": "auto"},
        {},
    ),
    "a weight that may be a router's": ({"z_loss_weight": 1e-4}, {}),
    "nothing of any defence": (
        {"lr": 1e-3, "betas": [0.9, 0.95], "clip_skip": 1, "warmup": {"x": 1}},
        {},
    ),
}
