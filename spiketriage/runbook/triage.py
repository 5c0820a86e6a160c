"""`spiketriage triage`: the whole runbook in order, until a verdict stands or nothing is left.

It calls the steps as a person would and never holds state: an interrupted triage is continued by
the same command.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from spiketriage.diagnosis.replaying import REPLAY
from spiketriage.errors import Exit, NotTrustedError, RefusedError, TrialError
from spiketriage.evidence.progress import say
from spiketriage.incident import next_step, store
from spiketriage.nouns.incident import StepResult
from spiketriage.report import write as report
from spiketriage.runbook import bisect, branch, check, freeze, hash, replay

EXPLAINED = ("established", "supported")  # a verdict that accounts for what hash found
# Verdicts that leave later anomalies open.
DISMISSED = ("expected-behaviour", "telemetry-artefact", "unresolved")
# More than the 2×2, the references, the branches and a later window take; a proposal that comes
# back unchanged ends the rounds sooner.
MAX_ROUNDS = 8
# A run that is full of anomalies has one story, which the first incidents tell.
MAX_LATER = 3


@dataclass(slots=True)
class _Walk:
    """One walk through the runbook: where it goes, and the exit code of each step on the way.

    `trust` says that the code of the run may be imported, `allow_outside` that its settings may
    name places outside of it.
    """

    run_folder: Path
    incidents: Path | None
    incident: str | None
    trust: bool
    allow_outside: bool
    refusal: str = ""  # why no step was executed, where the run's code is not trusted
    exit_codes: dict[str, int] = field(default_factory=dict)

    def command(self, step: str, *options: str) -> str:
        """The command line of a step on this walk's incident."""
        return next_step.command(step, self.run_folder, self.incidents, self.incident, *options)

    def has_steps(self) -> bool:
        """Whether the frozen telemetry of this walk's incident holds a step."""
        place = store.find(self.run_folder, incidents=self.incidents, wanted=self.incident)
        return next_step.has_steps(place.dossier())

    def step(self, name: str, function: Callable[..., StepResult], **options: object) -> StepResult:
        """Run one step as its own command line would, and say what it found."""
        say(f"triage: {name}")
        result = function(
            self.run_folder,
            incidents=self.incidents,
            incident=self.incident,
            argv=shlex.split(self.command(name)),
            **options,
        )
        self.exit_codes[name] = result.exit_code
        if name not in ("bisect", "report"):  # their lines are triage's own answer
            for line in result.lines:
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
    trust: bool = False,
    allow_outside: bool = False,
) -> StepResult:
    """Freeze, hash, check, then replay and branch as bisect proposes, then report.

    `budget` is the largest number of step executions; what stands when it is spent is the verdict.
    `trust` says that the code of the run may be imported; without it the checks still speak.
    `allow_outside` says that its settings may name places outside the run.

    Raises:
        SpiketriageError: as the step that failed says; the incident keeps what was found before.
    """
    del argv  # every step journals its own command line
    walk = _Walk(
        run_folder=run_folder,
        incidents=incidents,
        incident=incident or _latest(run_folder, incidents, step),
        trust=trust,
        allow_outside=allow_outside,
    )
    first = _triage(walk, step, budget)
    if incident is not None or step is not None or walk.refusal:
        return first
    return _go_on(first, walk, budget)


def _triage(walk: _Walk, step: int | None, budget: int | None) -> StepResult:
    """One incident, from freeze to report."""
    walk.incident = walk.step(
        "freeze", freeze.run, step=step, allow_outside=walk.allow_outside
    ).incident
    walk.step("hash", hash.run)
    checked = walk.step("check", check.run, audit=True)
    if walk.has_steps():
        verdict = _experiment(walk, budget)
    else:
        verdict = _unweighed(checked)
    written = walk.step("report", report.run)
    lines, next_commands = [*verdict.lines, *written.lines], written.next_commands
    if walk.refusal:
        lines.append(f"not replayed: {walk.refusal}")
        next_commands = (walk.command("triage", "--trust"),)
    return StepResult(
        incident=walk.incident,
        exit_code=_exit_code(verdict, walk.exit_codes),
        verdict=verdict.verdict,
        lines=tuple(lines),
        data={
            **verdict.data,
            "report": written.data["report"],
            "exit_codes": dict(walk.exit_codes),
            "refusal": walk.refusal,
        },
        next_commands=next_commands,
    )


