"""`spiketriage documents`.

Which documents a step consumed, and whether any of them looks broken beside its neighbours.

This module needs no incident, writes nothing, and reads a bounded number of documents however large
the store is.
"""

from __future__ import annotations

import random
import statistics as of_python
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spiketriage.diagnosis.findings import counted
from spiketriage.errors import EvidenceError, UsageError
from spiketriage.evidence.progress import say
from spiketriage.incident import next_step
from spiketriage.nouns.data import DocumentFacts
from spiketriage.nouns.incident import StepResult
from spiketriage.nouns.series import Integers
from spiketriage.readers.data.stores import STORES, DataStore
from spiketriage.readers.look import best, look
from spiketriage.tools.document_oddity import (
    MEASURES,
    MIN_PEERS,
    MIN_TOKENS,
    Commonest,
    Oddity,
    oddities,
)
from spiketriage.tools.document_peers import Reading, Sample, draw

EXIT_CODES = {"clean": 0, "stands-out": 1, "damaged": 4, "inconclusive": 5}
MAX_JUDGED = 1024
MAX_PROFILED = 200
MAX_LINES = 40
SEED = 20_240
SAY_EVERY = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A training step, with what a store needs to know to say which documents it consumed."""

    number: int
    batch: int
    length: int


def step_of(number: int | None, batch: int | None, length: int | None) -> Step | None:
    """The step that these three name together; None where none is given.

    Raises:
        UsageError: some are given and others not.
    """
    if number is None and batch is None and length is None:
        return None
    if number is None or batch is None or length is None:
        raise UsageError("a step's documents need --step, --batch and --length together")
    return Step(number=number, batch=batch, length=length)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Store:
    """The store that was found at a path; `total` counts its documents."""

    path: Path
    format: DataStore
    confidence: float
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """One document and what is notable about it; or why it cannot be read."""

    number: int
    facts: DocumentFacts | None
    odd: tuple[Oddity, ...] = ()
    num_peers: int = 0
    problem: str = ""

    @property
    def stands_out(self) -> bool:
        return any(one.is_clear for one in self.odd)

    @property
    def is_compared(self) -> bool:
        enough = self.facts is not None and self.facts.statistics.num_tokens >= MIN_TOKENS
        return enough and self.num_peers >= MIN_PEERS

    @property
    def order(self) -> tuple[bool, bool, float, int]:
        return (
            not self.problem,
            not self.stands_out,
            -max((one.z for one in self.odd), default=0.0),
            self.number,
        )


def run(
    path: Path,
    *,
    numbers: Sequence[int] = (),
    step: Step | None = None,
    reading: Reading | None = None,
    seed: int = SEED,
) -> StepResult:
    """Judge the documents `numbers`, or those of `step`, or without either a sample of the store.

    Raises:
        UsageError: a number that the store does not have, or numbers and a step together.
        RefusedError: the store does not say which documents a step consumed; the message says what
        is missing.
        EvidenceError: the store cannot be read.
    """
    if numbers and step is not None:
        raise UsageError(
            "--number and --step exclude each other: a step has the documents that it has"
        )
    reading = reading or Reading()
    store = _open(path, reading)
    asked, notes = _asked(store, numbers, step, reading, seed)
    say(f"documents: {path}: {counted(store.total, 'document')}; drawing others to compare with")
    sample = draw(store.format, path, reading, asked=asked, seed=seed, total=store.total)
    is_profile = not numbers and step is None
    if is_profile:
        asked = tuple(sample.tokens)[:MAX_PROFILED]
    judged = sorted(_judge_all(store, asked, sample), key=lambda one: one.order)
    return _result(store, sample, judged, notes, is_profile=is_profile)


def _open(path: Path, reading: Reading) -> _Store:
    claimed = best(STORES, look(path))
    if claimed is None:
        known = ", ".join(one.NAME for one in STORES)
        raise EvidenceError(
            f"{path}: is no data store of a known format ({known})",
            hint=next_step.command("inspect", path, None),
        )
    store, confidence = claimed
    total = store.count(path, eos=reading.eos)
    if not total:
        raise EvidenceError(f"{path}: holds no document")
    return _Store(path=path, format=store, confidence=confidence, total=total)


def _asked(
    store: _Store, numbers: Sequence[int], step: Step | None, reading: Reading, seed: int
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The numbers to judge, and a sentence where these are not all."""
    absent = [number for number in numbers if number >= store.total]
    if absent:
        raise UsageError(
            f"{store.path}: has no document {absent[0]}: its {store.total} are numbered from 0"
        )
    wanted = tuple(dict.fromkeys(numbers))
    if step is not None:
        found = store.format.documents_of_step(
            store.path, step.number, step.batch, step.length, eos=reading.eos
        )
        wanted = tuple(dict.fromkeys(int(number) for number in found))
    if len(wanted) <= MAX_JUDGED:
        return wanted, ()
    kept = tuple(sorted(random.Random(seed).sample(wanted, MAX_JUDGED)))
    return kept, (
        f"{MAX_JUDGED} of {len(wanted)} documents were drawn and judged; the others were not read",
    )


