"""The report as strict JSON: the dossier in full, with the banner and what each section lacks.

A nonfinite number becomes a string; it never writes a bare token that parsers reject or turn into
null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any

from spiketriage.nouns.incident import Dossier
from spiketriage.report import commands
from spiketriage.report.model import Report

SCHEMA = "spiketriage.report/1"


def render(dossier: Dossier, report: Report) -> str:
    """Whole report as text."""
    journal = []
    for row in commands.told(dossier.journal):
        shown = plain(row)
        del shown["who"]  # a report names no people
        journal.append(shown)
    sections = []
    for section in report.sections:
        sections.append(
            {
                "key": section.key,
                "title": section.title,
                "missing": plain(section.missing),
                "paragraphs": plain(section.paragraphs),
            }
        )
    document = {
        "schema": SCHEMA,
        "incident": dossier.incident,
        "status": report.status,
        "chain_head": commands.chain_head(dossier.journal),
        "banner": plain(report.banner),
        "sections": sections,
        "facts": plain(dossier.facts),
        "anchors": plain(dossier.anchors),
        "artifacts": plain(dossier.artifacts),
        "findings": plain(dossier.findings),
        "trials": plain(dossier.trials),
        "steps": plain(dossier.steps),
        "verdict": plain(dossier.verdict),
        "journal": journal,
    }
    return json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n"


def plain(value: object) -> Any:
    """`value` as JSON types only; NaN and infinities become the strings `NaN`, `Inf` and `-Inf`."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, PurePath):
        return str(value)
    return value


def _number(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        if value > 0:
            return "Inf"
        return "-Inf"
    return float(value)
