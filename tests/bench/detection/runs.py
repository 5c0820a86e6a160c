"""Healthy runs, made from a seed.

What a trainer logs when nothing is wrong, quiet and noisy, from its first step.

A run is made in two halves, so that an event can be planted between them: what the job does
(`Latent`: loss, gradient norm …), then what clipping and Adam make of it (update norm, RMS_t) and
what its log holds (`Columns`). Adam is a model, not an Adam: |m| of a gradient that is part signal,
part noise, over the root of v, both of the clipped norm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
FULL = ("loss", "grad_norm", "lr", "update_norm", "rms_t", "logz", "attention_max")
COMMON = ("loss", "grad_norm", "lr")
LOSS_ONLY = ("loss", "lr")
FP16 = (*COMMON, "loss_scale", "skipped")
BETA1, BETA2, SIGNAL = 0.9, 0.95, 0.3


@dataclass(kw_only=True)
class Latent:
    """What the job does, by step.

    `update` and `rms` multiply what Adam makes of it (1 in health).
    """

    kind: str
    logs: tuple[str, ...]
    loss: Array
    grad_norm: Array
    lr: Array
    clip: float
    logz: Array
    attention_max: Array
    update: Array
    rms: Array
    noise_update: Array
    noise_rms: Array
    loss_scale: Array
    skipped: Array
    drops_loss_in_skip: bool = False

    def copy(self) -> Latent:
        """One that may be changed."""
        changed = {
            name: value.copy()
            for name, value in vars(self).items()
            if isinstance(value, np.ndarray)
        }
        return Latent(**{**vars(self), **changed})


@dataclass(kw_only=True)
class Columns:
    """What the log holds: values by name, and the rows in which a key is absent."""

    kind: str
    values: dict[str, Array]
    absent: dict[str, set[int]] = field(default_factory=dict)

    def rows(self) -> list[dict[str, float]]:
        """The rows as a log holds them, steps from 1."""
        length = len(self.values["loss"])
        columns = {name: values.tolist() for name, values in self.values.items()}
        return [
            {"step": at + 1}
            | {
                name: values[at]
                for name, values in columns.items()
                if at not in self.absent.get(name, ())
            }
            for at in range(length)
        ]


def log(latent: Latent) -> Columns:
    """Run clipping and Adam over the gradient norms, and log the whole."""
    update, rms = _adam(np.minimum(latent.grad_norm, latent.clip), latent.skipped > 0)
    known = {
        "loss": latent.loss,
        "grad_norm": np.where(latent.skipped > 0, np.inf, latent.grad_norm),
        "lr": latent.lr,
        "update_norm": latent.lr * 30.0 * update * latent.update * latent.noise_update,
        "rms_t": rms * latent.rms * latent.noise_rms,
        "logz": latent.logz,
        "attention_max": latent.attention_max,
        "loss_scale": latent.loss_scale,
        "skipped": latent.skipped,
    }
    absent: dict[str, set[int]] = {}
    if latent.drops_loss_in_skip:
        absent["loss"] = set(np.flatnonzero(latent.skipped > 0).tolist())
    return Columns(
        kind=latent.kind, values={name: known[name].copy() for name in latent.logs}, absent=absent
    )


def _adam(norms: Array, skipped: NDArray[np.bool_]) -> tuple[Array, Array]:
    update, rms = np.empty_like(norms), np.empty_like(norms)
    noise = signal = second = 0.0
    count = 0
    for at, (norm, is_skipped) in enumerate(zip(norms.tolist(), skipped.tolist(), strict=True)):
        if is_skipped:
            update[at] = rms[at] = 0.0
            continue
        count += 1
        noise = BETA1**2 * noise + (1 - BETA1) ** 2 * norm**2
        signal = BETA1 * signal + (1 - BETA1) * norm
        second = BETA2 * second + (1 - BETA2) * norm**2
        root = np.sqrt(second / (1 - BETA2**count)) + 1e-12
        update[at] = np.sqrt(noise + (SIGNAL * signal) ** 2) / (1 - BETA1**count) / root
        rms[at] = norm / root
    return update, rms


def _wandering(rng: np.random.Generator, num: int, sigma: float, rho: float = 0.3) -> Array:
    """Noise with a short memory."""
    white = rng.normal(0, sigma, num)
    out = np.empty(num)
    last = 0.0
    for at, value in enumerate(white.tolist()):
        last = rho * last + np.sqrt(1 - rho**2) * value
        out[at] = last
    return out


def _make(
    kind: str,
    rng: np.random.Generator,
    loss: Array,
    log_grad: Array,
    *,
    logs: tuple[str, ...],
    lr: Array,
    clip: float = 1.0,
    **more: object,
) -> Latent:
    num = len(loss)
    ones = np.ones(num)
    steps = np.arange(num)
    fields: dict[str, object] = {
        "logz": rng.uniform(4, 12) + 2 * (1 - np.exp(-steps / 300)) + _wandering(rng, num, 0.03),
        "attention_max": 3
        + 12 * (1 - np.exp(-steps / 2000)) * np.exp(np.abs(rng.normal(0, 0.08, num))),
        "update": ones.copy(),
        "rms": ones.copy(),
        "noise_update": np.exp(rng.normal(0, 0.03, num)),
        # The largest over all tensors: of the rehearsal's tiny model its logarithm moves by 0.2; a
        # large one's less.
        "noise_rms": np.exp(rng.normal(0, rng.uniform(0.03, 0.15), num)),
        "loss_scale": ones.copy(),
        "skipped": np.zeros(num),
        **more,
    }
    return Latent(
        kind=kind, logs=logs, loss=loss, grad_norm=np.exp(log_grad), lr=lr, clip=clip, **fields
    )  # type: ignore[arg-type]


def _descent(rng: np.random.Generator, num: int, vocabulary_nats: float = 10.8) -> Array:
    steps = np.arange(num)
    end = rng.uniform(1.6, 2.6)
    fast = vocabulary_nats - end - 3.0
    return (
        end
        + fast * np.exp(-steps / rng.uniform(40, 120))
        + 3.0 * (1 + steps / rng.uniform(150, 600)) ** -0.5
    )


def _peak(rng: np.random.Generator, num: int, level: float) -> Array:
    """Log gradient norm of a start: high, and down within some dozens of steps."""
    steps = np.arange(num)
    return np.log(level) + rng.uniform(1, 3) * np.exp(-steps / rng.uniform(10, 60))


def _warm(num: int, peak: float, warm: int) -> Array:
    steps = np.arange(num)
    return (
        peak
        * np.minimum(1.0, (steps + 1) / warm)
        * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * steps / (2 * num))))
    )


def large(rng: np.random.Generator, num: int) -> Latent:
    """Large pretraining: a quiet loss, everything recorded."""
    common = rng.normal(0, 1, num)
    loss = _descent(rng, num) + _wandering(rng, num, rng.uniform(0.015, 0.035)) + 0.01 * common
    grad = (
        _peak(rng, num, rng.uniform(0.1, 0.6))
        + _wandering(rng, num, rng.uniform(0.06, 0.12))
        + 0.04 * common
    )
    return _make("large", rng, loss, grad, logs=FULL, lr=_warm(num, 3e-4, 200))


def small(rng: np.random.Generator, num: int) -> Latent:
    """Small pretraining: a batch of some dozens of sequences."""
    common = rng.normal(0, 1, num)
    loss = _descent(rng, num, 5.6) + _wandering(rng, num, rng.uniform(0.04, 0.09)) + 0.02 * common
    grad = (
        _peak(rng, num, rng.uniform(0.4, 1.2))
        + _wandering(rng, num, rng.uniform(0.12, 0.22))
        + 0.05 * common
    )
    return _make("small", rng, loss, grad, logs=FULL, lr=_warm(num, 3e-3, 40))


def heavy(rng: np.random.Generator, num: int) -> Latent:
    """Heavy tails: Student's t in both, and a hard batch now and then that shows in both."""
    hard = (rng.random(num) < 0.0005) * rng.uniform(0, 1, num)
    loss = _descent(rng, num) + 0.04 * rng.standard_t(4, num) + 0.4 * hard
    grad = _peak(rng, num, 0.5) + 0.15 * rng.standard_t(4, num) + 1.2 * hard
    return _make("heavy", rng, loss, grad, logs=COMMON, lr=_warm(num, 3e-4, 100))


