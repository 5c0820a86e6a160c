"""Kills the commands of the runbook at random file operations and moments, as often as is asked.

Run: `python tests/fuzz/kill.py --kills 1000 --seed 1`. After each kill no row is lost, what the
killed command had added is the beginning of what it adds when nobody kills it, and `verify` calls
the incident intact or interrupted, never broken. It ends with 1 when one of that does not hold.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from killing import Child, broken_promises, quiet_rows, recorded
from run_folder import write_run

STEPS = ("freeze", "hash", "check", "bisect", "report")
MOST_KILLS_OF_A_STEP = 4  # in a row, before it may end


@dataclass(kw_only=True, slots=True)
class Tally:
    """What was killed so far, and every promise that was broken."""

    kills: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


def main() -> int:
    """Kill until it was often enough; say how often, and what was lost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    tally = Tally()
    with tempfile.TemporaryDirectory() as scratch:
        child = Child(Path(scratch))
        try:
            _rounds(child, Path(scratch), random.Random(asked.seed), asked.kills, tally)
        finally:
            child.close()
    print(f"{tally.kills.total()} kills: {dict(tally.kills)}")
    print(f"verify afterwards: {dict(tally.verdicts)}")
    print(f"{len(tally.broken)} losses")
    for sentence in tally.broken:
        print(f"  {sentence}")
    return int(bool(tally.broken))


def _rounds(child: Child, scratch: Path, chooser: random.Random, kills: int, tally: Tally) -> None:
    base = write_run(scratch / "base", spike_at=110, rotten_document="doc-3")
    run = scratch / "run"
    quiet, cost = _quiet(child, base, run)
    while tally.kills.total() < kills:
        shutil.rmtree(run)
        shutil.copytree(base, run)
        for step in STEPS:
            for _ in range(chooser.randint(1, MOST_KILLS_OF_A_STEP)):
                before = recorded(run)
                if child.run(step, str(run), **_moment(chooser, cost[step]))["killed"]:
                    tally.kills[step] += 1
                    verdict, sentences = broken_promises(run, before, quiet)
                    tally.verdicts[verdict] += 1
                    tally.broken += [f"{step}: {sentence}" for sentence in sentences]
            child.run(step, str(run))
        verdict, sentences = broken_promises(run, {}, quiet)
        if verdict != "intact":
            tally.broken.append(f"{verdict} after every command had ended")
        print(
            f"{tally.kills.total()} kills, {len(tally.broken)} losses", file=sys.stderr, flush=True
        )


def _quiet(child: Child, base: Path, run: Path) -> tuple[Any, dict[str, dict[str, Any]]]:
    """What each step adds, and how long it takes, when nobody kills it."""
    shutil.copytree(base, run)
    cost = {step: child.run(step, str(run)) for step in STEPS}
    return quiet_rows(run), cost


def _moment(chooser: random.Random, cost: dict[str, Any]) -> dict[str, Any]:
    if chooser.random() < 0.7:
        return {"event": chooser.randint(1, cost["num_events"])}
    return {"after_s": chooser.uniform(0, 0.9 * cost["wall_s"])}


if __name__ == "__main__":
    sys.exit(main())
