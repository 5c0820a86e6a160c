"""What was measured of one generation, as the collecting child tells it and an incident's fact keeps it.

This module never reads a generation and never judges one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from spiketriage.records import NATIVE, GenerationFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The fields of `GenerationFacts` that need no path and no manifest; `verified` says that every byte was read."""

    name: str
    step: int | None
    complete: bool
    verified: bool
    file_digests: Mapping[str, str]
    nonfinite: tuple[str, ...]
    problems: tuple[str, ...]
    layout: str = NATIVE
    stated_steps: Mapping[str, int] = field(default_factory=dict)
    world_size: int | None = None
    interrupted: str = ""
    odd: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def measured(facts: GenerationFacts, *, verified: bool) -> Measured:
    """The part of a generation's facts that is kept."""
    return Measured(
        name=facts.name,
        step=facts.step,
        complete=facts.complete,
        verified=verified,
        file_digests=dict(facts.file_digests),
        nonfinite=facts.nonfinite,
        problems=facts.problems,
        layout=facts.layout,
        stated_steps=dict(facts.stated_steps),
        world_size=facts.world_size,
        interrupted=facts.interrupted,
        odd=facts.odd,
        notes=facts.notes,
    )


def to_json(one: Measured) -> dict[str, Any]:
    """The JSON object of a measurement, without its name."""
    value = asdict(one)
    del value["name"]
    return value


def from_json(name: str, value: Mapping[str, Any]) -> Measured:
    """A measurement from its JSON object.

    Raises:
        KeyError, TypeError: the object is not one.
    """
    fields: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
    return Measured(name=name, **fields)
