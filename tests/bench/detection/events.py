"""Events to plant into healthy runs.

Graded in size, up and down, one-step, lasting, slow, and NaN in every disguise.

Each family says which runs can show it at all, where it strikes, and how many rows a detector has
to say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from detection.runs import BETA2, KINDS, Columns, Latent

QUIET = ("large", "small", "wsd", "ramp", "fp16", "plain")
RICH = ("large", "small", "wsd")
WITH_GRADIENT = ("large", "small", "heavy", "wsd", "ramp", "fp16", "grouped", "epochs")
ALL = tuple(KINDS)
SOON, LASTING, SLOW = 5, 60, 400

Planting = Callable[[Latent, int, np.random.Generator], None]
Hiding = Callable[[Columns, int, np.random.Generator], None]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of event. `plant` changes what the job does, `hide` what its log holds.

    `window` is in rows.
    """

    name: str
    kinds: tuple[str, ...]
    window: int
    plant: Planting | None = None
    hide: Hiding | None = None
    first: int = 350
    last: int = 600
    is_nonfinite: bool = False
    needs_update: bool = False


def _add(name: str, amount: float, length: int = 1) -> Planting:
    def plant(run: Latent, at: int, rng: np.random.Generator) -> None:
        getattr(run, name)[at : at + length] += amount

    return plant


def _times(name: str, factor: float, length: int = 1) -> Planting:
    def plant(run: Latent, at: int, rng: np.random.Generator) -> None:
        getattr(run, name)[at : at + length] *= factor

    return plant


def _slope(name: str, per_row: float, length: int) -> Planting:
    def plant(run: Latent, at: int, rng: np.random.Generator) -> None:
        values = getattr(run, name)
        rows = np.arange(len(values) - at)
        values[at:] += per_row * np.minimum(rows, length)

    return plant


def _both(*parts: Planting) -> Planting:
    def plant(run: Latent, at: int, rng: np.random.Generator) -> None:
        for part in parts:
            part(run, at, rng)

    return plant


def _after_a_spike(run: Latent, at: int, rng: np.random.Generator) -> None:
    """A huge spike is over when a smaller one comes that a window with the first in it would hide."""
    run.loss[at - 20 : at - 17] += 9.0
    run.grad_norm[at - 20 : at - 17] *= 40
    run.loss[at] += 1.2


def _diverge(run: Latent, at: int, rng: np.random.Generator) -> None:
    rows = np.arange(len(run.loss) - at)
    run.loss[at:] += np.minimum(5.0, 0.02 * np.exp(rows / 15))
    run.grad_norm[at:] *= np.minimum(50.0, np.exp(rows / 40))


def _stale_second_moments(run: Latent, at: int, rng: np.random.Generator) -> None:
    """Second moments a quarter of what it should be.

    RMS_t and update twice too large until they fill (beta2 0.95).
    """
    rest = np.arange(len(run.loss) - at)
    factor = 1 / np.sqrt(1 - 0.75 * BETA2**rest)
    run.rms[at:] *= factor
    run.update[at:] *= factor


def _set(name: str, value: float, length: int = 1) -> Hiding:
    def hide(log: Columns, at: int, rng: np.random.Generator) -> None:
        log.values[name][at : at + length] = value

    return hide


def _drop(*names: str, length: int = 1) -> Hiding:
    def hide(log: Columns, at: int, rng: np.random.Generator) -> None:
        for name in names:
            log.absent.setdefault(name, set()).update(range(at, at + length))

    return hide


def _filtered(log: Columns, at: int, rng: np.random.Generator) -> None:
    """HF Trainer's NaN filter: the loss is written as 0.0, and here the norm is not logged."""
    log.values["loss"][at : at + 20] = 0.0


def _in_a_skip(log: Columns, at: int, rng: np.random.Generator) -> None:
    """A loss that is NaN, while the scaler takes it for one of its overflows."""
    log.values["skipped"][at] = 1
    log.values["loss"][at] = np.nan
    log.values["grad_norm"][at] = np.inf


def _collapse(log: Columns, at: int, rng: np.random.Generator) -> None:
    """Every step overflows, so the scale halves down to nothing."""
    rest = len(log.values["loss"]) - at
    log.values["loss_scale"][at:] = np.maximum(
        1.0, log.values["loss_scale"][at] / 2.0 ** np.arange(1, rest + 1)
    )
    log.values["skipped"][at:] = 1
    log.values["grad_norm"][at:] = np.inf


def _nonfinite(name: str, hide: Hiding, kinds: tuple[str, ...] = ALL, **more: int) -> Family:
    return Family(name=name, kinds=kinds, window=SOON, hide=hide, is_nonfinite=True, **more)


