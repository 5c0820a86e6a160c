"""Gives every reader mutants of its fixtures and prints what came of them, a row a reader.

    python -m tests.fuzz.mutants --mutants 1000000 --seed 1 --workers 2

Mutant `n` of a seed is always the same: `--first n --mutants 1` repeats one, and `--keep FOLDER`
keeps every one that was neither read nor refused. This program never reads a mutant itself.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from spiketriage.errors import SpiketriageError
from spiketriage.readers.discover import claims_on, kinds
from spiketriage.readers.look import look

ROOT = Path(__file__).parents[2]
CHUNK = 5000  # mutants a worker's process: half a second to start it is two hundredths of its time
MAX_SEEDS = 6  # a reader, the smallest
MAX_SEED_BYTES = 400_000
OUTCOMES = (
    "read", "refused", "bad sentences", "over limits", "foreign exceptions", "acted", "aborts",
)  # fmt: skip
GOOD = OUTCOMES[:2]


@dataclass(slots=True)
class Campaign:
    """The counts so far; of each kind of fault the first is printed when it is found."""

    seed: str
    folder: Path
    keep: Path | None
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    places: set[tuple[str, str, str]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, number: int, member: str, outcome: str, report: str) -> None:
        """Count a mutant; tell of a fault where it is the first from its place."""
        with self.lock:
            self.counts[member, outcome] += 1
            place = (member, outcome, report.strip().rpartition("\n")[2][:80])
            if outcome not in GOOD and place not in self.places:
                self.places.add(place)
                told = f"{member}: {outcome}: mutant {number} of seed {self.seed}: {report}\n"
                print(told, flush=True)


def seeds() -> dict[str, list[str]]:
    """The smallest fixtures of each reader, by the reader's kind and name."""
    claimed: dict[str, list[tuple[int, str]]] = {
        f"{kind}:{member.NAME}": [] for kind, members in kinds().items() for member in members
    }
    for path in sorted((ROOT / "fixtures").rglob("*")):
        if path.suffix in (".py", ".md") or "__pycache__" in path.parts:
            continue
        size = sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
        try:
            claims = claims_on(look(path))[:2]
        except SpiketriageError:
            continue
        for claim in claims:
            if size <= MAX_SEED_BYTES and claim.confidence >= 0.3:
                claimed[f"{claim.kind}:{claim.format.NAME}"].append((size, str(path)))
    smallest = {member: sorted(found)[:MAX_SEEDS] for member, found in claimed.items()}
    return {member: [path for _, path in found] for member, found in smallest.items()}


def work(campaign: Campaign, spec: Path, chunks: Iterator[tuple[int, int]]) -> None:
    """Take chunks until there are none left, each in a process of its own."""
    while True:
        with campaign.lock:
            chunk = next(chunks, None)
        if chunk is None:
            return
        first, num = chunk
        end = first + num
        while first < end:
            first = _chunk(campaign, spec, first, end - first)


def _chunk(campaign: Campaign, spec: Path, first: int, num: int) -> int:
    """Run a worker over `num` mutants; returns the number after the last one that it tried."""
    folder = Path(tempfile.mkdtemp(dir=campaign.folder))
    (folder / "tmp").mkdir()
    command = [sys.executable, "-m", "tests.fuzz.worker", str(folder), str(spec)]
    with subprocess.Popen(
        [*command, campaign.seed, str(first), str(num)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # an interrupt is for the campaign, which lets the chunk end
        env={**os.environ, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"},
    ) as worker:
        output, errors = worker.communicate()
    done = first
    for line in output.splitlines():
        number, member, outcome, report = json.loads(line)
        campaign.take(number, member, outcome, report)
        done = number + 1
    if worker.returncode and not (folder / "state").exists():
        raise RuntimeError(f"a worker did not start: {errors[-2000:]}")
    if worker.returncode:
        state = (folder / "state").read_text().split()
        done = int(state[0]) + 1
        how = f"status {worker.returncode}"
        if worker.returncode < 0:
            how = signal.Signals(-worker.returncode).name
        campaign.take(int(state[0]), state[1], "aborts", f"{state[2]}\n{errors[-2000:]}\n{how}")
        if campaign.keep is not None:
            shutil.copytree(folder, campaign.keep / f"{campaign.seed}-{state[0]}")
    shutil.rmtree(folder)
    return done


def table(campaign: Campaign) -> str:
    """A row a reader, and their sum."""
    members = sorted({member for member, _ in campaign.counts})
    lines = ["| reader | mutants | " + " | ".join(OUTCOMES) + " |", "|---|" + "---:|" * 8]
    for member in (*members, "all"):
        counts = [
            sum(
                count
                for (of, what), count in campaign.counts.items()
                if what == outcome and member in (of, "all")
            )
            for outcome in OUTCOMES
        ]
        lines.append(f"| {member} | {sum(counts)} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run the campaign; the status is 1 if anything but reading and refusing came of a mutant."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.fuzz.mutants")
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder for what ended a worker")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        spec = Path(scratch) / "seeds.json"
        spec.write_text(json.dumps(seeds()))
        campaign = Campaign(asked.seed, Path(scratch), asked.keep)
        end = asked.first + asked.mutants
        chunks = iter([(at, min(CHUNK, end - at)) for at in range(asked.first, end, CHUNK)])
        with ThreadPoolExecutor(asked.workers) as pool:
            done = [pool.submit(work, campaign, spec, chunks) for _ in range(asked.workers)]
            try:
                wait(done)
            except KeyboardInterrupt:  # the chunks that are begun are the last
                with campaign.lock:
                    sum(1 for _ in chunks)
                wait(done)
            for each in done:
                each.result()
    print(table(campaign))
    return int(any(outcome not in GOOD for _, outcome in campaign.counts))


if __name__ == "__main__":
    sys.exit(main())
