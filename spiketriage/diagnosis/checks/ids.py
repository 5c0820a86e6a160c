"""Check: every document that a step names exists, and none recurs before its source is used up.

It works on names alone, never on bytes; a sampler that draws with replacement is recognised, not
accused.

Where the names of a batch say their epoch (an object with `epoch`), each epoch is judged by itself:
one that drops its last batch leaves documents unused. Ranks draw at the same time: those that fill
up the last batch of a source with documents from its beginning do so when the whole step has used
it up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.view import History, View, documents_of
from spiketriage.nouns.data import DataIndex
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted

NAME = "ids"
EMITS = {NAME: Emission(role=TESTS_CAUSES, dates_onset=True)}
MIN_DUE = 5.0  # repetitions due by now; seeing none has a chance of e^-5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    step: int
    rank: int
    document: str
    epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repetition:
    use: _Use
    before: _Use
    num_due: float  # repetitions that drawing with replacement would have brought before this one


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tally:
    """Every repetition, and how many of them drawing with replacement would have brought."""

    repetitions: tuple[_Repetition, ...]
    num_due: float

    @property
    def drawn_with_replacement(self) -> bool:
        """Whether chance explains them: few were due before the first, and as many came as due."""
        as_many = self.num_due < MIN_DUE or len(self.repetitions) >= self.num_due / 2
        return self.repetitions[0].num_due < MIN_DUE and as_many


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first unknown document, else the first repeated one."""
    uses = _uses(view.history())
    if not uses:
        return (untestable(NAME, "no step recorded the documents it used"),)
    unknown = []
    for use in uses:
        if view.index is not None and use.document not in view.index.documents:
            unknown.append(use)
    if unknown:
        return (_unknown(unknown),)
    tally = _tally(uses, view.index)
    if tally.repetitions and view.index is not None and tally.drawn_with_replacement:
        reason = (
            "documents recur as often as when drawn with replacement, so a repetition says nothing"
        )
        return (untestable(NAME, reason),)
    if tally.repetitions:
        return (_repeated(tally.repetitions),)
    if view.index:
        scope = "each in the index, "
    else:
        scope = "(no index to look them up in) "
    return (
        agrees(
            NAME,
            (
                f"{counted(len(uses), 'document')} used, {scope}none twice before its source "
                "was used up"
            ),
        ),
    )


def _uses(history: History) -> list[_Use]:
    result: list[_Use] = []
    for step, records in history.items():
        for rank, record in sorted(records.items()):
            for name in documents_of(record):
                result.append(_Use(step=step, rank=rank, document=name, epoch=_epoch(record.ids)))
    return result


def _tally(uses: Sequence[_Use], index: DataIndex | None) -> _Tally:
    """Repetitions while the source still held unused documents, and within one step at any time."""
    documents = index.documents if index else {}
    size = Counter(document.source for document in documents.values())
    num_seen: Counter[tuple[int | None, str]] = Counter()
    last_use: dict[tuple[int | None, str], _Use] = {}
    repetitions: list[_Repetition] = []
    num_due = 0.0
    for _, group in groupby(uses, key=lambda use: use.step):
        together = list(group)
        fresh = {(use.epoch, use.document) for use in together} - last_use.keys()
        seen_so_far = Counter(num_seen)
        num_seen.update((epoch, documents[name].source if index else "") for epoch, name in fresh)
        for use in together:
            name, source = (
                (use.epoch, use.document),
                (use.epoch, documents[use.document].source if index else ""),
            )
            before = last_use.get(name)
            used_up = index is not None and num_seen[source] >= size[source[1]]
            if before is not None and (not used_up or before.step == use.step):
                repetitions.append(_Repetition(use=use, before=before, num_due=num_due))
            num_due += 0.0 if used_up or index is None else seen_so_far[source] / size[source[1]]
            seen_so_far[source] += before is None
            last_use[name] = use
    return _Tally(repetitions=tuple(repetitions), num_due=num_due)


def _epoch(ids: object) -> int | None:
    if isinstance(ids, Mapping):
        epoch = ids.get("epoch")
    else:
        epoch = None
    if isinstance(epoch, int):
        return epoch
    return None


def _unknown(unknown: list[_Use]) -> Finding:
    first = unknown[0]
    steps = counted(len({use.step for use in unknown}), "step")
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"step {first.step}, rank {first.rank}: {first.document} is not in the index "
        f"({steps})",
        where=Where(step=first.step, stage="ids", key=first.document, rank=first.rank),
        expected="a document of the index",
        seen=first.document,
        magnitude=float(len(unknown)),
    )


def _repeated(repetitions: Sequence[_Repetition]) -> Finding:
    use, before = repetitions[0].use, repetitions[0].before
    steps = counted(len({item.use.step for item in repetitions}), "step")
    if before.step == use.step:
        if before.rank == use.rank:
            place = "twice by this rank"
        else:
            place = f"by rank {before.rank} as well"
    else:
        place = f"again, after step {before.step} on rank {before.rank}"
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"step {use.step}, rank {use.rank}: {use.document} is used {place} "
        f"({counted(len(repetitions), 'repetition')} at {steps})",
        where=Where(step=use.step, stage="ids", key=use.document, rank=use.rank),
        expected="each document once before its source is used up",
        seen=f"used at step {before.step} on rank {before.rank} and at step {use.step} on rank "
        f"{use.rank}",
        magnitude=float(len(repetitions)),
    )