NOT_RL = tuple(kind for kind in ALL if kind != "rl")
HAS_NORM = tuple(kind for kind in ALL if kind != "plain")
FAMILIES: tuple[Family, ...] = (
    Family(name="loss +0.5 nat, one step", kinds=QUIET, window=SOON, plant=_add("loss", 0.5)),
    Family(name="loss +1 nat, one step", kinds=QUIET, window=SOON, plant=_add("loss", 1.0)),
    Family(name="loss +2.5 nats, one step", kinds=NOT_RL, window=SOON, plant=_add("loss", 2.5)),
    Family(name="loss −1 nat, one step", kinds=QUIET, window=SOON, plant=_add("loss", -1.0)),
    Family(name="loss and gradient, one step", kinds=NOT_RL, window=SOON,
           plant=_both(_add("loss", 1.5), _times("grad_norm", 8))),
    Family(name="loss +0.3 nat, lasting", kinds=QUIET, window=LASTING, plant=_add("loss", 0.3, 10_000)),
    Family(name="loss +1 nat, lasting", kinds=NOT_RL, window=LASTING, plant=_add("loss", 1.0, 10_000)),
    Family(name="loss −0.5 nat, lasting", kinds=QUIET, window=LASTING, plant=_add("loss", -0.5, 10_000)),
    Family(name="loss +0.6 nat over 300 steps", kinds=QUIET, window=SLOW, plant=_slope("loss", 0.002, 300)),
    Family(name="divergence", kinds=NOT_RL, window=120, plant=_diverge),
    Family(name="gradient × 3, one step", kinds=WITH_GRADIENT, window=SOON, plant=_times("grad_norm", 3)),
    Family(name="gradient × 5, one step", kinds=WITH_GRADIENT, window=SOON, plant=_times("grad_norm", 5)),
    Family(name="gradient × 12, one step", kinds=WITH_GRADIENT, window=SOON, plant=_times("grad_norm", 12)),
    Family(name="gradient × 100, one step", kinds=HAS_NORM, window=SOON, plant=_times("grad_norm", 100)),
    Family(name="gradient ÷ 20, one step", kinds=WITH_GRADIENT, window=SOON, plant=_times("grad_norm", 0.05)),
    Family(name="gradient × 2, lasting", kinds=WITH_GRADIENT, window=LASTING, plant=_times("grad_norm", 2, 10_000)),
    Family(name="gradient × 0.4, lasting", kinds=WITH_GRADIENT, window=LASTING, plant=_times("grad_norm", 0.4, 10_000)),
    Family(name="gradient × 0.82, lasting", kinds=WITH_GRADIENT, window=LASTING,
           plant=_times("grad_norm", 0.82, 10_000)),
    Family(name="loss +3 nats, step 5 to 60", kinds=NOT_RL, window=SOON, plant=_add("loss", 3.0), first=4, last=60),
    Family(name="loss +10 nats, step 2 to 4", kinds=NOT_RL, window=SOON, plant=_add("loss", 10.0), first=1, last=4),
    Family(name="loss × 3 for 10 steps, step 10 to 60", kinds=QUIET, window=15, plant=_times("loss", 3, 10), first=9,
           last=60),
    Family(name="loss +1.2 nats after a larger spike", kinds=QUIET, window=SOON, plant=_after_a_spike),
    Family(name="update × 2.2, one step", kinds=RICH, window=SOON, plant=_times("update", 2.2), needs_update=True),
    Family(name="update × 1.7, lasting", kinds=RICH, window=LASTING, plant=_times("update", 1.7, 10_000),
           needs_update=True),
    Family(name="update ÷ 4, lasting", kinds=RICH, window=LASTING, plant=_times("update", 0.25, 10_000),
           needs_update=True),
    Family(name="RMS_t × 2, one step", kinds=RICH, window=SOON, plant=_times("rms", 2), needs_update=True),
    Family(name="second moments a quarter after a load", kinds=RICH, window=LASTING, plant=_stale_second_moments,
           needs_update=True),
    Family(name="logZ drifts by 6 in 300 steps", kinds=RICH, window=SLOW, plant=_slope("logz", 0.02, 300),
           needs_update=True),
    Family(name="attention maximum × 4, lasting", kinds=RICH, window=LASTING, plant=_times("attention_max", 4, 10_000),
           needs_update=True),
    Family(name="loss scale collapses", kinds=("fp16",), window=20, hide=_collapse, is_nonfinite=True),
    _nonfinite("loss is NaN", _set("loss", np.nan)),
    _nonfinite("loss is NaN in the first rows", _set("loss", np.nan), first=0, last=8),
    _nonfinite("loss is infinite", _set("loss", np.inf)),
    _nonfinite("loss is minus infinity", _set("loss", -np.inf)),
    _nonfinite("gradient is NaN, loss is not", _set("grad_norm", np.nan), tuple(k for k in HAS_NORM if k != "fp16")),
    _nonfinite("gradient is infinite, without loss scaling", _set("grad_norm", np.inf),
               tuple(k for k in HAS_NORM if k != "fp16")),
    _nonfinite("loss is NaN in what looks like an fp16 skip", _in_a_skip, ("fp16",)),
    _nonfinite("loss key vanishes", _drop("loss")),
    _nonfinite("loss is filtered to 0.0", _filtered, NOT_RL),
    _nonfinite("gradient norm is −1", _set("grad_norm", -1.0), HAS_NORM),
    _nonfinite("update norm is infinite", _set("update_norm", np.inf), RICH),
)  # fmt: skip
