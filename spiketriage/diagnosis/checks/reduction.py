"""Check: after the reduction no rank is left with its own contribution alone.

The local gradient is recorded scaled by the global token count, so a skipped reduction leaves equal
digests; this check never says why a reduction was skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spiketriage.diagnosis.findings import agrees, ranks_text, untestable
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.view import View, differing_keys, kept_own_gradient, stage_digests
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted
from spiketriage.nouns.telemetry import StepRecord

NAME = "reduction"
EMITS = {NAME: Emission(role=TESTS_CAUSES, dates_onset=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Skipped:
    step: int
    key: str
    num_keys: int
    num_recorded: int
    ranks: tuple[int, ...]


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first step at which a rank kept its own gradient, apart from the others."""
    history = view.history()
    testable = {step: records for step, records in history.items() if _testable(records)}
    skipped: list[_Skipped] = []
    for step, records in testable.items():
        kept = _skipped(step, records)
        if kept is not None:
            skipped.append(kept)
    if skipped:
        return (_differs(skipped),)
    if not testable:
        return (
            untestable(
                NAME, "no step recorded the gradient before and after the reduction on two ranks"
            ),
        )
    steps = counted(len(testable), "step")
    return (
        agrees(
            NAME, f"at {steps} with both gradients recorded no rank kept its own contribution alone"
        ),
    )


def _testable(records: Mapping[int, StepRecord]) -> bool:
    both = []
    for r in records.values():
        if stage_digests(r, "local_gradient") and stage_digests(r, "reduced_gradient"):
            both.append(r)
    return len(both) > 1


def _skipped(step: int, records: Mapping[int, StepRecord]) -> _Skipped | None:
    differing = differing_keys(records, "reduced_gradient")
    ranks = tuple(
        rank
        for rank, record in sorted(records.items())
        if differing and kept_own_gradient(record, differing)
    )
    if not ranks:
        return None
    recorded = len(stage_digests(records[ranks[0]], "reduced_gradient"))
    return _Skipped(
        step=step, key=differing[0], num_keys=len(differing), num_recorded=recorded, ranks=ranks
    )


def _differs(skipped: list[_Skipped]) -> Finding:
    first = skipped[0]
    share = f"in {first.num_keys} of {first.num_recorded} tensors"
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"step {first.step}: {ranks_text(first.ranks)} went on with its own gradient "
        "instead of the "
        f"sum over all ranks, {share} (at {counted(len(skipped), 'step')} in all)",
        where=Where(step=first.step, stage="reduced_gradient", key=first.key, rank=first.ranks[0]),
        expected="one sum, equal on all ranks",
        seen=f"reduced gradient equal to the local one on {ranks_text(first.ranks)}",
        magnitude=float(len(skipped)),
    )
