"""Digesting, copying and scanning large files against a ceiling (read and discard) and the tools people use today.

Run: `python tests/bench/bench_scan.py [--gigabytes N]`; it prints Markdown tables. Files are read
once beforehand, so that the page cache is warm. The peers need torch, safetensors and
model-signing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spiketriage.digests import PIECE_BYTES

if TYPE_CHECKING:
    from spiketriage.evidence.redacting import Rule

NUM_RUNS = 5
NUM_SMALL_FILES = 64
TENSOR_BYTES = 32 << 20
_PAGE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of doing it: what it reads below the bench's folder, and what it does with that."""

    subject: str
    run: Callable[[Path], object]
    is_slow: bool = False


def make(folder: Path, num_bytes: int) -> None:
    """One huge file, the same bytes as many files, and a checkpoint each of bf16 and float32 weights."""
    import numpy as np

    rng = np.random.default_rng(0)
    block = rng.standard_normal(TENSOR_BYTES // 4, dtype=np.float32)
    (folder / "huge").mkdir()
    (folder / "many").mkdir()
    (folder / "copy").mkdir()
    with (folder / "huge" / "file.bin").open("wb") as stream:
        for _ in range(num_bytes // block.nbytes):
            stream.write(block.tobytes())
    for number in range(NUM_SMALL_FILES):
        (folder / "many" / f"{number:03d}.bin").write_bytes(
            block.tobytes()[: num_bytes // NUM_SMALL_FILES]
        )
    for dtype, words in (("F32", block), ("BF16", (block.view(np.uint32) >> 16).astype(np.uint16))):
        (folder / dtype).mkdir()
        write_safetensors(folder / dtype / "model.safetensors", dtype, words, num_bytes)


def write_safetensors(path: Path, dtype: str, words: Any, num_bytes: int) -> None:
    """A file of equal tensors, without torch."""
    count = num_bytes // words.nbytes
    header = {
        f"layer.{number}.weight": {
            "dtype": dtype,
            "shape": [words.size // 1024, 1024],
            "data_offsets": [number * words.nbytes, (number + 1) * words.nbytes],
        }
        for number in range(count)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for _ in range(count):
            stream.write(words.tobytes())


def discard(folder: Path) -> None:
    """The ceiling: every byte read by all cores, and nothing done with it."""

    def read(path: Path, start: int) -> None:
        buffer = bytearray(_PAGE)
        handle = os.open(path, os.O_RDONLY)
        end = min(start + PIECE_BYTES, path.stat().st_size)
        while start < end:
            start += os.preadv(handle, [buffer], start)
        os.close(handle)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        jobs = [
            (path, start)
            for path in files(folder)
            for start in range(0, path.stat().st_size, PIECE_BYTES)
        ]
        list(threads.map(lambda job: read(*job), jobs))


def files(folder: Path) -> list[Path]:
    """The files of one subject."""
    return sorted(path for path in folder.iterdir() if path.is_file())


def tree_hash(folder: Path) -> None:
    """Ours."""
    from spiketriage.readers.scan.run import digest_files

    assert all(one.digest for one in digest_files(files(folder)))


def model_signing(folder: Path) -> None:
    """The peer of supply-chain people, with its fastest hash."""
    from model_signing.hashing import Config

    Config().use_file_serialization(hashing_algorithm="blake3").hash(folder)


def model_signing_sha256(folder: Path) -> None:
    """The same peer as it comes."""
    from model_signing.hashing import Config

    Config().hash(folder)


def plain_copy(folder: Path) -> None:
    """A copy in the same pieces, synced as ours is, and no digest."""
    target = folder.parent / "copy" / "plain"
    with (
        (folder / "file.bin").open("rb", buffering=0) as source,
        target.open("wb", buffering=0) as stream,
    ):
        buffer = memoryview(bytearray(_PAGE))
        while count := source.readinto(buffer):
            stream.write(buffer[:count])
        os.fsync(stream.fileno())
    target.unlink()


def copy_and_digest(folder: Path) -> None:
    """Ours: one pass that reads, takes both digests and writes."""
    _copy(folder, None)


def copy_and_search(folder: Path) -> None:
    """Ours for a text log: searched for credentials as well."""
    from spiketriage.evidence.redacting import rule_of
    from spiketriage.redaction import KNOWN

    _copy(folder, rule_of("log", folder / "train.log", b"", KNOWN))


def _copy(folder: Path, rule: Rule | None) -> None:
    from spiketriage.evidence.budget import Budget
    from spiketriage.evidence.stream_copy import stream_copy

    target = folder.parent / "copy" / "digested"
    stream_copy(
        folder / "file.bin",
        target,
        rule=rule,
        drafts=target.with_name("drafts"),
        budget=Budget(folder),
        alive=lambda _source: None,
    )
    target.unlink()


def scan(folder: Path, *, is_full: bool, is_digested: bool = True) -> object:
    """Ours: digest, finiteness and largest; in full also norm and zeros."""
    from spiketriage.readers.checkpoints.layouts import safetensors_files
    from spiketriage.readers.scan.run import measure

    found = measure(
        safetensors_files.read(folder / "model.safetensors"),
        is_full=is_full,
        is_digested=is_digested,
    )
    assert found.stats
    return found


def four_operations(folder: Path) -> None:
    """What a person types: load the file, then four torch operations a tensor."""
    import torch
    from safetensors.torch import load_file

    for tensor in load_file(folder / "model.safetensors").values():
        x = tensor.float()
        bool(torch.isfinite(x).all()), float(x.abs().max()), float(x.norm()), int((x == 0).sum())


DIGESTS = {
    "ceiling: read, discard": Way(subject="huge", run=discard),
    "spiketriage tree hash": Way(subject="huge", run=tree_hash),
    "model-signing, blake3": Way(subject="huge", run=model_signing, is_slow=True),
    "model-signing, sha256 (default)": Way(subject="huge", run=model_signing_sha256, is_slow=True),
    "ceiling: read, discard (64 files)": Way(subject="many", run=discard),
    "spiketriage tree hash (64 files)": Way(subject="many", run=tree_hash),
    "model-signing, blake3 (64 files)": Way(subject="many", run=model_signing, is_slow=True),
}
COPIES = {
    "plain copy": Way(subject="huge", run=plain_copy),
    "copy + XXH3 + SHA-256, one pass": Way(subject="huge", run=copy_and_digest),
    "copy + XXH3 + SHA-256 + credentials": Way(subject="huge", run=copy_and_search),
}
SCANS = {
    f"{name} {dtype}": Way(subject=dtype, run=run, is_slow=run is four_operations)
    for dtype in ("BF16", "F32")
    for name, run in (
        ("ceiling: read, discard", discard),
        ("finite + absmax", lambda folder: scan(folder, is_full=False, is_digested=False)),
        ("digest + finite + absmax", lambda folder: scan(folder, is_full=False)),
        ("digest + full statistics", lambda folder: scan(folder, is_full=True)),
        ("load_file + 4 operations", four_operations),
    )
}
TABLES = {"digest": DIGESTS, "copy": COPIES, "scan": SCANS}


def measure_in_child(table: str, name: str, folder: Path) -> None:
    """One way in a process of its own.

    Prints the seconds of each run and the peak of its memory.
    """
    way = TABLES[table][name]
    subject = folder / way.subject
    way.run(subject)  # imports, and the page cache
    for _ in range(3 if way.is_slow else NUM_RUNS):
        start = time.perf_counter()
        way.run(subject)
        print(time.perf_counter() - start)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main() -> None:
    """Make the files, measure every way twice in turn, print one table a topic."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("child", nargs="*")
    given = parser.parse_args()
    if given.child[:1] == ["make"]:
        make(Path(given.child[2]), int(given.child[1]))
        return
    if given.child:
        measure_in_child(given.child[0], given.child[1], Path(given.child[2]))
        return
    num_bytes = int(given.gigabytes * 1e9) // TENSOR_BYTES * TENSOR_BYTES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # In a process of its own: a child inherits the peak of the memory of the one that starts
        # it.
        subprocess.run([sys.executable, __file__, "make", str(num_bytes), name], check=True)
        for table, ways in TABLES.items():
            print_table(table, ways, folder, num_bytes)


def print_table(table: str, ways: dict[str, Way], folder: Path, num_bytes: int) -> None:
    """Two rounds over all ways, so that a slow minute hits each of them."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    peaks: dict[str, float] = dict.fromkeys(ways, 0.0)
    for _ in range(2):
        for name in ways:
            command = [sys.executable, __file__, table, name, str(folder)]
            said = subprocess.run(
                command, check=True, capture_output=True, text=True
            ).stdout.splitlines()
            lines = [
                line for line in said if line[:1].isdigit()
            ]  # freeze's own child also says that it is alive
            seconds[name] += [float(line) for line in lines[:-1]]
            peaks[name] = max(peaks[name], float(lines[-1]))
    print(
        f"\n| {table}, {num_bytes / 1e9:.2f} GB | GB/s | of the first row above | peak "
        "memory (MB) |"
    )
    print("|---|---|---|---|")
    first = 0.0
    for name in ways:
        rate = num_bytes / statistics.median(seconds[name]) / 1e9
        first = rate if name.startswith(("ceiling", "plain")) else first
        print(f"| {name} | {rate:.2f} | {rate / first:.2f} | {peaks[name] / 1e6:.0f} |")


if __name__ == "__main__":
    main()
