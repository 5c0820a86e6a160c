"""Says what the keys of a state dict are: parameters, optimizer tensors and whose, or others.

This module never guesses an owner: where the key does not name a parameter, the answer is empty.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from spiketriage.nouns.checkpoint import FieldKind, TensorRole

STATE_NAMES = frozenset(
    (
        *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_avg_slow", "exp_inf", "mu_product"),
        *("momentum_buffer", "momentum", "square_avg", "acc_delta", "sum", "prev", "step"),
        *("eta", "ax"),
        # what mixed precision keeps of the weights
        *("fp32_param", "param", "master_param", "fp32_from_fp16_params"),
    )
)
_OPTIMIZER = re.compile(
    r"\A(?:.*?[./])??(?:chained_\d+\.)?optim(?:izers?)?(?:_?states?)?(?:_\d+)?\."
)
_STATE = re.compile(r"(?:[^.]{1,500}\.)??state\.(.+)\Z", re.DOTALL)
_OTHER = re.compile(
    r"\A(?:.*[./])?(?:lr_schedulers?|schedulers?|train_state|dataloader\w*|data_loader|dataset_state"
    r"|rng\w*|random_states?\w*|grad_scaler|loss_scaler|scaler)(?:[./].*)?\Z",
    re.DOTALL,
)
_COUNTER = re.compile(r"\A(?:global_?step|step|iteration|epoch|(?:samples|tokens)_seen)\Z")
# the first that is found in a key says what it is
_PATTERNS: Mapping[FieldKind, str] = {
    "fp8": r"(?:^|[./])_extra_state\d*(?:[./]|$)|fp8",
    "rng": r"(?:^|[./_])(?:rng|random_states?|seed)(?:[./_\d]|rank|state|$)",
    "scaler": r"(?:^|[./])(?:grad_|loss_)?scaler?(?:[./]|$)",
    "scheduler": r"(?:lr_|param_)?scheduler",
    "cursor": r"data_?loader|sampler|dataset_state|data_state|data_stages|consumed_",
    "progress": r"(?:^|[./])(?:train_state|step|global_step|iteration|epoch|timestamp|num_iter\w*)"
    r"(?:[./]|$)",
    "config": r"(?:^|[./])(?:args|config|hparams|hyper_parameters|param_groups|content_metadata)"
    r"(?:[./]|$)",
}
_KINDS: Mapping[FieldKind, re.Pattern[str]] = {
    kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in _PATTERNS.items()
}
_WRAPPERS = ("", "model.", "state.model.", "app.model.", "module.", "model.module.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """What a key is; for an optimizer's tensor also whose, and which `state` (`exp_avg` …)."""

    role: TensorRole
    parameter: str = ""
    state: str = ""


def owner(key: str, parameters: Collection[str]) -> Owner:
    """What `key` is; `parameters` are the keys that could be parameters.

    An optimizer's key holds the parameter's name before its state's name (torch) or after it
    (Megatron).
    """
    prefix = _OPTIMIZER.match(key)
    if prefix is None:
        if _OTHER.match(key) or _COUNTER.match(key) or "_extra_state" in key:
            return Owner(role="other")
        return Owner(role="parameter")
    inner = _STATE.match(key, prefix.end())
    if inner is None:
        return Owner(role="optimizer")
    first, _, after = inner[1].partition(".")
    before, _, last = inner[1].rpartition(".")
    spellings = [(name, state) for name, state in ((before, last), (after, first)) if name]
    for name, state in spellings:
        known = _known(name, parameters)
        if known:
            return Owner(role="optimizer", parameter=known, state=state)
    for name, state in spellings:
        if state in STATE_NAMES:
            return Owner(role="optimizer", parameter="" if name.isdigit() else name, state=state)
    return Owner(role="optimizer")


def field_kind(key: str) -> FieldKind:
    """What kind of state the key names."""
    for kind, pattern in _KINDS.items():
        if pattern.search(key):
            return kind
    return "other"


def _known(name: str, parameters: Collection[str]) -> str:
    """The parameter of that name, as the trainer's wrappers spell it; empty if there is none."""
    for prefix in _WRAPPERS:
        if prefix + name in parameters:
            return prefix + name
    return ""
