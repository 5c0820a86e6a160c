"""How many TensorBoard scalars become series in a second of CPU time, against TensorBoard's own EventAccumulator.

Run: `python tests/bench/bench_tensorboard.py`; it prints a Markdown table. The peer keeps all
points (`size_guidance` 0), and the number of points and the sum of their values must be equal.
"""

from __future__ import annotations

import math
import random
import resource
import statistics
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from spiketriage.readers.telemetry.series.names import DEFAULT
from spiketriage.readers.telemetry.stores import crc32c, tensorboard

NUM_STEPS, NUM_TAGS = 10_000, 30
NUM_RUNS = 3
TAGS = ["loss", "grad_norm", "lr", *(f"layers.{k}/grad_norm" for k in range(NUM_TAGS - 3))]


@dataclass(frozen=True, slots=True)
class Told:
    """What a reader returned: equal for all readers, or the figures mean nothing."""

    num_points: int
    total: float


def make(path: Path) -> None:
    """One event a scalar, as torch's SummaryWriter writes them, with TensorBoard's own messages."""
    draw = random.Random(7)
    with path.open("wb") as stream:

        def write(event: Event) -> None:
            content = event.SerializeToString()
            length = struct.pack("<Q", len(content))
            for part in (length, content):
                stream.write(part + struct.pack("<I", crc32c.masked_of_bytes(part)))

        write(Event(wall_time=1.7e9, file_version="brain.Event:2"))
        for step in range(NUM_STEPS):
            for tag in TAGS:
                value = Summary.Value(tag=tag, simple_value=draw.gauss(2.0, 0.5))
                write(Event(wall_time=1.7e9 + step, step=step, summary=Summary(value=[value])))


def ours(path: Path) -> Told:
    """Ours: every checksum verified, one array of steps, values and times a tag."""
    series = tensorboard.read(path, DEFAULT).series
    values = [value for one in series for value in one.values.tolist()]
    return Told(len(values), math.fsum(values))


def accumulator(path: Path) -> Told:
    """TensorBoard's reader, every point kept."""
    loaded = EventAccumulator(str(path), size_guidance={"scalars": 0})
    loaded.Reload()
    values = [point.value for tag in loaded.Tags()["scalars"] for point in loaded.Scalars(tag)]
    return Told(len(values), math.fsum(values))


def cpu_s() -> float:
    """User and system time of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print."""
    readers: dict[str, Callable[[Path], Told]] = {
        "spiketriage": ours,
        "EventAccumulator": accumulator,
    }
    taken: dict[str, list[float]] = {name: [] for name in readers}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.out.tfevents.1.host.1.0"
        make(path)
        for _ in range(NUM_RUNS):
            told = set()
            for name, reader in readers.items():
                before = cpu_s()
                told.add(reader(path))
                taken[name].append(cpu_s() - before)
            assert len(told) == 1, told
            assert told.pop().num_points == NUM_STEPS * NUM_TAGS
    medians = {name: statistics.median(times) for name, times in taken.items()}
    print("| reader | M points / CPU second | against EventAccumulator |")
    print("|---|---|---|")
    for name, median_s in medians.items():
        rate, ratio = NUM_STEPS * NUM_TAGS / median_s / 1e6, medians["EventAccumulator"] / median_s
        print(f"| {name} | {rate:.3f} | {ratio:.1f} × |")


if __name__ == "__main__":
    main()