def _judge_all(store: _Store, numbers: Sequence[int], sample: Sample) -> Iterator[_Judged]:
    for at, number in enumerate(numbers, start=1):
        yield _judge(store, number, sample)
        if at % SAY_EVERY == 0 and at < len(numbers):
            say(f"documents: {at} of {len(numbers)} judged")


def _judge(store: _Store, number: int, sample: Sample) -> _Judged:
    try:
        stored = store.format.stored(store.path, number, eos=sample.reading.eos)
    except EvidenceError as error:
        return _Judged(number=number, facts=None, problem=error.message)
    told = sample.told(number, stored.tokens)
    peers = sample.peers(number, told.num_tokens)
    facts = DocumentFacts(
        number=number,
        path=stored.path,
        start=stored.start,
        end=stored.end,
        digest=stored.digest,
        statistics=told,
    )
    odd = oddities(told, peers, _commonest(stored.tokens, sample.reading.pad))
    return _Judged(number=number, facts=facts, odd=odd, num_peers=len(peers))


def _commonest(tokens: Integers, pad: int | None) -> Commonest:
    """The most frequent id; padding is judged by a measure of its own."""
    ids, counts = np.unique(tokens if pad is None else tokens[tokens != pad], return_counts=True)
    if not len(ids):
        return Commonest(id=0, share=0.0)
    at = int(counts.argmax())
    return Commonest(id=int(ids[at]), share=float(counts[at] / len(tokens)))


def _result(
    store: _Store,
    sample: Sample,
    judged: Sequence[_Judged],
    notes: tuple[str, ...],
    *,
    is_profile: bool,
) -> StepResult:
    outcome = _outcome(judged)
    lines = [_headline(store, sample), _told(judged, is_profile=is_profile)]
    lines += [f"note: {note}" for note in (*notes, *_notes(store, sample, judged))]
    lines += list(_profile(judged)) if is_profile else []
    shown = [one for one in judged if one.odd or one.problem] if is_profile else judged
    lines += [_row(one) for one in shown[:MAX_LINES]]
    if len(shown) > MAX_LINES:
        lines.append(f"… and {len(shown) - MAX_LINES} more, each less odd (--json has them all)")
    return StepResult(
        incident="",
        exit_code=EXIT_CODES[outcome],
        verdict=outcome,
        lines=tuple(lines),
        data=_data(store, sample, judged, notes),
        next_commands=(next_step.command("inspect", store.path, None),)
        if EXIT_CODES[outcome]
        else (),
    )


def _outcome(judged: Sequence[_Judged]) -> str:
    if any(one.problem for one in judged):
        return "damaged"
    if any(one.stands_out for one in judged):
        return "stands-out"
    if any(one.is_compared for one in judged) or not judged:
        return "clean"
    return "inconclusive"


