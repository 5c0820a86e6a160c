"""What every emitter of findings declares, in one mapping, and findings that bear those roles.

It never lists a finding by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spiketriage.diagnosis import replaying
from spiketriage.diagnosis.causes import CAUSES
from spiketriage.diagnosis.checks import CHECKS
from spiketriage.diagnosis.experiments import EXPERIMENTS
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission, Emissions
from spiketriage.evidence import hash_findings
from spiketriage.nouns.incident import Finding, Where

BY_HAND = tuple(name for cause in CAUSES for name in cause.by_hand)


def emitters() -> Iterator[Emissions]:
    """The declarations of every check, every experiment, replay and hash."""
    yield from (check.EMITS for check in CHECKS)
    yield from (experiment.emits for experiment in EXPERIMENTS)
    yield replaying.EMITS
    yield hash_findings.EMITS


EMITTED: dict[str, Emission] = {}
for emits in emitters():
    EMITTED.update(emits)


def finding(name: str, outcome: str = "agrees", **parts: Any) -> Finding:
    """A finding as its emitter would stamp it; a cell that a person fills tests the causes."""
    emission = EMITTED.get(name, Emission(role=TESTS_CAUSES))
    parts = {"where": Where(step=7), "summary": name, **parts}
    return Finding(
        name=name,
        outcome=outcome,  # type: ignore[arg-type]
        role=emission.role,
        dates_onset=emission.dates_onset,
        **parts,
    )
