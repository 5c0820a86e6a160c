"""Check: the bytes that a step consumed are those that the index promised when it was written.

It compares digests of the moment of reading with the index and never reads a shard: the disk is for
`hash`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.data import DataIndex
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted, listed
from spiketriage.nouns.telemetry import StepRecord

NAME = "consumed-content"
AT_SPIKE = "consumed-at-spike"
EMITS = dict.fromkeys((NAME, AT_SPIKE), Emission(role=TESTS_CAUSES, dates_onset=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Foreign:
    step: int
    rank: int
    documents: tuple[str, ...]
    record: StepRecord


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first step and rank that consumed other bytes than the index promises."""
    index = view.index
    if index is None:
        return (untestable(NAME, "the run has no readable data index"),)
    changed = [
        m.generation for m in view.manifests() if m.index_digest and m.index_digest != index.digest
    ]
    if changed:
        return (
            untestable(
                NAME, f"the index itself is not the one that {listed(changed)} was trained on"
            ),
        )
    history = view.history()
    num_documents = 0
    for records in history.values():
        num_documents += sum(len(record.content) for record in records.values())
    if not num_documents:
        return (untestable(NAME, "no step recorded digests of the documents it consumed"),)
    foreign: list[_Foreign] = []
    for step, records in history.items():
        for rank, record in sorted(records.items()):
            names = _foreign(record.content, index)
            if names:
                foreign.append(_Foreign(step=step, rank=rank, documents=names, record=record))
    at_spike = _at_spike(
        view.suspect, [item for item in foreign if item.step == view.suspect], index
    )
    if foreign:
        return (_differs(NAME, foreign, index), at_spike)
    text = (
        f"{counted(num_documents, 'document')} were consumed with the bytes that the index promises"
    )
    return (agrees(NAME, text), at_spike)


def _at_spike(suspect: int | None, foreign: list[_Foreign], index: DataIndex) -> Finding:
    """The same about the suspect step alone: no other step's bytes explain this spike."""
    if suspect is None:
        return untestable(AT_SPIKE, "no suspect step")
    if foreign:
        number = counted(sum(len(item.documents) for item in foreign), "document")
        summary = (
            f"the suspect step {suspect} itself consumed {number} that the index does not hold"
        )
        return replace(_differs(AT_SPIKE, foreign, index), summary=summary)
    return agrees(AT_SPIKE, f"step {suspect} consumed the bytes that the index promises")


def _foreign(content: Mapping[str, str], index: DataIndex) -> tuple[str, ...]:
    """Documents with another digest than the index's; unknown ones are for the check of ids."""
    result: list[str] = []
    for name, seen in content.items():
        if name in index.documents and index.documents[name].digest != seen:
            result.append(name)
    return tuple(result)


def _differs(name: str, foreign: list[_Foreign], index: DataIndex) -> Finding:
    first = foreign[0]
    document = index.documents[first.documents[0]]
    steps = counted(len({item.step for item in foreign}), "step")
    return Finding(
        name=name,
        outcome="differs",
        summary=f"step {first.step}, rank {first.rank}: the bytes consumed as "
        f"{listed(first.documents)} "
        f"are not those of the index ({document.shard}, offset {document.offset_bytes}); "
        f"{steps} in all",
        where=Where(
            step=first.step, stage="content", key=document.id, rank=first.rank, path=document.shard
        ),
        expected=document.digest,
        seen=first.record.content[document.id],
        magnitude=float(sum(len(item.documents) for item in foreign)),
    )
