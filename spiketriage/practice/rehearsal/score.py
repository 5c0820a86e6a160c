"""`spiketriage rehearse score`.

Rehearse every fault with every seed, triage each run, count the right ones.

The desk gets the run folder and nothing else; a crash counts as wrong, and so does a cause named
for a control.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from spiketriage.errors import Exit, SpiketriageError, UsageError
from spiketriage.nouns.incident import StepResult
from spiketriage.practice.rehearsal import launch
from spiketriage.practice.rehearsal.catalogue import Fault, load_fault
from spiketriage.practice.rehearsal.faults import FAULTS
from spiketriage.practice.triaging import triage

CLEARED = ("expected-behaviour", "nothing-found")
NAMED = ("established", "supported")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One rehearsal and what the desk said about it."""

    fault: str
    seed: int
    right: bool
    verdict: str
    cause: str | None
    where: str
    num_steps_executed: int
    triage_s: float


def run(
    *, seeds: Sequence[int], faults: Sequence[str], keep: Path | None, argv: Sequence[str]
) -> StepResult:
    """Score the desk; exit 0 when every run was judged right, 1 otherwise.

    Raises:
        UsageError: no seed was given, or a fault is unknown.
    """
    if not seeds:
        raise UsageError("no seed was given", hint="spiketriage rehearse score --seeds 11,12,13")
    chosen = [load_fault(name) for name in (faults or [module.NAME for module in FAULTS])]
    scores = []
    for fault in chosen:
        for seed in seeds:
            scores.append(_score(fault, seed, keep))
            print(table(scores)[-1], file=sys.stderr, flush=True)
    num_right = sum(score.right for score in scores)
    return StepResult(
        incident="",
        exit_code=Exit.DONE if num_right == len(scores) else Exit.AGAINST,
        verdict=f"{num_right}/{len(scores)}",
        lines=(*table(scores), "", f"{num_right} of {len(scores)} right"),
        data={
            "scores": [asdict(score) for score in scores],
            "num_right": num_right,
            "num_runs": len(scores),
        },
        next_commands=(),
    )


def table(scores: Sequence[Score]) -> list[str]:
    """The scores as a Markdown table, one line a run."""
    head = "| planted | seed | verdict | cause named | where | steps | triage s | right |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for score in scores:
        lines.append(
            f"| {score.fault} | {score.seed} | {score.verdict} | {score.cause or '-'} | "
            f"{score.where or '-'} "
            f"| {score.num_steps_executed} | {score.triage_s:.0f} | "
            f"{'yes' if score.right else 'NO'} |"
        )
    return lines


def is_right(fault: Fault, verdict: str, cause: str | None) -> bool:
    """Whether the desk named the planted cause, or cleared the control."""
    if fault.cause is None:
        return verdict in CLEARED and cause is None
    return verdict in NAMED and cause == fault.cause


def _score(fault: Fault, seed: int, keep: Path | None) -> Score:
    with _folder(keep) as folder:
        run_folder = folder / f"{fault.name}-{seed}"
        try:
            is_new = not run_folder.exists()
            if is_new:
                launch.make(fault, seed, run_folder)
            triaged = triage(run_folder, is_ours=is_new)
        except SpiketriageError as error:
            return _failed(fault, seed, error)
    data = triaged.envelope["data"]
    return Score(
        fault=fault.name,
        seed=seed,
        right=is_right(fault, triaged.verdict, triaged.cause),
        verdict=triaged.verdict,
        cause=triaged.cause,
        where=_where(data["where"]),
        num_steps_executed=int(data["steps_executed"]),
        triage_s=triaged.wall_s,
    )


def _failed(fault: Fault, seed: int, error: SpiketriageError) -> Score:
    return Score(
        fault=fault.name,
        seed=seed,
        right=False,
        verdict=f"failed: {error.message[:120]}",
        cause=None,
        where="",
        num_steps_executed=0,
        triage_s=0.0,
    )


def _where(place: dict[str, object]) -> str:
    parts = {"step": place["step"], "rank": place["rank"]}
    text = " ".join(f"{name} {value}" for name, value in parts.items() if value is not None)
    return f"{text} {place['stage'] or ''} {place['key'] or ''}".strip()


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="rehearsals-") as folder:
        yield Path(folder)
