"""`spiketriage triage`.

The whole runbook in order, without a question, until a verdict stands or nothing is left.

It calls the steps as a person would and holds no state: an interrupted triage is continued by the
same command.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from spiketriage.errors import RefusedError, TrialError
from spiketriage.evidence.progress import say
from spiketriage.incident import store
from spiketriage.incident.next_step import command
from spiketriage.nouns.incident import StepResult
from spiketriage.report import write as report
from spiketriage.runbook import bisect, branch, check, freeze, hash, replay

INTEGRITY, PARTIAL, CHILD_FAILED = 4, 6, 7
EXPLAINED = ("established", "supported")  # a verdict that accounts for what hash found
DISMISSED = (
    "expected-behaviour",
    "telemetry-artefact",
    "unresolved",
)  # verdicts that leave later anomalies open
MAX_ROUNDS = 8
MAX_LATER = 3


@dataclass(slots=True)
class _Walk:
    """One walk through the runbook: where it goes, and the exit code of each step on the way."""

    run_folder: Path
    incidents: Path | None
    incident: str | None
    exit_codes: dict[str, int] = field(default_factory=dict)

    def step(self, name: str, function: Callable[..., StepResult], **options: object) -> StepResult:
        """Run one step as its own command line would, and say what it found."""
        say(f"triage: {name}")
        result = function(
            self.run_folder,
            incidents=self.incidents,
            incident=self.incident,
            argv=shlex.split(command(name, self.run_folder, self.incidents, self.incident)),
            **options,
        )
        self.exit_codes[name] = result.exit_code
        for line in result.lines if name not in ("bisect", "report") else ():
            say(f"  {line}")
        return result


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
    walk = _Walk(
        run_folder=run_folder,
        incidents=incidents,
        incident=incident or _latest(run_folder, incidents, step),
    )
    first = _triage(walk, step, budget)
    if incident is not None or step is not None:
        return first
    return _go_on(first, run_folder, incidents, budget)


def _triage(walk: _Walk, step: int | None, budget: int | None) -> StepResult:
    """One incident, from freeze to report."""
    walk.incident = walk.step("freeze", freeze.run, step=step).incident
    walk.step("hash", hash.run)
    walk.step("check", check.run, audit=True)
    verdict = _experiment(walk, budget)
    written = walk.step("report", report.run)
    return StepResult(
        incident=walk.incident,
        exit_code=_exit_code(verdict, walk.exit_codes),
        verdict=verdict.verdict,
        lines=(*verdict.lines, *written.lines),
        data={
            **verdict.data,
            "report": written.data["report"],
            "exit_codes": dict(walk.exit_codes),
        },
        next_commands=written.next_commands,
    )


def _go_on(
    first: StepResult, run_folder: Path, incidents: Path | None, budget: int | None
) -> StepResult:
    """When the first anomaly names no fault, look at what came after it.

    A clean outlier must not hide a fault.

    Each later anomaly is an incident of its own; the first one that names a cause is the answer.
    """
    found, executed = first, first.data["steps_executed"]
    for _ in range(MAX_LATER):
        later = found.data["later"]
        if (
            found.verdict not in DISMISSED
            or not later
            or (budget is not None and executed >= budget)
        ):
            break
        say(
            f"triage: {found.verdict} at {found.incident}; step {later[0]} came later and "
            "is not explained by it"
        )
        found = _triage(
            _Walk(run_folder=run_folder, incidents=incidents, incident=None), later[0], budget
        )
        executed += found.data["steps_executed"]
    if found.data["cause"] is not None:
        chosen = found
    else:
        chosen = first
    if chosen is first and found is first:
        return first
    told = f"triage looked at more than one anomaly; this is the incident {chosen.incident}"
    return replace(
        chosen,
        lines=(*chosen.lines, told),
        data={**chosen.data, "steps_executed": executed, "first_incident": first.incident},
    )


def _latest(run_folder: Path, incidents: Path | None, step: int | None) -> str | None:
    """The latest incident, which every command continues.

    None when a step was asked for or there is none.
    """
    if step is not None:
        return None
    try:
        return store.find(run_folder, incidents=incidents, wanted=None).id
    except RefusedError:
        return None


def _experiment(walk: _Walk, budget: int | None) -> StepResult:
    """Replay and branch as bisect proposes.

    A launch that fails ends the experiments, not the triage.
    """
    verdict = walk.step("bisect", bisect.run)
    for _ in range(MAX_ROUNDS):
        wanted = tuple(verdict.data["next_experiments"])
        if not wanted or (budget is not None and verdict.data["steps_executed"] >= budget):
            return verdict
        try:
            if wanted == ("replay",):
                walk.step("replay", replay.run)
            else:
                walk.step("branch", branch.run, experiments=wanted)
        except TrialError as error:
            say(f"  {error.message}")
            walk.exit_codes["replay" if wanted == ("replay",) else "branch"] = CHILD_FAILED
            return verdict
        following = walk.step("bisect", bisect.run)
        if tuple(following.data["next_experiments"]) == wanted:
            return following
        verdict = following
    return verdict


def _exit_code(verdict: StepResult, seen: Mapping[str, int]) -> int:
    """The worst thing that the verdict does not account for.

    A failed child, damage, no answer, a gap.
    """
    if CHILD_FAILED in seen.values():
        return CHILD_FAILED
    if seen.get("hash") == INTEGRITY and verdict.verdict not in EXPLAINED:
        return INTEGRITY
    return verdict.exit_code or (PARTIAL if seen.get("freeze") == PARTIAL else 0)
