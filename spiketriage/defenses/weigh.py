"""What speaks of a run's stabilizers goes in, the state of each comes out, in bring-up order.

This module never guesses: what nothing speaks of is unknown, and each state names what it rests
on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spiketriage.train.stabilizers import STABILIZERS, Stabilizer

# What one piece of evidence says. never: off, whatever other keys say. unneeded: there is nothing
# to stabilize. hint: an amount that acts only if a flag elsewhere is on.
Mark = Literal["on", "off", "never", "unneeded", "hint"]
Status = Literal["on", "off", "unknown"]
# Strongest first: what the run shows beats what it wrote down, which beats a configuration, which
# beats source code.
Layer = Literal["seen", "recorded", "config", "source"]
LAYERS: tuple[Layer, ...] = ("seen", "recorded", "config", "source")
# Stabilizers whose keys all mean one thing: if two keys disagree, nobody knows which one acts.
ONE_MEANING = ("global-clip",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One thing that speaks of a stabilizer: what it says, how strongly, and where it stands."""

    stabilizer: str
    mark: Mark
    layer: Layer
    text: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StabilizerState:
    """The state of one stabilizer; `is_needed` is False where there is nothing to stabilize.

    `because` holds what decides, first of all; where the state is unknown, what speaks without
    deciding.
    """

    stabilizer: Stabilizer
    status: Status
    is_needed: bool = True
    because: tuple[str, ...] = ()


def weigh(evidence: Iterable[Evidence]) -> tuple[StabilizerState, ...]:
    """The state of every stabilizer, in bring-up order."""
    by_name: dict[str, list[Evidence]] = {}
    for item in evidence:
        by_name.setdefault(item.stabilizer, []).append(item)
    return tuple(_weigh(member, by_name.get(member.name, [])) for member in STABILIZERS)


def _weigh(stabilizer: Stabilizer, evidence: Sequence[Evidence]) -> StabilizerState:
    """What the strongest layer that decides says, and what weaker layers say against it."""
    states = []
    for layer in LAYERS:
        states.append(_of_layer(stabilizer, [item for item in evidence if item.layer == layer]))
    decided = [state for state in states if state.status != "unknown"]
    if not decided:
        hints: list[str] = []
        for state in states:
            hints.extend(state.because)
        return StabilizerState(stabilizer=stabilizer, status="unknown", because=tuple(hints))
    strongest, *weaker = decided
    if strongest.status == "off":
        for state in decided:
            if not state.is_needed:  # seen to be off, and a weaker source says why
                return state
    against = []
    for state in weaker:
        if state.status != strongest.status and state.because:
            against.append(f"but {state.because[0]}")
    return replace(strongest, because=(*strongest.because, *against))


def _of_layer(stabilizer: Stabilizer, evidence: Sequence[Evidence]) -> StabilizerState:
    """What one layer says alone."""
    marks = {item.mark for item in evidence}

    def state(status: Status, *deciding: Mark, is_needed: bool = True) -> StabilizerState:
        because = _because([item for item in evidence if item.mark in deciding])
        return StabilizerState(
            stabilizer=stabilizer, status=status, is_needed=is_needed, because=because
        )

    if "never" in marks:
        return state("off", "never")
    if {"on", "off"} <= marks and stabilizer.name in ONE_MEANING:
        return state("unknown", "on", "off")
    if "on" in marks:
        return state("on", "on")
    if "unneeded" in marks:
        return state("off", "unneeded", is_needed=False)
    if "off" in marks:
        return state("off", "off")
    return state("unknown", "hint")


def _because(evidence: Sequence[Evidence]) -> tuple[str, ...]:
    """The texts, each once, with every place that says so."""
    places: dict[str, list[str]] = {}
    for item in evidence:
        where = places.setdefault(item.text, [])
        if item.where not in where:
            where.append(item.where)
    return tuple(f"{text} ({'; '.join(where)})" for text, where in places.items())
