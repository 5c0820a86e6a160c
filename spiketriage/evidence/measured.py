"""What an incident keeps of a generation's facts, and the JSON in which a child process tells it.

This module never reads a generation: where one lies, and its manifest, the evidence knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from spiketriage.nouns.checkpoint import GenerationFacts, Manifest, MeasuredGeneration

KEPT = tuple(field.name for field in fields(MeasuredGeneration))


def kept(facts: GenerationFacts) -> MeasuredGeneration:
    """The facts without their place and without the manifest."""
    return MeasuredGeneration(**{name: getattr(facts, name) for name in KEPT})


def placed(measured: MeasuredGeneration, path: Path, manifest: Manifest | None) -> GenerationFacts:
    """The facts of a generation that lies at `path` and was frozen with `manifest`."""
    values = {name: getattr(measured, name) for name in KEPT}
    return GenerationFacts(path=path, manifest=manifest, **values)


def to_json(measured: MeasuredGeneration) -> dict[str, Any]:
    """The JSON object of a measurement."""
    values = {}
    for name in KEPT:
        value = getattr(measured, name)
        values[name] = dict(value) if isinstance(value, Mapping) else value
    return values


def from_json(values: Mapping[str, Any]) -> MeasuredGeneration:
    """The measurement that `to_json` made an object of, after it went through JSON."""
    restored: dict[str, Any] = {}
    for name in KEPT:
        value = values[name]
        restored[name] = tuple(value) if isinstance(value, list) else value
    return MeasuredGeneration(**restored)
