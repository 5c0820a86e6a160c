"""`spiketriage defenses`: the bring-up list of a run, a configuration or a harness.

What is on or off, at what cost.

This module needs no incident, writes nothing, and never imports or runs what it reads.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from spiketriage.defenses.calls import import_line
from spiketriage.defenses.sources import Told, sources_of
from spiketriage.defenses.weigh import Defense, judged
from spiketriage.nouns.incident import StepResult

NOTHING_SPEAKS = 5  # the exit code when every verdict is unknown
MAX_REASONS = 3
STATES = ("on", "off", "not needed", "unknown")


def run(target: str, *, switches: Sequence[str], built_in: Sequence[str]) -> StepResult:
    """Judge every stabilizer for `target`.

    Run folder, checkpoint, configuration file, or `package.module:factory`.

    `switches` are those that `spiketriage rehearse` can turn on by name, `built_in` those that it
    always has.

    Raises:
        EvidenceError: the target is missing, or is not what it says. RefusedError: YAML, or no
        source of the module.
    """
    told = sources_of(target, switches)
    verdicts = judged(told.evidence)
    known = [one for one in verdicts if one.status != "unknown"]
    return StepResult(
        incident="",
        exit_code=0 if known else NOTHING_SPEAKS,
        verdict=_count(verdicts) if known else "unknown",
        lines=tuple(_lines(target, told, verdicts, switches, built_in)),
        data=_data(target, told, verdicts, switches, built_in),
        next_commands=tuple(_next(verdicts, switches)),
    )


def _lines(
    target: str,
    told: Told,
    verdicts: Sequence[Defense],
    switches: Sequence[str],
    built_in: Sequence[str],
) -> list[str]:
    lines = [
        f"{target}: read {', '.join(told.read) or 'nothing'}",
        *(f"not read: {note}" for note in told.notes),
        "",
    ]
    width = max(len(one.stabilizer.name) for one in verdicts)
    for number, one in enumerate(verdicts, start=1):
        first, *more = [*one.because[:MAX_REASONS], *_left(one)] or [
            "nothing that was read speaks of it"
        ]
        lines.append(f"{number:>2}  {_state(one):<10}  {one.stabilizer.name:<{width}}  {first}")
        lines += [f"{'':{width + 18}}{text}" for text in more]
        lines += [f"    {label:<8}  {text}" for label, text in _about(one, switches, built_in)]
    return [*lines, "", *_summary(verdicts)]


def _left(one: Defense) -> list[str]:
    left = len(one.because) - MAX_REASONS
    if left > 0:
        return [f"… and {left} more"]
    return []


def _about(one: Defense, switches: Sequence[str], built_in: Sequence[str]) -> list[tuple[str, str]]:
    """Label and text of each line below a defence: more of them where there is something to do."""
    about = [("removes", one.stabilizer.removes), ("costs", one.stabilizer.cost)]
    if one.status == "on":
        return about
    about.append(("when", one.stabilizer.when))
    if not one.is_needed:
        return about
    name = one.stabilizer.name
    return [*about, ("import", import_line(name)), ("rehearse", _how(name, switches, built_in))]


def _how(name: str, switches: Sequence[str], built_in: Sequence[str]) -> str:
    if name in switches:
        return _command(name)
    if name in built_in:
        return "always on there"
    return "not there"


def _summary(verdicts: Sequence[Defense]) -> list[str]:
    """The names by state, last of all.

    What is still on the screen when the list has scrolled by.
    """
    states = {
        state: [one.stabilizer.name for one in verdicts if _state(one) == state] for state in STATES
    }
    return [f"{state + ':':<12} {', '.join(names)}" for state, names in states.items() if names]


def _command(name: str) -> str:
    return shlex.join(
        [
            "spiketriage",
            "rehearse",
            "--fault",
            "healthy",
            "--stabilizer",
            name,
            "--out",
            f"run-with-{name}",
        ]
    )


def _state(one: Defense) -> str:
    if one.is_needed:
        return one.status
    return "not needed"


def _count(verdicts: Sequence[Defense]) -> str:
    states = [_state(one) for one in verdicts]
    return ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)


def _next(verdicts: Sequence[Defense], switches: Sequence[str]) -> list[str]:
    """The first defence that is off and that `rehearse` can show."""
    missing = [one.stabilizer.name for one in verdicts if one.status == "off" and one.is_needed]
    return [_command(name) for name in missing if name in switches][:1]


def _data(
    target: str,
    told: Told,
    verdicts: Sequence[Defense],
    switches: Sequence[str],
    built_in: Sequence[str],
) -> dict[str, Any]:
    return {
        "target": target,
        "read": list(told.read),
        "not_read": list(told.notes),
        "defenses": [
            {
                "name": one.stabilizer.name,
                "status": one.status,
                "needed": one.is_needed,
                "because": list(one.because),
                "removes": one.stabilizer.removes,
                "cost": one.stabilizer.cost,
                "when": one.stabilizer.when,
                "import": import_line(one.stabilizer.name),
                "rehearse": "option"
                if one.stabilizer.name in switches
                else "always"
                if one.stabilizer.name in built_in
                else "no",
            }
            for one in verdicts
        ],
    }
