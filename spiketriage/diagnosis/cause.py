"""The shape of a cause: what it predicts for every check and experiment, as data.

A cause holds no code path: the judge compares its predictions with the findings and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spiketriage.diagnosis.role import TESTS_CAUSES
from spiketriage.nouns.incident import CauseClass, Role, VerdictKind

ANY = ("agrees", "differs", "nonfinite")

# A fault that happened once: replays agree with each other bit for bit, and do not spike as
# production did.
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
    "later-window": ANY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One root cause.

    `predicts` maps a finding's name to the outcomes that this cause allows: an outcome,
    `outcome@<stage or field>`, or `outcome@<stage>#1` for one rank alone. `predicts_on_spike`
    replaces that where something spiked, which the cause must then explain. `decides` are the cells
    that must be tested before the cause may be named, `decides_on_spike` those that count only when
    something spiked, and `by_hand` those of them that only a person can fill; a deciding cell of
    which nothing is predicted must agree. `located_by` are findings whose place is the cause's
    place, best first. `needs_spike` is set where silence excludes the cause; `verdict` for causes
    that are no fault.
    """

    name: str
    cause_class: CauseClass
    summary: str
    predicts: Mapping[str, tuple[str, ...]]
    predicts_on_spike: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    decides: tuple[str, ...]
    decides_on_spike: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()
    located_by: tuple[str, ...] = ()
    needs_spike: bool = False
    repair: str
    verdict: VerdictKind | None = None

    def deciding(self, *, spiked: bool) -> tuple[str, ...]:
        """Cells that must be tested before this cause may be named."""
        if spiked:
            return (*self.decides, *self.decides_on_spike, *self.by_hand)
        return self.decides

    def predicted(self, finding: str, *, spiked: bool) -> tuple[str, ...] | None:
        """Outcomes that this cause allows for `finding`; None where it says nothing of it."""
        if spiked and finding in self.predicts_on_spike:
            return self.predicts_on_spike[finding]
        if finding in self.predicts:
            return self.predicts[finding]
        if finding in self.deciding(spiked=spiked):
            return ("agrees",)
        return None

    def allows(self, finding: str, role: Role, *, spiked: bool) -> tuple[str, ...]:
        """Outcomes of a finding of this role that this cause can live with."""
        expected = self.predicted(finding, spiked=spiked)
        if expected is not None:
            return expected
        if role == TESTS_CAUSES:
            return ("agrees",)
        return ANY
