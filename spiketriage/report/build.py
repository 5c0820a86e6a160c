"""Dossier in, render model out: the order of the sections is decided here and nowhere else.

It never reads a file or a clock, so that the same incident gives the same report.
"""

from __future__ import annotations

from spiketriage.nouns.incident import Dossier
from spiketriage.report import (
    argument,
    banner,
    commands,
    curves,
    findings,
    kept,
    story,
    words,
)
from spiketriage.report.model import Report

SECTIONS = (
    story.impact,
    curves.section,
    story.detection,
    findings.agreement,
    findings.findings,
    findings.experiments,
    argument.causes,
    argument.argument,
    argument.untested,
    kept.known_good,
    kept.evidence,
    story.timeline,
    story.lessons,
    kept.appendix,
)


def build(dossier: Dossier) -> Report:
    """Report of an incident, ready to be written in any medium."""
    rows = commands.told(dossier.journal)
    run = dossier.facts.get("run_id") or dossier.facts.get("run") or "not recorded"
    return Report(
        incident=words.plain(dossier.incident),
        run=words.plain(run),
        status="draft" if dossier.verdict is None else "in review",
        version=words.plain(rows[-1].version) if rows else "not recorded",
        chain_head=words.plain(commands.chain_head(dossier.journal)),
        banner=banner.build(dossier),
        sections=tuple(section(dossier) for section in SECTIONS),
    )
