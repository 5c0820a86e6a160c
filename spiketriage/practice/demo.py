"""`spiketriage demo`.

Rehearse an incident that looks like bad data and is not, triage it, say where the report lies.

It plants a fault and does not tell the desk; what was planted is said at the very end.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from spiketriage.errors import Exit
from spiketriage.nouns.incident import StepResult
from spiketriage.practice.rehearsal import launch
from spiketriage.practice.rehearsal.catalogue import load_fault
from spiketriage.practice.triaging import triage

PLANTED = "kernel-shape-bug"


def run(*, out: Path, seed: int, argv: Sequence[str]) -> StepResult:
    """Rehearse into `out` unless a run lies there already, then triage it.

    Raises:
        RefusedError: `out` holds something that is not a run. TrialError: a process failed.
    """
    fault = load_fault(PLANTED)
    is_new = not (out / "spiketriage.toml").is_file()
    if is_new:
        print(
            "demo: training a small GPT on two processes, with one planted fault (about 20 s)",
            file=sys.stderr,
        )
        launch.make(fault, seed, out)
    print("demo: triage, with nothing but the run folder (about 25 s)", file=sys.stderr)
    triaged = triage(out, is_ours=is_new)
    data = triaged.envelope["data"]
    report = data["report"]["html"]
    verdict = f"verdict: {triaged.verdict}"
    if triaged.cause:
        verdict += f": {triaged.cause} ({data['class']})"
    place = f"where: step {data['where']['step']}"
    if data["where"]["rank"] is not None:
        place += f", rank {data['where']['rank']}"
    return StepResult(
        incident=str(triaged.envelope["incident"]),
        exit_code=Exit.DONE,
        verdict=triaged.verdict,
        lines=(
            verdict,
            f"  {data['explanation']}",
            place,
            f"repair: {data['repair']}",
            f"{data['steps_executed']} steps executed in {triaged.wall_s:.0f} s",
            f"planted was: {PLANTED}",
            f"report: {report}",
        ),
        data={**data, "planted": PLANTED, "report_html": report},
        next_commands=(f"spiketriage status {out}",),
    )
