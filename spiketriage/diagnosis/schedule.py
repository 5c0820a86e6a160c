"""Learning-rate schedules by their formulas, and what known trainers' settings declare of them.

This module never asks a deployed scheduler and never guesses at a setting that is not stated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

WARMUP_KINDS = ("warmup-cosine", "warmup-linear", "warmup-constant")
# before the keys of a Weights & Biases run, of an MLflow run, and of what a trainer printed
_PREFIXES = ("config/", "param/", "argument/")
_OFF = ("false", "none", "null", "", "0", "0.0", "{}")


def scheduled_lr(schedule: Mapping[str, Any], step: int) -> float | None:
    """The learning rate of `step` (1-based); None for a schedule of a kind that is not known.

    `first` is what the schedule's own counter says at step 1: 1 unless stated, 0 in torch's
    schedulers.

    Raises:
        KeyError, TypeError, ValueError: a schedule of a known kind lacks a number.
    """
    kind = schedule.get("kind")
    if kind == "constant":
        return _number(schedule, "peak")
    if kind not in WARMUP_KINDS:
        return None
    counter = step - 1 + int(schedule.get("first", 1))
    peak, warmup = _number(schedule, "peak"), int(schedule["warmup_steps"])
    if counter < warmup:
        return peak * counter / warmup
    if kind == "warmup-constant":
        return peak
    floor, total = _number(schedule, "floor"), int(schedule["total_steps"])
    left = 1 - min(1.0, (counter - warmup) / max(1, total - warmup))
    if kind == "warmup-cosine":
        left = 0.5 * (1 - math.cos(math.pi * left))
    return floor + (peak - floor) * left


def _number(schedule: Mapping[str, Any], name: str) -> float:
    return float(schedule[name] if name in schedule else schedule[f"{name}_lr"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The keys under which one trainer states its schedule, and what its words for kinds mean.

    A warm-up below 1 is a share of all steps; of several keys for one number the first that is
    stated and not zero counts. The formula is another one unless each of `plain` is off.
    """

    kind: str
    kinds: Mapping[str, str]
    peak: str
    warmup: tuple[str, ...]
    total: tuple[str, ...]
    floor: str = ""
    floor_share: str = ""
    plain: tuple[str, ...] = ()


DIALECTS = (
    Dialect(  # Megatron-LM arguments.py, and its forks
        kind="lr_decay_style",
        kinds={
            "constant": "warmup-constant",
            "linear": "warmup-linear",
            "cosine": "warmup-cosine",
        },
        peak="lr",
        warmup=("lr_warmup_fraction", "lr_warmup_iters"),
        total=("lr_decay_iters", "train_iters"),
        floor="min_lr",
        plain=(
            *("train_samples", "lr_warmup_init", "rampup_batch_size"),
            *("use_checkpoint_lr_scheduler", "use_checkpoint_opt_param_scheduler"),
        ),
    ),
    Dialect(  # transformers TrainingArguments
        kind="lr_scheduler_type",
        kinds={
            "constant": "constant",
            "constant_with_warmup": "warmup-constant",
            "linear": "warmup-linear",
            "cosine": "warmup-cosine",
        },
        peak="learning_rate",
        warmup=("warmup_steps", "warmup_ratio"),
        total=("max_steps",),
        plain=("lr_scheduler_kwargs",),
    ),
    Dialect(  # nanoGPT train.py
        kind="decay_lr",
        kinds={"true": "warmup-cosine", "false": "constant"},
        peak="learning_rate",
        warmup=("warmup_iters",),
        total=("lr_decay_iters",),
        floor="min_lr",
    ),
    Dialect(  # torchtitan, its TOML files
        kind="lr_scheduler.decay_type",
        kinds={"linear": "warmup-linear", "cosine": "warmup-cosine"},
        peak="optimizer.lr",
        warmup=("lr_scheduler.warmup_steps",),
        total=("training.steps",),
        floor_share="lr_scheduler.min_lr_factor",
        plain=("lr_scheduler.decay_ratio", "lr_scheduler.total_steps"),
    ),
    Dialect(  # DeepSpeed runtime/lr_schedules.py
        kind="scheduler.params.warmup_type",
        kinds={"linear": "warmup-linear"},
        peak="scheduler.params.warmup_max_lr",
        warmup=("scheduler.params.warmup_num_steps",),
        total=("scheduler.params.total_num_steps",),
        plain=("scheduler.params.warmup_min_lr",),
    ),
)


def declared(stated: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schedule that settings declare, for `scheduled_lr`; None where none is known."""
    settings: dict[str, str] = {}
    for key, value in stated.items():
        name = key
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
        settings[name] = str(value).strip()
    for dialect in DIALECTS:
        schedule = _declared_in(dialect, settings)
        if schedule is not None:
            return schedule
    return None


def _declared_in(dialect: Dialect, settings: Mapping[str, str]) -> dict[str, Any] | None:
    word = settings.get(dialect.kind, "").rpartition(".")[2].lower()  # an enumeration's member
    kind, peak = dialect.kinds.get(word), _first(settings, (dialect.peak,))
    if kind is None or not peak:
        return None
    for key in dialect.plain:
        if settings.get(key, "").lower() not in _OFF:
            return None
    total, warmup = _first(settings, dialect.total), _first(settings, dialect.warmup)
    if kind in ("warmup-linear", "warmup-cosine") and total <= 1:
        return None  # in epochs, or as long as the data lasts
    if warmup < 1:
        warmup *= total
    floor = _first(settings, (dialect.floor,)) + peak * _first(settings, (dialect.floor_share,))
    return {
        "kind": kind,
        "peak": peak,
        "floor": floor,
        "warmup_steps": math.ceil(warmup),
        "total_steps": int(total),
    }


def _first(settings: Mapping[str, str], keys: Iterable[str]) -> float:
    """The first number above zero under one of `keys`; 0 where there is none."""
    for key in keys:
        try:
            value = float(settings.get(key, ""))
        except ValueError:
            continue
        if 0 < value < math.inf:
            return value
    return 0.0
