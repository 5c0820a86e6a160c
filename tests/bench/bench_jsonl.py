"""How many values of JSON lines become series in a second of CPU time, against `json.loads` and polars (if there).

Run: `python tests/bench/bench_jsonl.py`; it prints a Markdown table. Files are 8 ranks x 5,000
steps x 30 metrics.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from spiketriage.readers.telemetry.series.names import DEFAULT
from spiketriage.readers.telemetry.tables import jsonl

NUM_RANKS, NUM_STEPS, NUM_METRICS = 8, 5_000, 30
NUM_RUNS = 5
NAMES = ["loss", "grad_norm", "lr", *(f"layers.{k}/grad_norm" for k in range(NUM_METRICS - 3))]


def make(folder: Path, share_of_nan: float) -> None:
    """One file a rank; a share of the losses is written as the token NaN."""
    draw = random.Random(7)
    for rank in range(NUM_RANKS):
        with (folder / f"rank-{rank}.jsonl").open("w") as stream:
            for step in range(NUM_STEPS):
                row: dict[str, float] = {
                    "step": step,
                    **{name: draw.gauss(2.0, 0.5) for name in NAMES},
                }
                if draw.random() < share_of_nan:
                    row["loss"] = float("nan")
                stream.write(json.dumps(row) + "\n")


def ours(folder: Path) -> int:
    """Ours, from bytes to the arrays of each series."""
    return sum(len(series.values) for series in jsonl.read(folder, DEFAULT).series)


def plain(folder: Path) -> int:
    """A loop of `json.loads`, from bytes to the same arrays."""
    total = 0
    for path in sorted(folder.iterdir()):
        columns: dict[str, list[float]] = {}
        steps = []
        with path.open() as stream:
            for line in stream:
                row = json.loads(line)
                steps.append(row.pop("step"))
                for name, value in row.items():
                    columns.setdefault(name, []).append(value)
        assert len(np.array(steps)) == NUM_STEPS
        total += sum(len(np.array(values)) for values in columns.values())
    return total


def polars(folder: Path) -> int:
    """`polars.read_ndjson`, from bytes to the same arrays."""
    import polars as pl

    total = 0
    for path in sorted(folder.iterdir()):
        frame = pl.read_ndjson(path)
        total += sum(len(frame[name].to_numpy()) for name in frame.columns if name != "step")
    return total


def cpu_s() -> float:
    """User and system time of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(readers: dict[str, Callable[[Path], int]], folder: Path) -> dict[str, float]:
    """The median CPU seconds of each reader over alternating runs, after one run of each to warm up."""
    taken: dict[str, list[float]] = {name: [] for name in readers}
    for run in range(NUM_RUNS + 1):
        for name, reader in readers.items():
            before = cpu_s()
            assert reader(folder) == NUM_RANKS * NUM_STEPS * NUM_METRICS
            if run:
                taken[name].append(cpu_s() - before)
    return {name: statistics.median(times) for name, times in taken.items()}


def main() -> None:
    """Measure and print."""
    num_values = NUM_RANKS * NUM_STEPS * NUM_METRICS
    print("| data | reader | M values / CPU second | against json.loads |")
    print("|---|---|---|---|")
    for label, share_of_nan in (("finite", 0.0), ("1 % of losses NaN", 0.01)):
        with tempfile.TemporaryDirectory() as name:
            make(Path(name), share_of_nan)
            readers: dict[str, Callable[[Path], int]] = {"spiketriage": ours, "json.loads": plain}
            if find_spec("polars") is not None and not share_of_nan:
                readers["polars"] = polars
            medians = measure(readers, Path(name))
            for reader, median_s in medians.items():
                rate, ratio = num_values / median_s / 1e6, medians["json.loads"] / median_s
                print(f"| {label} | {reader} | {rate:.2f} | {ratio:.1f} × |")


if __name__ == "__main__":
    main()
