"""What a finding may do to a verdict, declared beside its name by whoever emits it.

The judge reads the role from the finding; it never decides by a list of names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from spiketriage.nouns.incident import Finding, Role

# Every cause has to live with it: one that does not predict it leaves it unexplained.
TESTS_CAUSES: Final = "tests causes"
# It says something about the causes that mention it, and about the others and the run nothing:
# what one changed factor did to the spike, how replays relate to each other.
TESTS_MENTIONED: Final = "tests the causes that mention it"
# It speaks against the run and about no cause in particular.
AGAINST_THE_RUN: Final = "against the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """What a check, an experiment, a replay or a hash declares of one finding that it emits.

    `dates_onset` says whether the step of the finding may become the onset of the incident.
    """

    role: Role
    dates_onset: bool = False


Emissions = Mapping[str, Emission]


def stamp(findings: Iterable[Finding], emits: Emissions) -> tuple[Finding, ...]:
    """`findings` with the role that their emitter declared for each name."""
    return tuple(_stamped(finding, emits) for finding in findings)


def _stamped(finding: Finding, emits: Emissions) -> Finding:
    assert finding.name in emits, f"{finding.name} is emitted and not declared in EMITS"
    emission = emits[finding.name]
    return replace(finding, role=emission.role, dates_onset=emission.dates_onset)
