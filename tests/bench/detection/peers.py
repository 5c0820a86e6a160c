"""Every detector behind one interface.

A factory of functions that take a row and say whether they would page.

The rules of Megatron-LM (rerun_state_machine.is_unexpectedly_large and its NaN checks), OLMo-core
(SkipStepOptimizer), llm-foundry (KillLossSpike) and Lightning (SpikeDetection) are written anew
from their source, with its defaults. The packages on PyPI are called, not copied, and only if they
can be imported; none takes more than loss, norm and rate.
"""

from __future__ import annotations

import importlib
import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import ModuleType
from typing import Any

import numpy as np

from spiketriage.detect.detector import Detector, Row

Pages = Callable[[Mapping[str, float]], bool]
Factory = Callable[[], Pages]
_FIELDS = tuple(one.name for one in fields(Row))
NAN = math.nan


def ours() -> Pages:
    """spiketriage.detect.detector."""
    detector = Detector()
    return lambda row: (
        detector.feed(Row(**{name: row[name] for name in _FIELDS if name in row})).is_anomalous
    )  # type: ignore[arg-type]


def median_ratio(k: float) -> Factory:
    """Gradient norm above k × the median of the last 100; the loss alone where there is no norm."""

    def make() -> Pages:
        window: deque[float] = deque(maxlen=100)

        def pages(row: Mapping[str, float]) -> bool:
            value = row.get("grad_norm", row.get("loss", NAN))
            if not math.isfinite(value):
                return not row.get("skipped")
            is_out = len(window) >= 20 and value > k * statistics.median(window) > 0
            window.append(value)
            return is_out

        return pages

    return make


def megatron() -> Pages:
    """NaN and infinity are rejected.

    With the spike check on, 10 × the largest of the first 100 values is, too.
    """
    most: dict[str, float] = {}
    seen: dict[str, int] = {}

    def large(name: str, value: float) -> bool:
        if seen.get(name, 0) < 100:
            seen[name] = seen.get(name, 0) + 1
            most[name] = max(most.get(name, 0.0), abs(value))
            return False
        return abs(value) >= 10 * most[name]

    def pages(row: Mapping[str, float]) -> bool:
        present = {name: row[name] for name in ("loss", "grad_norm") if name in row}
        if row.get("skipped"):
            present.pop(
                "grad_norm", None
            )  # loss scaling has its own handling of infinite gradients
        if not all(math.isfinite(value) for value in present.values()):
            return True
        found = {
            name: large(name, value) for name, value in present.items()
        }  # each must be counted
        return any(found.values())

    return pages


def olmo_core() -> Pages:
    """Loss or norm more than 6 standard deviations off the mean of the last 128, once 64 are known, either side.

    A NaN score is not <= 6, so a NaN skips the step, and every step until it has left the window.
    """
    windows: dict[str, deque[float]] = {name: deque(maxlen=129) for name in ("loss", "grad_norm")}

    def pages(row: Mapping[str, float]) -> bool:
        for name, window in windows.items():
            if name in row:
                window.append(row[name])
        if len(windows["loss"]) < 64:
            return False
        return any(name in row and not _score(window) <= 6 for name, window in windows.items())

    return pages


def _score(window: deque[float]) -> float:
    before = np.fromiter(window, dtype=np.float64)[:-1]
    with np.errstate(all="ignore"):
        return (
            float(abs(window[-1] - before.mean()) / before.std(ddof=1)) if len(before) > 1 else 0.0
        )


def lightning() -> Pages:
    """A loss off the running mean of 10 by twice that mean, or nonfinite.

    It never learns the spike.

    In the released code `last_val` stays 0, so the condition that the loss rose means that it is
    positive.
    """
    window: deque[float] = deque(maxlen=10)

    def pages(row: Mapping[str, float]) -> bool:
        loss = row.get("loss")
        if loss is None:
            return False
        if not math.isfinite(loss):
            return True
        mean = sum(window) / len(window) if window else 0.0
        is_out = bool(window) and loss > 0 and abs(loss - mean) >= abs(2.0 * mean)
        if not is_out:
            window.append(loss)
        return is_out

    return pages


