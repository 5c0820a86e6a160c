"""`spiketriage replay`: execute the suspect window again, and name the first link that differs.

It never changes a factor; a difference is repeated until three replays have been compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from spiketriage.diagnosis.answer import Answer, num_cached, num_steps_executed
from spiketriage.diagnosis.replaying import NUM_REPLAYS, first_difference, replay_findings
from spiketriage.errors import Exit, UsageError
from spiketriage.evidence.progress import say
from spiketriage.incident.next_step import after_replay
from spiketriage.incident.session import Session
from spiketriage.nouns.incident import Finding, StepResult
from spiketriage.nouns.listing import counted
from spiketriage.runbook.bench import Bench, ask, new_rows, open_bench, require_replayable
from spiketriage.runbook.outlook import Typed

# A window of more steps would take longer than anybody waits for; --last chooses a part of it.
MAX_WINDOW_STEPS = 200


def run(
    run_folder: Path,
    *,
    incidents: Path | None,
    incident: str | None,
    argv: Sequence[str],
    repeats: int | None = None,
    last: int | None = None,
    trust: bool = False,
) -> StepResult:
    """Replay from known good to just behind the suspect step.

    `trust` says that the code of the run may be imported.

    Raises:
        RefusedError: nothing is frozen, or there is no known-good generation.
        NotTrustedError: the code of the run may not be imported.
        TrialError: the workers failed; their log is named.
    """
    typed = Typed(run_folder=run_folder, incidents=incidents, incident=incident, trust=trust)
    bench = open_bench(typed)
    require_replayable(bench)
    _check_window(bench, last)
    with bench.incident.session(argv) as session:
        bench.keep_plan(session)
        answers = _answers(session, bench, repeats, last)
        findings = replay_findings(bench.setting, answers)
        finding = findings[0]
        session.trials(new_rows(answers))
        session.findings(findings)
        session.exit_code = Exit.INCONCLUSIVE if finding.outcome == "not testable" else Exit.DONE
    following = after_replay(
        is_reproduced=finding.outcome == "agrees", has_spiked=bench.setting.spiked
    )
    return StepResult(
        incident=bench.incident.id,
        exit_code=session.exit_code,
        verdict=finding.outcome,
        lines=(*_lines(findings), _cost(answers)),
        data={
            "outcome": finding.outcome,
            "where": asdict(finding.where),
            "num_replays": len(answers),
            "steps_executed": num_steps_executed(answers),
        },
        next_commands=(bench.command(following),),
    )


def _answers(session: Session, bench: Bench, repeats: int | None, last: int | None) -> list[Answer]:
    """One replay, and more only when it differs from production."""
    first = bench.setting.replay(last=last)
    say(
        f"replay: {first.num_steps} steps from {bench.setting.known_good} on "
        f"{bench.site.num_processes} ranks"
    )
    answers = [ask(session, bench, [first])[first.key]]
    if not repeats and first_difference(bench.setting, answers[0]) is not None:
        repeats = NUM_REPLAYS
    more = [replace(first, repeat=number) for number in range(1, repeats or 1)]
    if more:
        say(f"replay: {len(more)} more, to compare replays with each other")
        by_key = ask(session, bench, more)
        answers += [by_key[trial.key] for trial in more]
    return answers


def _check_window(bench: Bench, last: int | None) -> None:
    """Refuse a `--last` before the window begins, or behind what was recorded.

    Raises:
        UsageError: the window would be empty or too long.
    """
    first, end = bench.setting.known_good_step + 1, last or bench.setting.last_step
    highest = min(first + MAX_WINDOW_STEPS - 1, max(bench.setting.ids))
    if not first <= end <= highest:
        raise UsageError(f"--last {end}: expected a step from {first} to {highest}")


def _lines(findings: Sequence[Finding]) -> list[str]:
    """The replay's finding with what was seen, then what is said of the replays themselves."""
    replayed, *others = findings
    lines = [f"replay {replayed.outcome}: {replayed.summary}"]
    if replayed.seen:
        lines.append(f"  {replayed.seen}")
    return lines + [f"{other.name} {other.outcome}: {other.summary}" for other in others]


def _cost(answers: Sequence[Answer]) -> str:
    line = f"{counted(len(answers), 'replay')}, {num_steps_executed(answers)} steps executed"
    if num_cached(answers):
        line += f", {num_cached(answers)} cached"
    return line
