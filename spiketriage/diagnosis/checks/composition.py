"""Check: the suspect step draws from the data sources about as the steps before it did.

A step that is rich in a rare source can spike without any fault; this check never looks into
documents.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.view import View, documents_of
from spiketriage.nouns.data import DataIndex
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted
from spiketriage.nouns.telemetry import StepRecord

NAME = "composition"
# It looks at the suspect step alone, so it cannot move the onset.
EMITS = {NAME: Emission(role=TESTS_CAUSES)}
MIN_STEPS = 20
MARGIN = 1.5
MIN_DEVIANCE = (
    10.0  # a sampler with fixed quotas has almost no spread; below this no batch is unusual
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mix:
    num_documents: Mapping[str, int]
    num_bytes: Mapping[str, int]

    def share(self, source: str) -> float:
        """Share of bytes."""
        return self.num_bytes.get(source, 0) / max(1, sum(self.num_bytes.values()))


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the source of which the suspect step holds far more than usual."""
    suspect, index = view.suspect, view.index
    if suspect is None:
        return (untestable(NAME, "no suspect step"),)
    if index is None:
        return (untestable(NAME, "the run has no readable data index", where=Where(step=suspect)),)
    mixes = {step: _mix(records, index) for step, records in view.history().items()}
    mixes = {step: mix for step, mix in mixes.items() if mix.num_documents}
    if suspect not in mixes:
        return (
            untestable(
                NAME,
                "the suspect step recorded no document of the index",
                where=Where(step=suspect),
            ),
        )
    before = {step: mix for step, mix in mixes.items() if step < suspect}
    if len(before) >= MIN_STEPS:
        others = before
    else:
        others = {step: mix for step, mix in mixes.items() if step != suspect}
    if len(others) < MIN_STEPS:
        reason = f"only {counted(len(others), 'other step')} to compare with"
        return (untestable(NAME, reason, where=Where(step=suspect)),)
    after = {step: mix for step, mix in mixes.items() if step > suspect}
    return (_compare(suspect, mixes[suspect], others, after),)


def _mix(records: Mapping[int, StepRecord], index: DataIndex) -> _Mix:
    documents = []
    for r in records.values():
        for n in documents_of(r):
            if n in index.documents:
                documents.append(index.documents[n])
    num_bytes: Counter[str] = Counter()
    for document in documents:
        num_bytes[document.source] += document.length_bytes
    return _Mix(
        num_documents=Counter(document.source for document in documents), num_bytes=num_bytes
    )


def _compare(
    suspect: int, mix: _Mix, others: Mapping[int, _Mix], after: Mapping[int, _Mix]
) -> Finding:
    usual = _total(others)
    limit = max(MIN_DEVIANCE, MARGIN * max(_deviance(other, usual) for other in others.values()))
    seen = _deviance(mix, usual)
    source = max(mix.num_documents, key=lambda name: _excess(mix, usual, name))
    share, share_usual = mix.share(source), usual.share(source)
    if seen <= limit:
        return agrees(
            NAME,
            (
                f"step {suspect} mixes its sources as others do (deviance {seen:.1f}, unusual "
                f"above {limit:.1f})"
            ),
        )
    alike = sum(1 for other in after.values() if _deviance(other, usual) > limit)
    if after:
        stays = f"; {alike} of {counted(len(after), 'later step')} are unusual too"
    else:
        stays = ""
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"step {suspect}: {share:.0%} of its bytes come from source {source}, usually "
        f"{share_usual:.1%}{stays}",
        where=Where(step=suspect, stage="ids", key=source),
        expected=f"{source} {share_usual:.4f} of bytes, deviance at most {limit:.1f}",
        seen=f"{source} {share:.4f} of bytes, deviance {seen:.1f}",
        magnitude=share / share_usual if share_usual else None,
    )


def _total(mixes: Mapping[int, _Mix]) -> _Mix:
    documents: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    for mix in mixes.values():
        documents.update(mix.num_documents)
        num_bytes.update(mix.num_bytes)
    return _Mix(num_documents=documents, num_bytes=num_bytes)


def _excess(mix: _Mix, usual: _Mix, source: str) -> float:
    """What one source adds to the deviance, smoothed so that an unseen source is finite."""
    total, num_sources = (
        sum(usual.num_documents.values()),
        len(usual.num_documents.keys() | {source}),
    )
    expected = (usual.num_documents.get(source, 0) + 0.5) / (total + 0.5 * num_sources)
    number = mix.num_documents.get(source, 0)
    if number:
        return number * math.log(number / (sum(mix.num_documents.values()) * expected))
    return 0.0


def _deviance(mix: _Mix, usual: _Mix) -> float:
    """Multinomial deviance (G) of a step's documents against the usual shares."""
    return 2 * sum(_excess(mix, usual, source) for source in mix.num_documents)
