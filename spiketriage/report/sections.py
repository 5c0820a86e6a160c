"""Sections and cells that several parts of the report make alike.

This module only puts words into the render model; it never decides what a section says.
"""

from __future__ import annotations

from spiketriage.nouns.incident import Dossier
from spiketriage.report import commands, words
from spiketriage.report.model import Missing, Section


def missing(dossier: Dossier, what: str, step: str) -> Missing:
    """What is not there, and the step of the runbook that brings it."""
    return Missing(what=what, command=commands.command(dossier, step))


def unfilled(dossier: Dossier, *, key: str, title: str, what: str, step: str) -> Section:
    """A section with nothing to show yet, and the step of the runbook that fills it."""
    return Section(key=key, title=title, missing=missing(dossier, what, step))


def cell(text: str, if_empty: str = "–") -> str:
    """Foreign text for a cell; a dash, or other words, when there is none."""
    return words.plain(text) or if_empty


def suspect_step(dossier: Dossier) -> int | None:
    """The step that experiments use, where one is known."""
    if dossier.anchors is None:
        return None
    return dossier.anchors.suspect


def known_good_step(dossier: Dossier) -> int | None:
    """The step of the generation that replays start from, where one is known."""
    if dossier.anchors is None:
        return None
    return words.generation_step(dossier.anchors.known_good)
