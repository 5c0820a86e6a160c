"""The trainer's settings, read from the run's `config.json`; never changed while a run goes on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spiketriage.errors import UsageError

# What this trainer can turn on, in bring-up order, beside the stabilizers that it always has. Two
# of them bring along what they steady: `router-balance` the experts, `fp8-scaling` the 8-bit
# products.
OPTIONAL = (
    "z-loss",
    "scaled-init",
    "mup",
    "guard",
    "loss-scale",
    "qk-norm",
    "softcap",
    "router-balance",
    "fp8-scaling",
)
ALWAYS = ("fp32-accumulation", "schedule", "global-clip")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Model, data and optimizer settings; lengths in tokens, rates per step."""

    seed: int
    num_steps: int
    d_model: int = 48
    num_layers: int = 3
    num_heads: int = 4
    pack_tokens: int = 64
    micro_tokens: int = 192
    num_micro: int = 2
    peak_lr: float = 3e-3
    floor_lr: float = 3e-4
    warmup_steps: int = 40
    schedule_steps: int = 400
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    save_every: int = 20
    stabilizers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = sorted({*self.stabilizers} - {*OPTIONAL})
        if unknown:
            message = (
                f"no stabilizer {', '.join(map(repr, unknown))} can be turned on here; there are "
                f"{', '.join(OPTIONAL)}"
            )
            raise UsageError(message, hint=f"spiketriage rehearse --stabilizer {OPTIONAL[0]}")

    def hparams(self) -> dict[str, Any]:
        """Every setting by name."""
        return {**asdict(self), "stabilizers": list(self.stabilizers)}

    def schedule(self) -> dict[str, Any]:
        """The learning-rate schedule in the words of a generation's manifest."""
        return {
            "kind": "warmup-cosine",
            "peak": self.peak_lr,
            "floor": self.floor_lr,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.schedule_steps,
        }


def read_config(path: Path) -> Config:
    """Settings from `config.json`."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    return Config(**{**settings, "stabilizers": tuple(settings.get("stabilizers", ()))})
