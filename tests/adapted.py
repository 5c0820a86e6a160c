"""A run that an adapter trained, as tests use it.

Made by a user's script in processes of its own, then read.

It never trains in the test's own process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from command_line import ROOT, call, environment

from spiketriage.nouns.telemetry import Segment, StepRecord
from spiketriage.readers.telemetry.stores.native import read_segment

ADAPTERS = ROOT / "tests" / "adapters"
CHILD = ROOT / "tests" / "adapter_child.py"
LIMIT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """A run folder, the key of its rotten row, and what is on record of it."""

    folder: Path
    rotten: int

    def segments(self) -> list[Segment]:
        """Telemetry by attempt, then rank."""
        found = [read_segment(path) for path in (self.folder / "telemetry").glob("*.seg")]
        return sorted(found, key=lambda one: (one.attempt, one.rank))

    def manifest(self, step: int) -> dict[str, Any]:
        """The manifest of the generation of `step`."""
        return json.loads(
            (self.folder / "checkpoints" / f"step-{step:06d}" / "MANIFEST.json").read_text()
        )

    def desk(self, *words: str) -> dict[str, Any]:
        """What a command of the desk says of this run, as JSON."""
        command, *rest = words
        if command in ("triage", "replay", "branch"):
            rest.append("--trust")
        done = call(command, str(self.folder), *rest, "--json", cwd=self.folder.parent)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)


def rows_with_rot(folder: Path, *, num_rows: int, rotten: int) -> Adapted:
    """A run folder with data.

    Each token follows from the one before, and one row's weight is not a number.
    """
    folder.mkdir(parents=True)
    first_N1 = np.random.default_rng(3).integers(0, 64, (num_rows, 1))
    np.save(folder / "rows.npy", (first_N1 * 5 + np.arange(17) * 7) % 64)
    weights_N = np.ones(num_rows, dtype=np.float32)
    weights_N[rotten] = np.nan
    np.save(folder / "weights.npy", weights_N)
    return Adapted(folder=folder, rotten=rotten)


def script(name: str) -> Path:
    """The script that a user of framework `name` wrote."""
    return ADAPTERS / f"{name}_run" / "train.py"


def child(*words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python with these words to its end."""
    return subprocess.run(
        [sys.executable, *words],
        env={**environment(), "OMP_NUM_THREADS": "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def chain(path: Path) -> dict[int, StepRecord]:
    """The steps of a chain file by number."""
    return {one.step: one for one in read_segment(path).steps}


def rotten_steps(records: Mapping[int, StepRecord], rotten: int) -> list[int]:
    """Steps whose batch, by the names on record, holds the rotten row."""
    return [
        step for step, one in records.items() if any(rotten in micro for micro in one.ids["micros"])
    ]