def _go_on(first: StepResult, walk: _Walk, budget: int | None) -> StepResult:
    """When the first anomaly names no fault, look at what came after it.

    A clean outlier must not hide a fault: each later anomaly is an incident of its own, and the
    first one that names a cause is the answer.
    """
    latest, num_steps = first, first.data["steps_executed"]
    for _ in range(MAX_LATER):
        later = latest.data["later"]
        if latest.verdict not in DISMISSED or not later or _is_spent(budget, num_steps):
            break
        say(
            f"triage: {latest.verdict} at {latest.incident}; step {later[0]} came later and "
            "is not explained by it"
        )
        later_walk = replace(walk, incident=None, refusal="", exit_codes={})
        latest = _triage(later_walk, later[0], budget)
        num_steps += latest.data["steps_executed"]
    if latest is first:
        return first
    chosen = first
    if latest.data["cause"] is not None:
        chosen = latest
    remark = f"triage looked at more than one anomaly; this is the incident {chosen.incident}"
    return replace(
        chosen,
        lines=(*chosen.lines, remark),
        data={**chosen.data, "steps_executed": num_steps, "first_incident": first.incident},
    )


def _is_spent(budget: int | None, num_steps: int) -> bool:
    """Whether as many steps were executed as were allowed."""
    return budget is not None and num_steps >= budget


def _latest(run_folder: Path, incidents: Path | None, step: int | None) -> str | None:
    """The latest incident, which every command continues; None for a new step, or without one."""
    if step is not None:
        return None
    try:
        return store.find(run_folder, incidents=incidents, wanted=None).id
    except RefusedError:
        return None


def _experiment(walk: _Walk, budget: int | None) -> StepResult:
    """Replay and branch as bisect proposes.

    A launch that fails ends the experiments, not the triage, and so does code that nobody trusts.
    """
    verdict = walk.step("bisect", bisect.run)
    tried: tuple[str, ...] = ()
    for _ in range(MAX_ROUNDS):
        proposed = tuple(verdict.data["next_experiments"])
        if not proposed or proposed == tried or _is_spent(budget, verdict.data["steps_executed"]):
            break
        step = "replay" if proposed == (REPLAY,) else "branch"
        try:
            if step == "replay":
                walk.step(step, replay.run, trust=walk.trust)
            else:
                walk.step(step, branch.run, experiments=proposed, trust=walk.trust)
        except NotTrustedError as error:
            walk.refusal = error.message
            walk.exit_codes[step] = Exit.REFUSED
            break
        except TrialError as error:
            say(f"  {error.message}")
            walk.exit_codes[step] = Exit.CHILD_FAILED
            break
        verdict, tried = walk.step("bisect", bisect.run), proposed
    return verdict


def _unweighed(checked: StepResult) -> StepResult:
    """What stands where nothing can be replayed or weighed: the findings of the checks alone."""
    return StepResult(
        incident=checked.incident,
        exit_code=Exit.INCONCLUSIVE,
        verdict="not weighed",
        lines=("not weighed: no step is recorded", *checked.lines),
        data={"cause": None, "later": [], "next_experiments": [], "steps_executed": 0},
        next_commands=(),
    )


def _exit_code(verdict: StepResult, seen: Mapping[str, int]) -> int:
    """The worst that the verdict does not account for.

    A failed child, code that was not imported, damage, no answer, nothing judged, a gap, in this
    order.
    """
    if Exit.CHILD_FAILED in seen.values():
        return Exit.CHILD_FAILED
    if Exit.REFUSED in seen.values():
        return Exit.REFUSED
    if seen.get("hash") == Exit.INTEGRITY and verdict.verdict not in EXPLAINED:
        return Exit.INTEGRITY
    if not verdict.exit_code and seen.get("check") == Exit.INCONCLUSIVE:
        return Exit.INCONCLUSIVE
    if not verdict.exit_code and seen.get("freeze") == Exit.PARTIAL:
        return Exit.PARTIAL
    return verdict.exit_code
