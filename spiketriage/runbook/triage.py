"""`spiketriage triage`: the whole runbook in order, without a question, until a verdict stands or nothing is left.

It calls the steps as a person would and holds no state: an interrupted triage is continued by the same command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from spiketriage.errors import RefusedError
from spiketriage.records import StepResult
from spiketriage.report import write as report
from spiketriage.runbook import bisect, branch, check, freeze, hash, replay
from spiketriage.runbook.bench import place
from spiketriage.runbook.progress import say

PARTIAL = 6
MAX_ROUNDS = 8


def run(
    run_folder: Path,
    *,
    incidents: Path | None,
    incident: str | None,
    argv: Sequence[str],
    step: int | None = None,
    budget: int | None = None,
) -> StepResult:
    """Freeze, hash, check, then replay and branch as bisect proposes, then report.

    `budget` is the largest number of step executions; what stands when it is spent is the verdict.

    Raises:
        SpiketriageError: as the step that failed says; the incident keeps what was found before.
    """
    del argv  # every step journals its own command line
    words = place(run_folder, incidents, incident)

    def call(name: str, function: Callable[..., StepResult], **options: object) -> StepResult:
        say(f"triage: {name}")
        result = function(
            run_folder, incidents=incidents, incident=incident, argv=["spiketriage", name, *words], **options
        )
        for line in result.lines if name in ("check", "replay", "branch") else ():
            say(f"  {line}")
        return result

    frozen = call("freeze", freeze.run, step=step)
    incident = frozen.incident
    call("hash", hash.run)
    call("check", check.run, audit=True)
    verdict = call("bisect", bisect.run)
    for _ in range(MAX_ROUNDS):
        wanted = tuple(verdict.data["next_experiments"])
        if not wanted or (budget is not None and verdict.data["steps_executed"] >= budget):
            break
        if wanted == ("replay",):
            call("replay", replay.run)
        else:
            call("branch", branch.run, experiments=wanted)
        following = call("bisect", bisect.run)
        if tuple(following.data["next_experiments"]) == wanted:
            raise RefusedError(f"the experiment {', '.join(wanted)} was run and left no finding")
        verdict = following
    written = call("report", report.run)
    exit_code = verdict.exit_code or (PARTIAL if frozen.exit_code == PARTIAL else 0)
    return StepResult(
        incident=frozen.incident,
        exit_code=exit_code,
        verdict=verdict.verdict,
        lines=(*verdict.lines, *written.lines),
        data={**verdict.data, "report": written.data},
        next_commands=written.next_commands,
    )
