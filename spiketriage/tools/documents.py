"""`spiketriage documents`: which documents a step consumed, and which look broken beside others.

This module needs no incident, writes nothing, and reads a bounded number of documents however large
the store is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from spiketriage.errors import EvidenceError, Exit, UsageError
from spiketriage.evidence.progress import say
from spiketriage.incident import next_step
from spiketriage.nouns.data import MeasuredDocument
from spiketriage.nouns.incident import StepResult
from spiketriage.nouns.listing import counted
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

EXIT_CODES = {
    "clean": Exit.DONE,
    "stands-out": Exit.AGAINST,
    "damaged": Exit.INTEGRITY,
    "inconclusive": Exit.INCONCLUSIVE,
}
MAX_JUDGED = 1024  # of one step; a sample of so many shows what is wrong with the rest
MAX_PROFILED = 200
MAX_LINES = 40
SEED = 20_240  # any number: the same store always gives the same sample
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
    facts: MeasuredDocument | None
    oddities: tuple[Oddity, ...] = ()
    num_peers: int = 0
    problem: str = ""

    @property
    def stands_out(self) -> bool:
        return any(oddity.is_clear for oddity in self.oddities)

    @property
    def is_compared(self) -> bool:
        enough = self.facts is not None and self.facts.statistics.num_tokens >= MIN_TOKENS
        return enough and self.num_peers >= MIN_PEERS

    @property
    def order(self) -> tuple[bool, bool, float, int]:
        """What cannot be read first, then the oddest."""
        z = max((oddity.z for oddity in self.oddities), default=0.0)
        return not self.problem, not self.stands_out, -z, self.number


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
    judged = sorted(_judge_all(store, asked, sample), key=lambda document: document.order)
    return _result(store, sample, judged, notes, is_profile=is_profile)


def _open(path: Path, reading: Reading) -> _Store:
    claimed = best(STORES, look(path))
    if claimed is None:
        known = ", ".join(store.NAME for store in STORES)
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
    asked = tuple(dict.fromkeys(numbers))
    if step is not None:
        consumed = store.format.documents_of_step(
            store.path, step.number, step.batch, step.length, eos=reading.eos
        )
        asked = tuple(dict.fromkeys(map(int, consumed)))
    if len(asked) <= MAX_JUDGED:
        return asked, ()
    drawn = tuple(sorted(random.Random(seed).sample(asked, MAX_JUDGED)))
    note = f"{MAX_JUDGED} of {len(asked)} documents were drawn and judged; the others were not read"
    return drawn, (note,)


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
    statistics = sample.statistics_of(number, stored.tokens)
    peers = sample.peers(number, statistics.num_tokens)
    facts = MeasuredDocument(
        number=number,
        path=stored.path,
        start=stored.start,
        end=stored.end,
        digest=stored.digest,
        statistics=statistics,
    )
    commonest = _commonest(stored.tokens, sample.reading.pad)
    return _Judged(
        number=number,
        facts=facts,
        oddities=oddities(statistics, peers, commonest),
        num_peers=len(peers),
    )


def _commonest(tokens: Integers, pad: int | None) -> Commonest:
    """The most frequent id; padding is judged by a measure of its own."""
    own = tokens if pad is None else tokens[tokens != pad]
    ids, counts = np.unique(own, return_counts=True)
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
    lines = [_headline(store, sample), _summary(judged, is_profile=is_profile)]
    lines += [f"note: {note}" for note in (*notes, *_notes(store, sample, judged))]
    shown = judged
    if is_profile:
        lines += _profile(judged)
        shown = [document for document in judged if document.oddities or document.problem]
    lines += [_row(document) for document in shown[:MAX_LINES]]
    if len(shown) > MAX_LINES:
        lines.append(f"… and {len(shown) - MAX_LINES} more, each less odd (--json has them all)")
    next_commands: tuple[str, ...] = ()
    if outcome != "clean":
        next_commands = (next_step.command("inspect", store.path, None),)
    return StepResult(
        incident="",
        exit_code=EXIT_CODES[outcome],
        verdict=outcome,
        lines=tuple(lines),
        data=_data(store, sample, judged, notes),
        next_commands=next_commands,
    )


def _outcome(judged: Sequence[_Judged]) -> str:
    if any(document.problem for document in judged):
        return "damaged"
    if any(document.stands_out for document in judged):
        return "stands-out"
    if any(document.is_compared for document in judged) or not judged:
        return "clean"
    return "inconclusive"


def _headline(store: _Store, sample: Sample) -> str:
    known = f"{store.path}: data: {store.format.NAME} (confidence {store.confidence:.2f})"
    others = f"compared with a sample of {len(sample.tokens)} (seed {sample.seed})"
    return f"{known}: {counted(store.total, 'document')}, {others}"


def _summary(judged: Sequence[_Judged], *, is_profile: bool) -> str:
    num_odd = sum(document.stands_out for document in judged)
    num_compared = sum(document.is_compared for document in judged)
    what = counted(len(judged), "document")
    if is_profile:
        what = f"{what} of the sample"
    if num_odd:
        verb = "stands" if num_odd == 1 else "stand"
        return f"{num_odd} of {what} {verb} out clearly"
    if num_compared == len(judged):
        return f"none of {what} stands out clearly"
    return f"none of {what} stands out clearly; {num_compared} could be compared"


def _notes(store: _Store, sample: Sample, judged: Sequence[_Judged]) -> Iterator[str]:
    if store.format.NAME == "flat-tokens" and sample.reading.eos is None:
        yield "where documents end is not known without --eos: windows of 1,024 tokens are shown"
    if sample.reading.vocab is None:
        yield "without --vocab no id counts as outside the vocabulary"
    if sample.num_unreadable:
        yield f"{sample.num_unreadable} others could not be read"
    lonely = []
    for document in judged:
        if document.facts is not None and document.num_peers < MIN_PEERS:
            lonely.append(document.number)
    if lonely:
        few = f"fewer than {MIN_PEERS} others of similar length to be compared with"
        yield f"{counted(len(lonely), 'document')}: {few} (the first is document {lonely[0]})"


def _profile(judged: Sequence[_Judged]) -> Iterator[str]:
    """Median and range of each measure over the sample, whole documents."""
    sampled = []
    for document in judged:
        if document.facts is not None and document.facts.statistics.num_tokens:
            sampled.append(document.facts.statistics)
    if not sampled:
        return
    lengths = [statistics.num_tokens for statistics in sampled]
    yield f"  tokens: median {median(lengths):.0f}, {min(lengths)} to {max(lengths)}"
    # A name may have a measure for large values and one for small ones; the numbers are the same.
    for measure in {measure.name: measure for measure in MEASURES}.values():
        values = []
        for statistics in sampled:
            value = measure.shown(measure.of(statistics))
            if math.isfinite(value):
                values.append(value)
        if values:
            spread = f"{min(values):.3g} to {max(values):.3g} {measure.unit}".rstrip()
            yield f"  {measure.name}: median {median(values):.3g}, {spread}"


def _row(document: _Judged) -> str:
    if document.facts is None:
        return f"PROBLEM document {document.number}: {document.problem}"
    if document.stands_out:
        word = "ODD"
    elif document.is_compared:
        word = "ok "
    else:
        word = "?  "
    if document.oddities:
        words = "; ".join(map(_oddity, document.oddities))
    elif document.is_compared:
        words = "like the others"
    else:
        words = "not compared"
    facts = document.facts
    place = f"{facts.path} bytes {facts.start}–{facts.end}"
    size = f"{facts.statistics.num_tokens} tokens"
    return f"{word} document {document.number}: {place}, {facts.digest[:16]}, {size}: {words}"


def _oddity(oddity: Oddity) -> str:
    if math.isfinite(oddity.z):
        return f"{oddity.words} (z {oddity.z:.0f})"
    return oddity.words


def _data(
    store: _Store, sample: Sample, judged: Sequence[_Judged], notes: tuple[str, ...]
) -> dict[str, Any]:
    documents = []
    for document in judged:
        row: dict[str, Any] = {
            "number": document.number,
            "stands_out": document.stands_out,
            "problem": document.problem,
            "num_peers": document.num_peers,
            "oddities": [asdict(oddity) for oddity in document.oddities],
        }
        if document.facts is not None:
            row |= asdict(document.facts)
        documents.append(row)
    return {
        "path": str(store.path),
        "format": store.format.NAME,
        "confidence": store.confidence,
        "num_documents": store.total,
        "num_compared": len(sample.tokens),
        "seed": sample.seed,
        "notes": [*notes, *_notes(store, sample, judged)],
        "documents": documents,
    }
