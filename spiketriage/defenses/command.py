"""`spiketriage defenses`: which stabilizers a run, a configuration or a harness has.

This module needs no incident, writes nothing, and never imports or runs what it reads.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from spiketriage.defenses.calls import import_line
from spiketriage.defenses.sources import Reading, read_target
from spiketriage.defenses.weigh import StabilizerState, weigh
from spiketriage.errors import Exit
from spiketriage.nouns.incident import StepResult

MAX_REASONS = 3
STATES = ("on", "off", "not needed", "unknown")


def run(target: str, *, selectable: Sequence[str], built_in: Sequence[str]) -> StepResult:
    """Say of every stabilizer whether `target` has it.

    A target is a run folder, a checkpoint, a configuration file, or `package.module:factory`.
    `selectable` are the stabilizers that `spiketriage rehearse` can turn on by name, `built_in`
    those that it always has.

    Raises:
        EvidenceError: the target is missing, or is not what it says.
        RefusedError: it is YAML, or the source of the module is not there.
    """
    reading = read_target(target, selectable)
    states = weigh(reading.evidence)
    data = {
        "target": target,
        "read": list(reading.read),
        "not_read": list(reading.notes),
        "defenses": [_row(state, selectable, built_in) for state in states],
    }
    exit_code, verdict = Exit.DONE, _counts(states)
    if all(state.status == "unknown" for state in states):
        exit_code, verdict = Exit.INCONCLUSIVE, "unknown"
    return StepResult(
        incident="",
        exit_code=exit_code,
        verdict=verdict,
        lines=tuple(_lines(target, reading, states, selectable, built_in)),
        data=data,
        next_commands=tuple(_next(states, selectable)),
    )


def _lines(
    target: str,
    reading: Reading,
    states: Sequence[StabilizerState],
    selectable: Sequence[str],
    built_in: Sequence[str],
) -> list[str]:
    lines = [f"{target}: read {', '.join(reading.read) or 'nothing'}"]
    lines += [f"not read: {note}" for note in reading.notes]
    lines.append("")
    width = max(len(state.stabilizer.name) for state in states)
    indent = " " * (width + 18)
    for number, state in enumerate(states, start=1):
        first, *more = _reasons(state)
        word = _word(state)
        lines.append(f"{number:>2}  {word:<10}  {state.stabilizer.name:<{width}}  {first}")
        lines += [f"{indent}{text}" for text in more]
        for label, text in _about(state, selectable, built_in):
            lines.append(f"    {label:<8}  {text}")
    return [*lines, "", *_summary(states)]


def _reasons(state: StabilizerState) -> list[str]:
    """What the state rests on, a few of many."""
    if not state.because:
        return [state.stabilizer.unseen or "nothing that was read speaks of it"]
    reasons = list(state.because[:MAX_REASONS])
    num_left = len(state.because) - MAX_REASONS
    if num_left > 0:
        reasons.append(f"… and {num_left} more")
    return reasons


def _about(
    state: StabilizerState, selectable: Sequence[str], built_in: Sequence[str]
) -> list[tuple[str, str]]:
    """Label and text of each line below a stabilizer: more where there is something to do."""
    stabilizer = state.stabilizer
    about = [("removes", stabilizer.removes), ("costs", stabilizer.cost)]
    if state.status == "on":
        return about
    about.append(("when", stabilizer.when))
    if state.is_needed:
        about.append(("import", import_line(stabilizer.name)))
        about.append(("rehearse", _how(stabilizer.name, selectable, built_in)))
    return about


def _how(name: str, selectable: Sequence[str], built_in: Sequence[str]) -> str:
    if name in selectable:
        return _command(name)
    if name in built_in:
        return "always on there"
    return "not there"


def _summary(states: Sequence[StabilizerState]) -> list[str]:
    """The names by state, last of all: still on the screen when the list has scrolled by."""
    lines = []
    for word in STATES:
        names = [state.stabilizer.name for state in states if _word(state) == word]
        if names:
            lines.append(f"{word + ':':<12} {', '.join(names)}")
    return lines


def _command(name: str) -> str:
    rehearse = ["spiketriage", "rehearse", "--fault", "healthy"]
    return shlex.join([*rehearse, "--stabilizer", name, "--out", f"run-with-{name}"])


def _word(state: StabilizerState) -> str:
    if state.is_needed:
        return state.status
    return "not needed"


def _counts(states: Sequence[StabilizerState]) -> str:
    words = list(map(_word, states))
    return ", ".join(f"{words.count(word)} {word}" for word in STATES if word in words)


def _next(states: Sequence[StabilizerState], selectable: Sequence[str]) -> list[str]:
    """Try the first stabilizer that is off and that `rehearse` can show."""
    for state in states:
        if state.status == "off" and state.is_needed and state.stabilizer.name in selectable:
            return [_command(state.stabilizer.name)]
    return []


def _row(
    state: StabilizerState, selectable: Sequence[str], built_in: Sequence[str]
) -> dict[str, Any]:
    stabilizer = state.stabilizer
    rehearse = "no"
    if stabilizer.name in selectable:
        rehearse = "option"
    elif stabilizer.name in built_in:
        rehearse = "always"
    return {
        "name": stabilizer.name,
        "status": state.status,
        "needed": state.is_needed,
        "because": list(state.because),
        "removes": stabilizer.removes,
        "cost": stabilizer.cost,
        "when": stabilizer.when,
        "import": import_line(stabilizer.name),
        "rehearse": rehearse,
    }
