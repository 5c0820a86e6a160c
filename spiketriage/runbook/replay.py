"""`spiketriage replay`.

Execute the suspect window again from known good, and name the first link that differs.

It never changes a factor; a difference is repeated until three replays have been compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.launch import execute
from spiketriage.diagnosis.replaying import NUM_REPLAYS, first_look, replay_findings
from spiketriage.errors import UsageError
from spiketriage.evidence.progress import say
from spiketriage.nouns.incident import StepResult
from spiketriage.runbook.bench import Bench, new_rows, open_bench, require_replayable

MAX_WINDOW_STEPS = 200


def run(
    run_folder: Path,
    *,
    incidents: Path | None,
    incident: str | None,
    argv: Sequence[str],
    repeats: int | None = None,
    last: int | None = None,
) -> StepResult:
    """Replay from known good to just behind the suspect step.

    Raises:
        RefusedError: nothing is frozen, or there is no known-good generation.
        TrialError: the workers failed; their log is named.
    """
    bench = open_bench(run_folder, incidents, incident)
    require_replayable(bench)
    _check_window(bench, last)
    with bench.incident.session(argv) as session:
        answers = _answers(bench, repeats, last)
        findings = replay_findings(bench.view, bench.setting, answers)
        finding = findings[0]
        session.trials(new_rows(answers))
        session.findings(findings)
        session.exit_code = 5 if finding.outcome == "not testable" else 0
    reproduced = finding.outcome == "agrees" and bench.setting.spiked
    cached = sum(answer.cached for answer in answers)
    executed = sum(answer.row.num_steps_executed for answer in answers if not answer.cached)
    return StepResult(
        incident=bench.incident.id,
        exit_code=session.exit_code,
        verdict=finding.outcome,
        lines=(
            f"replay {finding.outcome}: {finding.summary}",
            *([f"  {finding.seen}"] if finding.seen else []),
            *(f"{other.name} {other.outcome}: {other.summary}" for other in findings[1:]),
            (
                f"{len(answers)} {'replay' if len(answers) == 1 else 'replays'}, {executed} "
                "steps executed"
            )
            + (f", {cached} cached" if cached else ""),
        ),
        data={
            "outcome": finding.outcome,
            "where": asdict(finding.where),
            "num_replays": len(answers),
            "steps_executed": executed,
        },
        next_commands=(bench.command("branch" if reproduced else "bisect"),),
    )


def _answers(bench: Bench, repeats: int | None, last: int | None) -> list[Answer]:
    """One replay, and more only when it differs from production."""
    first = bench.setting.replay(last=last)
    say(
        f"replay: {first.num_steps} steps from {bench.setting.known_good} on "
        f"{bench.site.num_processes} ranks"
    )
    answers = [execute(bench.site, [first])[first.key]]
    wanted = repeats or (
        1 if first_look(bench.view, bench.setting, answers[0]) is None else NUM_REPLAYS
    )
    more = [replace(first, repeat=number) for number in range(1, wanted)]
    if more:
        say(f"replay: {len(more)} more, to compare replays with each other")
        found = execute(bench.site, more)
        answers += [found[trial.key] for trial in more]
    return answers


def _check_window(bench: Bench, last: int | None) -> None:
    first, end = bench.setting.known_good_step + 1, last or bench.setting.last_step
    highest = min(first + MAX_WINDOW_STEPS - 1, max(bench.setting.ids))
    if not first <= end <= highest:
        raise UsageError(f"--last {end}: expected a step from {first} to {highest}")
