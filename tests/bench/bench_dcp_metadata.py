"""How long `.metadata` of 160,000 chunks takes to become facts, against a plain `pickle.load` in the same run.

Run: `python tests/bench/bench_dcp_metadata.py`; it prints a Markdown table. The peer and the making
need torch.
"""

from __future__ import annotations

import pickle
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

NUM_TENSORS, NUM_RANKS, SLICE_BYTES = 500, 320, 2600
NUM_RUNS = 3
_MIB = 1 << 20


def make(folder: Path) -> None:
    """A `.metadata` of torch's own classes, and files of the right sizes with nothing in them."""
    import torch
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        StorageMeta,
        TensorProperties,
        TensorStorageMetadata,
    )

    tensors, storage = {}, {}
    for number in range(NUM_TENSORS):
        name = f"optimizer.state.layers.{number}.attention.wq.weight.exp_avg"
        offsets = [torch.Size((4 * rank, 0)) for rank in range(NUM_RANKS)]
        chunks = [
            ChunkStorageMetadata(offsets=offset, sizes=torch.Size((4, 64))) for offset in offsets
        ]
        for rank, offset in enumerate(offsets):
            place = _StorageInfo(f"__{rank}_0.distcp", number * SLICE_BYTES, SLICE_BYTES)
            storage[MetadataIndex(name, offset, rank)] = place
        properties = TensorProperties(dtype=torch.bfloat16)
        size = torch.Size((4 * NUM_RANKS, 64))
        tensors[name] = TensorStorageMetadata(properties=properties, size=size, chunks=chunks)
    planner = {name: tuple(name.split(".")) for name in tensors}
    (folder / ".metadata").write_bytes(
        pickle.dumps(Metadata(tensors, planner, storage, StorageMeta("run"), "1.0.0"))
    )
    for rank in range(NUM_RANKS):
        with (folder / f"__{rank}_0.distcp").open("wb") as stream:
            stream.truncate(NUM_TENSORS * SLICE_BYTES)


def parse(folder: Path) -> int:
    """Ours, from bytes to checked facts: chunks, roles, tiling."""
    from spiketriage.readers.checkpoints.dcp import metadata as dcp_metadata

    found = dcp_metadata.parse((folder / ".metadata").read_bytes(), where=folder)
    assert not found.problems
    return sum(len(tensor.chunks) for tensor in found.tensors)


def load(folder: Path) -> int:
    """The peer, with torch and its classes imported beforehand."""
    import torch.distributed.checkpoint  # noqa: F401

    with (folder / ".metadata").open("rb") as stream:
        return len(pickle.load(stream).storage_data)


WAYS: dict[str, Callable[[Path], int]] = {"facts from `.metadata`": parse, "`pickle.load`": load}


def measure(way: str, folder: Path) -> None:
    """One way, once, in a process of its own: prints seconds and the peak of its memory."""
    if WAYS[way] is load:
        import torch.distributed.checkpoint  # noqa: F401
    else:
        from spiketriage.readers.checkpoints.dcp import layout  # noqa: F401
    start = time.perf_counter()
    num_chunks = WAYS[way](folder)
    seconds = time.perf_counter() - start
    assert num_chunks == NUM_TENSORS * NUM_RANKS
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main() -> None:
    """Measure all ways in turn, so that a slow minute hits each of them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        peaks: dict[str, float] = {}
        for _ in range(NUM_RUNS):
            for way in WAYS:
                command = [sys.executable, __file__, way, name]
                words = subprocess.run(
                    command, check=True, capture_output=True, text=True
                ).stdout.split()
                seconds[way].append(float(words[0]))
                peaks[way] = max(peaks.get(way, 0), float(words[1]))
        size_bytes = (folder / ".metadata").stat().st_size
    print(
        f"`.metadata` of {NUM_TENSORS * NUM_RANKS} chunks, {size_bytes / _MIB:.1f} MiB, "
        f"medians of {NUM_RUNS} runs\n"
    )
    print("| way | seconds | peak memory (MiB) |\n|---|---|---|")
    for way in WAYS:
        print(f"| {way} | {statistics.median(seconds[way]):.2f} | {peaks[way] / _MIB:.0f} |")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
