"""Maps the keys of a state dict to what they are.

A parameter, an optimizer's tensor and whose, or something else.

This module never guesses an owner: where the key does not name a parameter, the answer is empty.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from spiketriage.nouns.checkpoint import FieldKind, TensorRole

STATE_NAMES = frozenset(
    (
        *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_avg_slow", "exp_inf", "mu_product"),
        *(
            "momentum_buffer",
            "momentum",
            "square_avg",
            "acc_delta",
            "sum",
            "prev",
            "step",
            "eta",
            "ax",
        ),
        *("fp32_param", "param", "master_param", "fp32_from_fp16_params"),
    )
)
_OPTIMIZER = re.compile(r"(?:.*?[./])??(?:chained_\d+\.)?optim(?:izers?)?(?:_?states?)?(?:_\d+)?\.")
_STATE = re.compile(r"(?:[^.]+\.)??state\.(.+)\Z", re.DOTALL)
_OTHER = re.compile(
    r"(?:.*[./])?(?:lr_schedulers?|schedulers?|train_state|dataloader\w*|data_loader|dataset_state|rng\w*"
    r"|random_states?\w*|grad_scaler|loss_scaler|scaler)(?:[./].*)?\Z",
    re.DOTALL,
)
_KINDS: tuple[tuple[FieldKind, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))  # type: ignore[misc]  # the literals below are FieldKinds
    for kind, pattern in (
        ("fp8", r"(?:^|[./])_extra_state\d*(?:[./]|$)|fp8"),
        ("rng", r"(?:^|[./_])(?:rng|random_states?|seed)(?:[./_\d]|rank|state|$)"),
        ("scaler", r"(?:^|[./])(?:grad_|loss_)?scaler?(?:[./]|$)"),
        ("scheduler", r"(?:lr_|param_)?scheduler"),
        ("cursor", r"data_?loader|sampler|dataset_state|data_state|data_stages|consumed_"),
        (
            "progress",
            r"(?:^|[./])(?:train_state|step|global_step|iteration|epoch|timestamp|num_iter\w*)(?:[./]|$)",
        ),
        (
            "config",
            r"(?:^|[./])(?:args|config|hparams|hyper_parameters|param_groups|content_metadata)(?:[./]|$)",
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """What a key is, and for an optimizer tensor the parameter and the state's name (`exp_avg`, `step` …)."""

    role: TensorRole
    parameter: str = ""
    state: str = ""


def owner(key: str, parameters: Collection[str]) -> Owner:
    """What `key` is; `parameters` are the keys that could be parameters.

    An optimizer's key holds the parameter's name before its state's name (torch) or after it
    (Megatron).
    """
    found = _OPTIMIZER.match(key)
    if found is None:
        return Owner(role="other" if _OTHER.match(key) or "_extra_state" in key else "parameter")
    inner = _STATE.match(key, found.end())
    if inner is None:
        return Owner(role="optimizer")
    first, _, after = inner[1].partition(".")
    before, _, last = inner[1].rpartition(".")
    spellings = [(before, last), (after, first)]
    for name, state in spellings:
        if name and (known := _known(name, parameters)):
            return Owner(role="optimizer", parameter=known, state=state)
    for name, state in spellings:
        if name and state in STATE_NAMES:
            return Owner(role="optimizer", parameter="" if name.isdigit() else name, state=state)
    return Owner(role="optimizer")


def field_kind(key: str) -> FieldKind:
    """What kind of state the key names."""
    return next((kind for kind, pattern in _KINDS if pattern.search(key)), "other")


def _known(name: str, parameters: Collection[str]) -> str:
    for prefix in ("", "model.", "state.model.", "app.model.", "module.", "model.module."):
        if prefix + name in parameters:
            return prefix + name
    return ""
