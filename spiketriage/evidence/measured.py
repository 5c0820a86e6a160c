"""A generation's facts as the collecting child tells them and an incident's fact keeps them.

This module never reads a generation; where one lies, and its manifest, are told by the evidence
around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from spiketriage.nouns.checkpoint import GenerationFacts

_NOT_KEPT = ("name", "path", "manifest")
KEPT = tuple(field.name for field in fields(GenerationFacts) if field.name not in _NOT_KEPT)


def to_json(facts: GenerationFacts) -> dict[str, Any]:
    """The JSON object of a generation's facts, without name, path and manifest."""
    values = {name: getattr(facts, name) for name in KEPT}
    return {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()
    }


def from_json(name: str, value: Mapping[str, Any]) -> GenerationFacts:
    """The facts of the generation `name`; its path is its name until somebody places it.

    Raises:
        KeyError, TypeError: the object is not one.
    """
    kept: dict[str, Any] = {
        field: tuple(item) if isinstance(item := value[field], list) else item for field in KEPT
    }
    return GenerationFacts(name=name, path=Path(name), manifest=None, **kept)