def llm_foundry() -> Pages:
    """More than four losses in a row at twice the mean of the last 100, or half of 100 losses above 10 after 200."""
    window: deque[float] = deque(maxlen=100)
    state = {"outliers": 0, "rows": 0}

    def pages(row: Mapping[str, float]) -> bool:
        loss = row.get("loss")
        if loss is None:
            return False
        state["rows"] += 1
        is_out = False
        if len(window) == 100:
            state["outliers"] = state["outliers"] + 1 if loss >= 2 * float(np.mean(window)) else 0
            is_high = state["rows"] >= 200 and sum(one > 10 for one in window) >= 50
            is_out = state["outliers"] > 4 or is_high
        window.append(loss)
        return is_out

    return pages


def trainscope(package: ModuleType, name: str) -> Factory:
    """One of its detectors, on the loss.

    Its scope reports a nonfinite loss by itself and keeps it out.
    """

    def make() -> Pages:
        detector = package.make_detector({"name": name})

        def pages(row: Mapping[str, float]) -> bool:
            loss = row.get("loss")
            if loss is None:
                return False
            return not math.isfinite(loss) or detector.update(loss) is not None

        return pages

    return make


def trainpulse(package: ModuleType, *, plateau: bool) -> Factory:
    """Its monitor on loss, norm and rate; `plateau` counts its alert of that kind as a page."""

    def make() -> Pages:
        monitor = package.Monitor()
        names = {"loss": "loss", "grad_norm": "grad_norm", "lr": "lr"}

        def pages(row: Mapping[str, float]) -> bool:
            alerts = [
                one
                for key in names
                if key in row
                for one in monitor.log(names[key], int(row["step"]), row[key])
            ]
            monitor._snapshots.clear()  # it keeps every value for its report
            return any(plateau or one.detector != "plateau" for one in alerts)

        return pages

    return make


def losslint(package: ModuleType) -> Factory:
    """Its lint of the last 25 losses as a log would show them.

    An isolated spike is known when neighbours are.
    """

    def make() -> Pages:
        rows: deque[Mapping[str, float]] = deque(maxlen=26)
        told: set[tuple[str, int]] = set()

        def pages(row: Mapping[str, float]) -> bool:
            rows.append(row)
            series = {name: [one.get(name) for one in rows] for name in ("loss", "grad_norm")}
            run = package.RunLog(
                steps=[int(one["step"]) for one in rows], series=series, source="trace"
            )
            found = [*package.check_nan_inf(run), *package.check_loss_spike(run)]
            marks = {(one.check, step) for one in found for step in one.details["steps"]} - told
            told.update(marks)
            return bool(marks)

        return pages

    return make


def stabilityguard(package: ModuleType) -> Factory:
    """Its spike detector on the global norm taken for a layer's."""

    def make() -> Pages:
        detector = package.SpikeDetector()

        def pages(row: Mapping[str, float]) -> bool:
            norm = row.get("grad_norm")
            if norm is None:
                return False
            broken = set() if math.isfinite(norm) else {"all"}
            return bool(detector.check({} if broken else {"all": norm}, broken)[0])

        return pages

    return make


def everybody() -> dict[str, Factory]:
    """All detectors that can be run here, ours first."""
    found: dict[str, Factory] = {
        "spiketriage": ours,
        "OLMo-core, mean ± 6σ of 128": olmo_core,
        "3 × running median": median_ratio(3),
        "5 × running median": median_ratio(5),
        "10 × running median": median_ratio(10),
        "Megatron-LM, 10 × max of first 100": megatron,
        "Lightning SpikeDetection": lightning,
        "llm-foundry KillLossSpike": llm_foundry,
    }
    scope = _importable("trainscope.core.detectors")
    if scope:
        for name in ("z_score", "changepoint", "percentile"):
            found[f"trainscope {name}"] = trainscope(scope, name)
    pulse = _importable("trainpulse")
    if pulse:
        found["trainpulse"] = trainpulse(pulse, plateau=False)
        found["trainpulse with plateau"] = trainpulse(pulse, plateau=True)
    lint = _importable("losslint.checks")
    if lint:
        found["losslint"] = losslint(lint)
    guard = _importable("stabilityguard.core.spike_detector")
    if guard:
        found["stabilityguard"] = stabilityguard(guard)
    return found


def _importable(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
