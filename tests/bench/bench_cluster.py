"""Digesting one file with the threads of this machine, and with two Dask workers of the same machine.

Run: `python tests/bench/bench_cluster.py [--gigabytes N]`. Both share the same cores and the same
page cache, so the cluster cannot be faster here: the difference is what handing out pieces costs,
which more machines would have to earn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dask_cluster import Cluster

from spiketriage.readers.scan.run import digest_files
from spiketriage.tools import cluster

NUM_RUNS = 5
BLOCK_BYTES = 32 << 20


def main() -> None:
    """Measure both in turn, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    num_blocks = max(1, round(parser.parse_args().gigabytes * 1e9 / BLOCK_BYTES))
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name) / "file.bin"
        with path.open("wb") as stream:
            for number in range(num_blocks):
                stream.write(number.to_bytes(8, "little") * (BLOCK_BYTES // 8))
        seconds: dict[str, list[float]] = {
            "threads of this machine": [],
            "two Dask workers, the same cores": [],
        }
        with Cluster(folder, 2) as running:
            running.replace_dead_workers()  # which waits until both are there
            with cluster.executor(running.address, (folder,)) as workers:
                expected = digest_files([path])  # and the page cache is warm
                assert digest_files([path], executor=workers) == expected
                for _ in range(NUM_RUNS):
                    for spent, executor in zip(seconds.values(), (None, workers), strict=True):
                        spent.append(
                            timed(lambda executor=executor: digest_files([path], executor=executor))
                        )
        print(f"\n| digest of one file, {path_gigabytes(num_blocks):.2f} GB | GB/s |\n|---|---|")
        for title, spent in seconds.items():
            print(f"| {title} | {path_gigabytes(num_blocks) / statistics.median(spent):.2f} |")


def path_gigabytes(num_blocks: int) -> float:
    """Size of the file."""
    return num_blocks * BLOCK_BYTES / 1e9


def timed(work: Callable[[], object]) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
