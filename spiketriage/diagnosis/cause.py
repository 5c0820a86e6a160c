"""The shape of a cause: what it predicts for every check and experiment, as data.

A cause holds no code path: the judge compares its predictions with the findings and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spiketriage.nouns.incident import CauseClass, VerdictKind

ANY = ("agrees", "differs", "nonfinite")

# Findings that speak only to the causes that mention them: what one changed factor did to the
# spike, how replays relate to each other.
NEUTRAL = (
    "replay-spike",
    "replay-determinism",
    "later-window",
    "loader-heals",
    "code-heals",
    "kernel-heals",
    "precision-heals",
)

# Findings that speak against the run and about no cause in particular: no cause is contradicted by
# them, and none is supported.
ASIDE = (
    "stored-finiteness",
    "stored-steps",
    "stored-values",
    "series-trust",
    "system-events",
    "collectives",
)

# Cells that only a person can fill, so that a cause which needs one is never more than a candidate.
HUMAN = ("index-restored",)

# A fault that happened once: replays agree with each other bit for bit, and what spiked in
# production does not in them.
ONCE: dict[str, tuple[str, ...]] = {"replay-spike": ("agrees",), "replay-determinism": ("agrees",)}

# What a fault of state, machine or restart leaves open: batches may or may not look odd on top of
# it.
BATCH_CELLS_OPEN: dict[str, tuple[str, ...]] = {
    "suspect-batch/suspect-state": ANY,
    "clean-batch/suspect-state": ANY,
    "suspect-batch/older-state": ANY,
    "skip-batch": ANY,
}

# A batch that is bad on every state: the two cells of the 2×2 that hold it.
BATCH_FOLLOWS: dict[str, tuple[str, ...]] = {
    "suspect-batch/suspect-state": ("differs", "nonfinite"),
    "suspect-batch/older-state": ("differs", "nonfinite"),
}

# Once one rank has left the others, everything after it differs too.
RANKS_APART: dict[str, tuple[str, ...]] = {
    "ranks-counters": ANY,
    "ranks-optimizer": ANY,
    "ranks-params-after": ANY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One root cause.

    `predicts` maps a finding's name to the outcomes that this cause allows: an outcome,
    `outcome@<stage or field>`, or `outcome@<stage>#1` for one rank alone; a finding that is not
    named must agree, unless it is in `NEUTRAL` or `ASIDE`. `predicts_on_spike` replaces that where
    something spiked, which the cause must then explain. `decides` are the cells that must be tested
    before the cause may be named, `decides_on_spike` those that count only when something spiked.
    `located_by` are findings whose place is the cause's place, best first. `needs_spike` is set
    where silence excludes the cause; `verdict` for causes that are no fault.
    """

    name: str
    cause_class: CauseClass
    summary: str
    predicts: Mapping[str, tuple[str, ...]]
    predicts_on_spike: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    decides: tuple[str, ...]
    decides_on_spike: tuple[str, ...] = ()
    located_by: tuple[str, ...] = ()
    needs_spike: bool = False
    repair: str
    control: str
    verdict: VerdictKind | None = None

    def allows(self, finding: str, *, spiked: bool) -> tuple[str, ...]:
        """Outcomes that this cause allows for `finding`; a spike may ask for more."""
        default = ANY if finding in NEUTRAL + ASIDE else ("agrees",)
        expected = self.predicts.get(finding, default)
        if spiked:
            return self.predicts_on_spike.get(finding, expected)
        return expected