def _headline(store: _Store, sample: Sample) -> str:
    known = f"{store.path}: data: {store.format.NAME} (confidence {store.confidence:.2f})"
    others = f"compared with a sample of {len(sample.tokens)} (seed {sample.seed})"
    return f"{known}: {counted(store.total, 'document')}, {others}"


def _told(judged: Sequence[_Judged], *, is_profile: bool) -> str:
    num_odd = sum(one.stands_out for one in judged)
    num_compared = sum(one.is_compared for one in judged)
    what = f"{counted(len(judged), 'document')}{' of the sample' if is_profile else ''}"
    if not num_odd:
        if num_compared == len(judged):
            compared = ""
        else:
            compared = f"; {num_compared} could be compared"
        return f"none of {what} stands out clearly{compared}"
    return f"{num_odd} of {what} {'stands' if num_odd == 1 else 'stand'} out clearly"


def _notes(store: _Store, sample: Sample, judged: Sequence[_Judged]) -> Iterator[str]:
    if store.format.NAME == "flat-tokens" and sample.reading.eos is None:
        yield "where documents end is not known without --eos: windows of 1,024 tokens are shown"
    if sample.reading.vocab is None:
        yield "without --vocab no id counts as outside the vocabulary"
    if sample.num_unreadable:
        yield f"{sample.num_unreadable} others could not be read"
    lonely = [one.number for one in judged if one.facts is not None and one.num_peers < MIN_PEERS]
    if lonely:
        few = f"fewer than {MIN_PEERS} others of similar length to be compared with"
        yield f"{counted(len(lonely), 'document')}: {few} (the first is document {lonely[0]})"


def _profile(judged: Sequence[_Judged]) -> Iterator[str]:
    """Median and range of each measure over the sample, whole documents."""
    told = [
        one.facts.statistics
        for one in judged
        if one.facts is not None and one.facts.statistics.num_tokens
    ]
    if not told:
        return
    lengths = [one.num_tokens for one in told]
    yield f"  tokens: median {of_python.median(lengths):.0f}, {min(lengths)} to {max(lengths)}"
    for measure in {one.name: one for one in MEASURES}.values():
        values = [value for one in told if np.isfinite(value := measure.shown(measure.of(one)))]
        if values:
            spread = f"{min(values):.3g} to {max(values):.3g} {measure.unit}".rstrip()
            yield f"  {measure.name}: median {of_python.median(values):.3g}, {spread}"


def _row(one: _Judged) -> str:
    if one.facts is None:
        return f"PROBLEM document {one.number}: {one.problem}"
    facts = one.facts
    told = "; ".join(
        f"{odd.words}" + (f" (z {odd.z:.0f})" if np.isfinite(odd.z) else "") for odd in one.odd
    )
    if one.is_compared:
        like = "like the others"
    else:
        like = "not compared"
    place = f"{facts.path} bytes {facts.start}–{facts.end}"
    word = "ODD" if one.stands_out else "ok " if one.is_compared else "?  "
    size = f"{facts.statistics.num_tokens} tokens"
    return f"{word} document {one.number}: {place}, {facts.digest[:16]}, {size}: {told or like}"


def _data(
    store: _Store, sample: Sample, judged: Sequence[_Judged], notes: tuple[str, ...]
) -> dict[str, Any]:
    return {
        "path": str(store.path),
        "format": store.format.NAME,
        "confidence": store.confidence,
        "num_documents": store.total,
        "num_compared": len(sample.tokens),
        "seed": sample.seed,
        "notes": [*notes, *_notes(store, sample, judged)],
        "documents": [
            {
                "number": one.number,
                "stands_out": one.stands_out,
                "problem": one.problem,
                "num_peers": one.num_peers,
                "oddities": [asdict(odd) for odd in one.odd],
                **(asdict(one.facts) if one.facts is not None else {}),
            }
            for one in judged
        ],
    }
