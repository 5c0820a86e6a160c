"""Check: data-parallel replicas take the same steps and are equal in every replicated stage.

Only the first difference is a finding, since the rest follows from it; this check never says which
value is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spiketriage.diagnosis.findings import agrees, ranks_text, untestable
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.view import (
    History,
    View,
    broken_since_load,
    broken_tensors,
    differing_keys,
    kept_own_gradient,
    stage_digests,
)
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted, listed
from spiketriage.nouns.telemetry import StepRecord
from spiketriage.wire.chain import position

NAME = "ranks"
COUNTERS = "ranks-counters"
STAGE_OF = {
    "ranks-params-before": "params_before",
    "ranks-reduced-gradient": "reduced_gradient",
    "ranks-optimizer": "optimizer",
    "ranks-params-after": "params_after",
}
EMITS = dict.fromkeys((COUNTERS, *STAGE_OF), Emission(role=TESTS_CAUSES, dates_onset=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    step: int
    stage: str
    keys: tuple[str, ...]
    records: Mapping[int, StepRecord]


def run(view: View) -> tuple[Finding, ...]:
    """Five findings: the counters, then the four replicated stages in chain order."""
    missing = view.telemetry.missing_ranks
    if len(view.telemetry.ranks) < 2:
        if missing:
            reason = f"telemetry of {ranks_text(missing)} is missing"
        else:
            reason = "the run has a single rank"
        return tuple(untestable(name, reason) for name in (COUNTERS, *STAGE_OF))
    history = view.history()
    return (_counters(view, history), *_stages(view, history))


# --- the replicated stages


def _stages(view: View, history: History) -> tuple[Finding, ...]:
    first = _first_difference(history)
    if view.telemetry.missing_ranks:
        note = f" ({ranks_text(view.telemetry.missing_ranks)} left no telemetry)"
    else:
        note = ""
    result: list[Finding] = []
    for name, stage in STAGE_OF.items():
        result.append(_stage(view, history, name, stage, first, note))
    return tuple(result)


def _stage(
    view: View, history: History, name: str, stage: str, first: _Difference | None, note: str
) -> Finding:
    until = first.step if first else None
    num_steps = _num_compared(history, stage, until)
    if first and first.stage == stage:
        return _differs(view, name, first, note)
    if first and position(stage) > position(first.stage):
        reason = f"follows from the difference in {first.stage} at step {first.step}"
        return untestable(name, reason, where=Where(step=first.step, stage=stage))
    if not num_steps:
        return untestable(name, f"no step recorded digests of {stage} on two ranks")
    if until is not None:
        scope = f"up to and including step {until}"
    else:
        scope = f"at all {counted(num_steps, 'step')}"
    return agrees(name, f"{stage} is equal on all ranks {scope}{note}")


def _first_difference(history: History) -> _Difference | None:
    for step, records in history.items():
        for stage in STAGE_OF.values():
            keys = differing_keys(records, stage)
            if keys:
                return _Difference(step=step, stage=stage, keys=keys, records=records)
    return None


def _num_compared(history: History, stage: str, until: int | None) -> int:
    num_compared = 0
    for step, records in history.items():
        if until is not None and step > until:
            continue
        num_ranks = sum(bool(stage_digests(record, stage)) for record in records.values())
        num_compared += num_ranks > 1
    return num_compared


def _differs(view: View, name: str, difference: _Difference, note: str) -> Finding:
    key = difference.keys[0]
    odd = _odd_rank(view, difference)
    if odd is not None:
        who = f"rank {odd} stands apart"
    else:
        who = "which rank is wrong cannot be told from the ranks alone"
    digests = {
        rank: stage_digests(record, difference.stage).get(key, b"")
        for rank, record in difference.records.items()
    }
    usual = Counter(value for rank, value in digests.items() if rank != odd).most_common(1)
    seen = {rank: value for rank, value in digests.items() if odd is None or rank == odd}
    return Finding(
        name=name,
        outcome="differs",
        summary=f"step {difference.step}: {difference.stage} is not equal on all ranks, "
        f"first in {key} ({counted(len(difference.keys), 'tensor')}); {who}{note}",
        where=Where(step=difference.step, stage=difference.stage, key=key, rank=odd),
        expected=f"all ranks {usual[0][0].hex()}" if odd is not None else "equal on all ranks",
        seen=listed([f"rank {rank} {value.hex()}" for rank, value in seen.items()]),
        magnitude=float(len(difference.keys)),
    )


def _odd_rank(view: View, difference: _Difference) -> int | None:
    """The rank to blame: by its memory, by a gradient of its own, or by a majority of three."""
    suspects: Iterable[int] = ()
    if difference.stage == "params_before":
        suspects = [rank for rank in difference.records if _lost_memory(view, difference, rank)]
    if difference.stage == "reduced_gradient":
        suspects = [
            rank
            for rank, record in difference.records.items()
            if kept_own_gradient(record, difference.keys)
        ]
    alone = list(suspects)
    if len(alone) == 1:
        return alone[0]
    return _outvoted(difference)


def _lost_memory(view: View, difference: _Difference, rank: int) -> bool:
    record = difference.records[rank]
    earlier = view.telemetry.at(rank, difference.step - 1)
    if earlier is not None and earlier.attempt == record.attempt:
        return bool(set(broken_tensors(earlier, record)) & set(difference.keys))
    loads = (
        load for load in view.telemetry.loads if (load.rank, load.attempt) == (rank, record.attempt)
    )
    return any(
        load.step == difference.step - 1 and broken_since_load(load, record) for load in loads
    )


def _outvoted(difference: _Difference) -> int | None:
    digests = {
        rank: stage_digests(record, difference.stage).get(difference.keys[0])
        for rank, record in difference.records.items()
    }
    votes = Counter(digests.values())
    alone = [rank for rank, value in digests.items() if votes[value] == 1]
    if len(alone) == 1 and len(digests) > 2:
        return alone[0]
    return None


# --- the counters


def _counters(view: View, history: History) -> Finding:
    difference = (
        _different_load(view) or _different_steps(view, history) or _different_tokens(history)
    )
    if difference is not None:
        return difference
    names = ranks_text(view.telemetry.ranks)
    return agrees(
        COUNTERS,
        f"{names} took the same steps, from the same generation, with the same token count",
    )


def _different_load(view: View) -> Finding | None:
    by_attempt: dict[int, dict[int, tuple[str, int]]] = {}
    for load in view.telemetry.loads:
        by_attempt.setdefault(load.attempt, {})[load.rank] = (load.generation, load.step)
    for attempt, loaded in sorted(by_attempt.items()):
        if len(set(loaded.values())) > 1:
            names = [
                f"rank {rank} {name} (step {step})" for rank, (name, step) in sorted(loaded.items())
            ]
            step = min(step for _, step in loaded.values()) + 1
            summary = (
                f"attempt {attempt}: the ranks loaded different generations: {', '.join(names)}"
            )
            return _counter_finding(
                summary, Where(step=step, stage="restored"), "one generation", ", ".join(names)
            )
    return None


def _different_steps(view: View, history: History) -> Finding | None:
    """A step that a rank lacks, unless its file is damaged or the run ended within that step."""
    torn = set()
    for segment in view.telemetry.segments:
        if segment.torn_bytes or segment.problem:
            torn.add(segment.rank)
    last = max(history, default=0)
    for step, records in history.items():
        lacking = []
        for rank in view.telemetry.ranks:
            if rank not in records and rank not in torn:
                lacking.append(rank)
        if lacking and step != last:
            summary = (
                f"step {step} was recorded by {ranks_text(sorted(records))} but not by "
                f"{ranks_text(lacking)}"
            )
            return _counter_finding(
                summary,
                Where(step=step, rank=lacking[0]),
                "a record on every rank",
                f"none on {ranks_text(lacking)}",
            )
    return None


def _different_tokens(history: History) -> Finding | None:
    for step, records in history.items():
        tokens = {
            rank: r.metrics["tokens/total"]
            for rank, r in records.items()
            if "tokens/total" in r.metrics
        }
        if len({value for value in tokens.values() if value == value}) > 1:
            seen = ", ".join(f"rank {rank} {value:.0f}" for rank, value in sorted(tokens.items()))
            summary = f"step {step}: the ranks count different numbers of consumed tokens: {seen}"
            return _counter_finding(
                summary, Where(step=step, key="tokens/total"), "one count", seen
            )
    return None


def _counter_finding(summary: str, where: Where, expected: str, seen: str) -> Finding:
    return Finding(
        name=COUNTERS, outcome="differs", summary=summary, where=where, expected=expected, seen=seen
    )
