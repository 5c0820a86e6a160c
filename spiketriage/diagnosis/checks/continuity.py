"""Check: the weights before a step are, bit for bit, those that the step before left behind.

It is exact in every mode, also in nondeterministic runs; it never compares ranks and never crosses
a load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.view import View, broken_since_load, broken_tensors, stage_digests
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted
from spiketriage.nouns.telemetry import LoadRecord, StepRecord

NAME = "continuity"
EMITS = {NAME: Emission(role=TESTS_CAUSES, dates_onset=True)}
ONE_TENSOR, SEVERAL_TENSORS = "one tensor", "several tensors"  # a flipped bit changes one


@dataclass(frozen=True, slots=True, kw_only=True)
class _Break:
    record: StepRecord
    tensor: str
    num_tensors: int
    expected: str


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first step, tensor and rank whose weights are not those left behind."""
    breaks: list[_Break] = []
    num_compared = 0
    for rank in view.telemetry.ranks:
        for earlier, later in _pairs(view, rank):
            num_compared += bool(
                _left_by(earlier).keys() & stage_digests(later, "params_before").keys()
            )
            broken = _break_between(earlier, later)
            if broken:
                breaks.append(broken)
    if breaks:
        return (_differs(sorted(breaks, key=lambda item: (item.record.step, item.record.rank))),)
    if not num_compared:
        return (untestable(NAME, "no two consecutive steps recorded digests of the weights"),)
    steps = counted(num_compared, "transition")
    return (agrees(NAME, f"in {steps} between steps every rank kept its weights bit for bit"),)


def _pairs(view: View, rank: int) -> Iterator[tuple[StepRecord | LoadRecord, StepRecord]]:
    """Each step that digested its weights, after the step or load of the same attempt before it."""
    loads = {(load.attempt, load.step): load for load in view.telemetry.loads if load.rank == rank}
    previous: StepRecord | None = None
    for record in view.telemetry.lineage(rank):
        load = loads.get((record.attempt, record.step - 1))
        if stage_digests(record, "params_before"):
            if load is not None:
                yield load, record
            elif previous and (previous.attempt, previous.step + 1) == (
                record.attempt,
                record.step,
            ):
                yield previous, record
        previous = record


def _break_between(earlier: StepRecord | LoadRecord, later: StepRecord) -> _Break | None:
    if isinstance(earlier, LoadRecord):
        broken = broken_since_load(earlier, later)
    else:
        broken = broken_tensors(earlier, later)
    if not broken:
        return None
    expected = _left_by(earlier)[broken[0]]
    return _Break(record=later, tensor=broken[0], num_tensors=len(broken), expected=expected)


def _left_by(earlier: StepRecord | LoadRecord) -> dict[str, str]:
    """Hex digest of each tensor that a step or a load left behind."""
    if isinstance(earlier, LoadRecord):
        return dict(earlier.tensors.get("params", {}))
    return {key: digest.hex() for key, digest in stage_digests(earlier, "params_after").items()}


def _differs(breaks: list[_Break]) -> Finding:
    first = breaks[0]
    step, rank = first.record.step, first.record.rank
    if first.num_tensors > 1:
        others = f" (and {first.num_tensors - 1} other tensors)"
    else:
        others = ""
    if len(breaks) > 1:
        again = f"; it happened {len(breaks)} times in all"
    else:
        again = ""
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"rank {rank}: {first.tensor}{others} changed in memory between the end of step "
        f"{step - 1} "
        f"and the start of step {step}, with no optimizer step in between{again}",
        where=Where(
            step=step,
            stage="params_before",
            key=first.tensor,
            rank=rank,
            field=ONE_TENSOR if first.num_tensors == 1 else SEVERAL_TENSORS,
        ),
        expected=f"as step {step - 1} left it: {first.expected}",
        seen=stage_digests(first.record, "params_before")[first.tensor].hex(),
        magnitude=float(first.num_tensors),
    )
