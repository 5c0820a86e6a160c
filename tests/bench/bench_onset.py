"""What an onset costs: 100,000 JSONL steps read, reshaped for the detector, and judged.

Run: `python tests/bench/bench_onset.py`; it prints a Markdown table of medians in CPU seconds. The
peer in the same run is a loop of `json.loads` that makes the same arrays. It ends with 1 if
reshaping costs more than reading.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from spiketriage.detect import detector
from spiketriage.evidence import onset
from spiketriage.readers.telemetry.run.foreign import choose
from spiketriage.readers.telemetry.run.lineage import Telemetry
from spiketriage.readers.telemetry.series.names import DEFAULT
from spiketriage.readers.telemetry.tables import jsonl

NUM_STEPS = 100_000
NUM_RUNS = 5
SPIKE_AT = 99_000


def make(path: Path) -> None:
    """A healthy run with one planted spike near its end."""
    draw = random.Random(7)
    with path.open("w") as stream:
        for step in range(NUM_STEPS):
            row = {
                "step": step,
                "loss": 2.0 + draw.gauss(0, 0.02) + (step == SPIKE_AT) * 9.0,
                "grad_norm": 1.0 + abs(draw.gauss(0, 0.1)),
                "lr": 1e-4,
            }
            stream.write(json.dumps(row) + "\n")


def peer(path: Path) -> None:
    """A loop of `json.loads`, from bytes to one array a key."""
    columns: dict[str, list[float]] = defaultdict(list)
    with path.open() as stream:
        for line in stream:
            for name, value in json.loads(line).items():
                columns[name].append(value)
    assert all(len(np.array(values)) == NUM_STEPS for values in columns.values())


def onset_parts(path: Path) -> dict[str, float]:
    """CPU seconds of each part; reshaping is all that is neither the reader nor the detector."""
    judged_s = 0.0

    def scan(trace: detector.Trace) -> tuple[detector.Alarm, ...]:
        nonlocal judged_s
        began = time.process_time()
        alarms = detector.scan(trace)
        judged_s = time.process_time() - began
        return alarms

    start = time.process_time()
    log = jsonl.read(path, DEFAULT)
    read = time.process_time()
    telemetry = Telemetry(segments=choose([log]).segments, problems=(), logs=(log,))
    found = onset.find_onset(telemetry, scan=scan)
    end = time.process_time()
    assert found.step == SPIKE_AT
    return {"read": read - start, "reshape": end - read - judged_s, "judge": judged_s}


def main() -> int:
    """Measure and print."""
    taken: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        make(path)
        for run in range(NUM_RUNS + 1):
            began = time.process_time()
            peer(path)
            parts = {"peer: json.loads": time.process_time() - began, **onset_parts(path)}
            for name, seconds in parts.items():
                if run:  # the first run warms up
                    taken[name].append(seconds)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    print(f"| {NUM_STEPS:,} JSONL steps | CPU seconds, median of {NUM_RUNS} |")
    print("|---|---|")
    for name, seconds in medians.items():
        print(f"| {name} | {seconds:.3f} |")
    return int(medians["reshape"] > medians["read"])


if __name__ == "__main__":
    sys.exit(main())