def wsd(rng: np.random.Generator, num: int) -> Latent:
    """Warm-up, stable, decay.

    The loss falls faster again in the last fifth, and the gradient grows.
    """
    steps = np.arange(num)
    decay = np.clip((steps - 0.8 * num) / (0.2 * num), 0, 1)
    loss = _descent(rng, num) - 0.25 * decay + _wandering(rng, num, 0.03)
    grad = _peak(rng, num, 0.3) + 0.5 * decay + _wandering(rng, num, 0.1)
    return _make(
        "wsd",
        rng,
        loss,
        grad,
        logs=FULL,
        lr=np.minimum(1, (steps + 1) / 200) * 1e-3 * (1 - 0.99 * decay),
    )


def ramp(rng: np.random.Generator, num: int) -> Latent:
    """The batch doubles four times: each time noise and gradient norm shrink at one step."""
    doublings = np.minimum(4, np.arange(num) * 5 // num)
    loss = _descent(rng, num) + _wandering(rng, num, 0.07) * 2.0 ** (-doublings / 2)
    grad = (
        _peak(rng, num, 0.9)
        - 0.2 * doublings
        + _wandering(rng, num, 0.15) * 2.0 ** (-doublings / 2)
    )
    return _make("ramp", rng, loss, grad, logs=COMMON, lr=_warm(num, 6e-4, 150))


def fp16(rng: np.random.Generator, num: int) -> Latent:
    """fp16 with dynamic loss scaling.

    Skips down from 2^32 at the start, later one or two whenever the scale grew.
    """
    scale, skipped = np.empty(num), np.zeros(num)
    exponent, limit, since = 32.0, 16.0, 0
    for at in range(num):
        limit = float(np.clip(limit + rng.normal(0, 0.01), 13, 18))
        if exponent > limit or rng.random() < 0.0005:
            skipped[at], exponent, since = 1, exponent - 1, 0
        else:
            since += 1
            if since >= 250:
                exponent, since = exponent + 1, 0
        scale[at] = 2.0**exponent
    loss = _descent(rng, num) + _wandering(rng, num, 0.04)
    grad = _peak(rng, num, 0.5) + _wandering(rng, num, 0.15)
    is_megatron = bool(rng.random() < 0.5)  # which writes no loss for a skipped iteration
    return _make(
        "fp16",
        rng,
        loss,
        grad,
        logs=FP16,
        lr=_warm(num, 3e-4, 100),
        loss_scale=scale,
        skipped=skipped,
        drops_loss_in_skip=is_megatron,
    )


def rl(rng: np.random.Generator, num: int) -> Latent:
    """Reinforcement learning.

    Four of five losses are exactly zero (no advantage in the group), the rest is noise.
    """
    is_zero = rng.random(num) < 0.8
    loss = np.where(is_zero, 0.0, 0.05 * rng.standard_t(5, num))
    grad = np.log(0.2) + 0.35 * rng.normal(0, 1, num) - 1.5 * is_zero
    return _make("rl", rng, loss, grad, logs=COMMON, lr=np.full(num, 1e-6))


def grouped(rng: np.random.Generator, num: int) -> Latent:
    """Length-grouped batches.

    Within each group of 50 the lengths fall, and loss and gradient move with them.
    """
    phase = (np.arange(num) % 50) / 50
    loss = 1.4 + 0.8 * np.exp(-np.arange(num) / 400) + 0.3 * phase + _wandering(rng, num, 0.06)
    grad = np.log(1.5) + 0.6 * phase + _wandering(rng, num, 0.2)
    return _make("grouped", rng, loss, grad, logs=COMMON, lr=_warm(num, 2e-5, 30))


def epochs(rng: np.random.Generator, num: int) -> Latent:
    """Fine-tuning over epochs: the loss steps down at each, since the texts are known."""
    epoch = np.arange(num) // max(1, num // 4)
    loss = (
        1.6 * 0.75**epoch
        + rng.normal(0, 0.12, num) * 0.8**epoch
        + 0.4 * np.exp(-np.arange(num) / 50)
    )
    grad = np.log(2.0) + 0.15 * epoch + _wandering(rng, num, 0.25)
    return _make("epochs", rng, np.maximum(loss, 0.01), grad, logs=COMMON, lr=_warm(num, 1e-5, 30))


def lora(rng: np.random.Generator, num: int) -> Latent:
    """A batch of one or two: noise as large as the signal."""
    loss = 1.0 + 0.9 * np.exp(-np.arange(num) / 200) + rng.gamma(4, 0.08, num)
    grad = np.log(1.0) + 0.4 * rng.normal(0, 1, num)
    return _make("lora", rng, loss, grad, logs=COMMON, lr=_warm(num, 1e-4, 20))


def plain(rng: np.random.Generator, num: int) -> Latent:
    """A script that logs the loss and nothing else."""
    loss = _descent(rng, num) + _wandering(rng, num, rng.uniform(0.02, 0.06))
    return _make("plain", rng, loss, np.zeros(num), logs=LOSS_ONLY, lr=_warm(num, 6e-4, 100))


KINDS: dict[str, Callable[[np.random.Generator, int], Latent]] = {
    one.__name__: one
    for one in (large, small, heavy, wsd, ramp, fp16, rl, grouped, epochs, lora, plain)
}
