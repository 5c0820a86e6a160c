"""Check: no link of the chain holds a NaN or an infinity, at any step, on any rank.

It names the first such link in chain order and never looks at metrics: those can be wrong on their
own.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted
from spiketriage.nouns.telemetry import Link, StepRecord
from spiketriage.wire.chain import position

NAME = "finiteness"
EMITS = {NAME: Emission(role=TESTS_CAUSES, dates_onset=True)}


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first nonfinite link of the run."""
    history = view.history()
    bad: list[int] = []
    num_steps = 0
    for step, records in history.items():
        if any(record.nonfinite for record in records.values()):
            bad.append(step)
        num_steps += any(record.digests for record in records.values())
    if bad:
        step = min(bad)
        return (_nonfinite(step, history[step], len(bad)),)
    if not num_steps:
        return (untestable(NAME, "no step recorded a link of the chain"),)
    return (agrees(NAME, f"every recorded link of {counted(num_steps, 'step')} is finite"),)


def _nonfinite(step: int, records: Mapping[int, StepRecord], num_steps: int) -> Finding:
    link = _first_link(records)
    ranks = sorted(rank for rank, record in records.items() if link in record.nonfinite)
    others = ""
    if len(ranks) > 1:
        others = f", on {len(ranks)} of {len(records)} ranks"
    return Finding(
        name=NAME,
        outcome="nonfinite",
        summary=f"step {step}: the first NaN or infinity of the run stands in {link.stage} "
        f"{link.key} on rank {ranks[0]}{others} ({counted(num_steps, 'step')} nonfinite in all)",
        where=Where(step=step, stage=link.stage, key=link.key, rank=ranks[0]),
        expected="finite",
        seen=f"{sum(len(r.nonfinite) for r in records.values())} nonfinite links at this step",
        magnitude=float(num_steps),
    )


def _first_link(records: Mapping[int, StepRecord]) -> Link:
    """The earliest stage over all ranks, and in it what the lowest rank listed first."""
    listed = []
    for rank, r in records.items():
        for at, link in enumerate(r.nonfinite):
            listed.append((position(link.stage), rank, at, link))
    return min(listed)[3]
