"""Other people's dashboards.

TensorBoard, Weights & Biases offline, a Prometheus text file, behind one thread.

It never blocks the recorder: a point that a slow mirror cannot take is dropped and counted, and the
recorder logs the count (`recorder/num_mirror_dropped`). Names are ours under `spiketriage/`; rank
is no label (it explodes cardinality).
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from spiketriage import durable
from spiketriage.errors import UsageError
from spiketriage.train.recording.background import BackgroundQueue
from spiketriage.wire.chain import METRICS

MAX_WAITING = 256


class Target(Protocol):
    """One dashboard; runs in the mirrors' thread and may take its time."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the metrics of one step on."""
        ...

    def close(self) -> None:
        """Flush."""
        ...


class Mirrors:
    """Passes metrics on to targets, in order, in a thread; give it to `Recorder(mirror=…)`."""

    def __init__(self, targets: Sequence[Target], *, max_waiting: int = MAX_WAITING) -> None:
        self.targets = tuple(targets)
        self._queue = BackgroundQueue("mirrors", max_jobs=max_waiting)

    @property
    def num_dropped(self) -> int:
        """Steps that did not reach every target."""
        return self._queue.num_lost

    def put(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue the metrics of `step`, or drop and count them."""
        self._queue.put(lambda: self._write(step, metrics))

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what waits, at most `timeout_s`, and flush the targets."""

        def finish() -> bool:
            for target in self.targets:
                target.close()
            return True

        self._queue.put(finish)
        self._queue.close(timeout_s)

    def _write(self, step: int, metrics: Mapping[str, float]) -> bool:
        for target in self.targets:
            target.write(step, metrics)
        return True


class TensorBoard:
    """An event file by torch's own SummaryWriter; needs the package `tensorboard`."""

    def __init__(self, folder: Path) -> None:
        self._writer = _imported("torch.utils.tensorboard", "tensorboard").SummaryWriter(
            str(folder)
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One scalar a metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"spiketriage/{name}", value, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class WandbOffline:
    """A Weights & Biases run in offline mode; needs the package `wandb`.

    It is not in the tests' environment: tried by hand with wandb 0.31.0, whose file held every step
    and value, an Inf too, when `readers/telemetry/wandb_file.py` read it back.
    """

    def __init__(self, folder: Path, *, project: str, name: str) -> None:
        self._run = _imported("wandb", "wandb").init(
            dir=str(folder), mode="offline", project=project, name=name
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One history row a step."""
        self._run.log({f"spiketriage/{name}": value for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class Prometheus:
    """A text file for node_exporter's textfile collector, replaced whole with the newest step."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Replace the file: a gauge a metric, with its unit as help."""
        lines = ["# TYPE spiketriage_step gauge", f"spiketriage_step {step}"]
        for name, value in metrics.items():
            label = "spiketriage_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
            unit = METRICS.get(name, "").replace("\\", "\\\\").replace("\n", " ")
            lines += [
                f"# HELP {label} {unit}",
                f"# TYPE {label} gauge",
                f"{label} {_spelled(value)}",
            ]
        durable.write(self._path, ("\n".join(lines) + "\n").encode())

    def close(self) -> None:
        """Leave the last step where it is."""


def _spelled(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isfinite(value):
        return repr(float(value))
    if value > 0:
        return "+Inf"
    return "-Inf"


def _imported(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"this mirror needs the package {package}", hint=f"pip install {package}"
        ) from error
