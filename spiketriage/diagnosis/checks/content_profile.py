"""Check: the suspect step's documents look like other documents of the same source.

It profiles bytes as they lie on disk, read-only, and never parses them. A rare source must agree
with itself.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.view import View, documents_of
from spiketriage.errors import EvidenceError
from spiketriage.nouns.data import DataIndex, Document
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted, listed
from spiketriage.readers.data.native_index import read_document

NAME = "content-profile"
# It looks at the suspect step alone, so it cannot move the onset.
EMITS = {NAME: Emission(role=TESTS_CAUSES)}
MIN_GROUP_BYTES = 40
FEW_DOCUMENTS = 20
MAX_DOCUMENTS = 600  # drawn from a source for comparison
NUM_GROUPS = 120
# Neighbours in an ordered source are more alike than a random group of it: a clean stretch of a
# sorted table lay 1.5 times outside. Noise, repetition and a wrong tokenizer lie above 4 bits where
# clean groups stay below 0.6; a clean entry of a dictionary that is written as a grammar, all
# brackets and bars, reached 2.4 bits, 4 times outside.
KL_MARGIN, MIN_KL_BITS = 2.5, 3.0

Shares = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A rank's documents of one source in the suspect step, and other documents of that source."""

    source: str
    documents: tuple[Document, ...]
    texts: tuple[bytes, ...]
    others: tuple[bytes, ...]

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.texts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """What is judged as one: a part, or a rank's parts that are too small one by one."""

    rank: int
    parts: tuple[_Part, ...]

    @property
    def text(self) -> bytes:
        return b"".join(b"".join(part.texts) for part in self.parts)

    @property
    def sources(self) -> str:
        return " and ".join(part.source for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Profile:
    kl_bits: float
    zlib_ratio: float
    longest_run_bytes: float
    high_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Oddity:
    group: _Group
    measure: str
    seen: float
    usual: float
    ratio: float


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the group of documents that lies furthest outside its own source."""
    suspect, index = view.suspect, view.index
    if suspect is None:
        return (untestable(NAME, "no suspect step"),)
    where = Where(step=suspect, stage="content")
    if index is None:
        return (untestable(NAME, "the run has no readable data index", where=where),)
    chosen = _chosen(view, suspect, index)
    if not any(chosen.values()):
        return (
            untestable(NAME, "the suspect step recorded no document of the index", where=where),
        )
    try:
        return (_judge(suspect, chosen, index),)
    except EvidenceError as error:
        return (untestable(NAME, f"a shard cannot be read: {error.message}", where=where),)


def _chosen(view: View, suspect: int, index: DataIndex) -> dict[int, tuple[Document, ...]]:
    records = view.history().get(suspect, {})
    result: dict[int, tuple[Document, ...]] = {}
    for rank, record in records.items():
        result[rank] = tuple(
            index.documents[name] for name in documents_of(record) if name in index.documents
        )
    return result


def _judge(suspect: int, chosen: Mapping[int, tuple[Document, ...]], index: DataIndex) -> Finding:
    everything = tuple(chain.from_iterable(chosen.values()))
    used = {document.id for document in everything}
    sources = sorted({document.source for document in everything})
    others = {source: _others(index, source, used) for source in sources}
    oddities: list[_Oddity] = []
    notes = [_few(source, texts) for source, texts in others.items() if len(texts) < FEW_DOCUMENTS]
    num_judged = 0
    refused: list[_Group] = []
    for rank, documents in sorted(chosen.items()):
        for group in _groups(rank, documents, index, others):
            reason = _unjudgeable(group)
            if reason:
                notes.append(f"rank {rank}, {group.sources}: {reason}")
                refused.append(group)
            else:
                num_judged += 1
                oddities += _oddities(group)
    remarks = ""
    if notes:
        remarks = f" ({'; '.join(notes)})"
    if oddities:
        return _differs(suspect, max(oddities, key=lambda item: item.ratio), remarks)
    if any(len(group.text) >= MIN_GROUP_BYTES for group in refused):
        # A group that has nothing to be compared with is not clean: it is unknown.
        return untestable(
            NAME, f"step {suspect}: a part could not be judged{remarks}", where=Where(step=suspect)
        )
    if not num_judged:
        return untestable(
            NAME, f"nothing of step {suspect} could be judged{remarks}", where=Where(step=suspect)
        )
    judged = counted(num_judged, "group")
    return agrees(
        NAME,
        (
            f"step {suspect}: documents look like their sources in all {judged} by rank and "
            f"source{remarks}"
        ),
    )


def _few(source: str, texts: tuple[bytes, ...]) -> str:
    return f"{source}: only {counted(len(texts), 'other document')} to compare with"


def _unjudgeable(group: _Group) -> str:
    size = len(group.text)
    if size < MIN_GROUP_BYTES:
        return f"{counted(size, 'byte')} are too few to judge"
    if any(sum(map(len, part.others)) < 2 * part.size_bytes for part in group.parts):
        return "too little else to compare with"
    return ""


def _groups(
    rank: int,
    documents: tuple[Document, ...],
    index: DataIndex,
    others: Mapping[str, tuple[bytes, ...]],
) -> Iterator[_Group]:
    """A rank's documents by source; sources of which it holds too few bytes are judged together."""
    small: list[_Part] = []
    for source in sorted({document.source for document in documents}):
        own = tuple(document for document in documents if document.source == source)
        texts = tuple(read_document(index, document) for document in own)
        part = _Part(source=source, documents=own, texts=texts, others=others[source])
        if part.size_bytes < MIN_GROUP_BYTES:
            small.append(part)
        else:
            yield _Group(rank=rank, parts=(part,))
    if small:
        yield _Group(rank=rank, parts=tuple(small))


def _others(index: DataIndex, source: str, used: set[str]) -> tuple[bytes, ...]:
    """Other documents of a source, drawn with a fixed seed so that findings repeat."""
    names = sorted(
        n for n, document in index.documents.items() if document.source == source and n not in used
    )
    drawn = random.Random(source).sample(names, min(len(names), MAX_DOCUMENTS))
    return tuple(read_document(index, index.documents[name]) for name in drawn)


def _oddities(group: _Group) -> list[_Oddity]:
    """Measures by which a group lies clearly outside random groups of its sources and sizes."""
    totals = {part.source: _counts(b"".join(part.others)) for part in group.parts}
    own = _profile(group.text, _expected(group, totals))
    usual = list(_random_profiles(group, totals))
    most_kl = max(item.kl_bits for item in usual)
    longest = max(item.longest_run_bytes for item in usual)
    most_high = max(item.high_share for item in usual)
    least_zlib, most_zlib = (
        min(item.zlib_ratio for item in usual),
        max(item.zlib_ratio for item in usual),
    )
    limits = (
        (
            "unigram KL (bits)",
            own.kl_bits,
            most_kl,
            own.kl_bits / max(MIN_KL_BITS, KL_MARGIN * most_kl),
        ),
        (
            "longest run of one byte",
            own.longest_run_bytes,
            longest,
            own.longest_run_bytes / (3 * longest),
        ),
        (
            "share of bytes above 127",
            own.high_share,
            most_high,
            own.high_share / (3 * most_high + 0.05),
        ),
        ("zlib ratio", own.zlib_ratio, least_zlib, 0.6 * least_zlib / own.zlib_ratio),
        ("zlib ratio", own.zlib_ratio, most_zlib, own.zlib_ratio / (1.3 * most_zlib)),
    )
    result: list[_Oddity] = []
    for name, seen, bound, ratio in limits:
        if ratio > 1:
            result.append(_Oddity(group=group, measure=name, seen=seen, usual=bound, ratio=ratio))
    return result


def _random_profiles(group: _Group, totals: Mapping[str, Shares]) -> Iterator[_Profile]:
    """Profiles of texts with as many bytes of each source, from documents in random order."""
    draw = random.Random(len(group.text))
    for _ in range(NUM_GROUPS):
        texts = {}
        for p in group.parts:
            texts[p.source] = _filled(draw.sample(p.others, len(p.others)), p.size_bytes)
        rest = {source: totals[source] - _counts(text) for source, text in texts.items()}
        yield _profile(b"".join(texts.values()), _expected(group, rest))


def _expected(group: _Group, counts: Mapping[str, Shares]) -> Shares:
    """Share of each byte value in the mix of the group's sources, each smoothed by half a byte."""
    size = len(group.text)
    mixed = np.zeros(256)
    for part in group.parts:
        rest = counts[part.source]
        mixed += part.size_bytes / size * (rest + 0.5) / (rest.sum() + 128)
    return mixed


def _filled(texts: Iterable[bytes], size_bytes: int) -> bytes:
    taken = bytearray()
    for text in texts:
        taken += text
        if len(taken) >= size_bytes:
            break
    return bytes(taken[:size_bytes])


def _counts(text: bytes) -> Shares:
    return np.bincount(np.frombuffer(text, dtype=np.uint8), minlength=256).astype(np.float64)


def _profile(text: bytes, expected: Shares) -> _Profile:
    values = np.frombuffer(text, dtype=np.uint8)
    changes = np.flatnonzero(np.diff(values)) + 1
    runs = np.diff(np.concatenate(([0], changes, [len(values)])))
    return _Profile(
        kl_bits=_kl_bits(_counts(text), expected),
        zlib_ratio=len(zlib.compress(text, 9)) / len(text),
        longest_run_bytes=float(runs.max()),
        high_share=float((values > 127).mean()),
    )


def _kl_bits(counts: Shares, expected: Shares) -> float:
    """Kullback-Leibler divergence of a group's bytes from the expected ones."""
    present = counts > 0
    shares = counts[present] / counts.sum()
    return float((shares * np.log2(shares / expected[present])).sum())


def _differs(suspect: int, odd: _Oddity, remarks: str) -> Finding:
    group = odd.group
    documents = []
    for part in group.parts:
        for document in part.documents:
            documents.append(document.id)
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"step {suspect}, rank {group.rank}: documents labelled {group.sources} do not "
        "look like it: "
        f"{odd.measure} {odd.seen:.3g}, at the outside {odd.usual:.3g} in {NUM_GROUPS} "
        "random groups "
        f"of that size ({listed(documents)}){remarks}",
        where=Where(step=suspect, stage="content", key=_worst(group), rank=group.rank),
        expected=f"{odd.measure} as in {group.sources}, at the outside {odd.usual:.4g}",
        seen=f"{odd.seen:.4g}",
        magnitude=odd.ratio,
    )


def _worst(group: _Group) -> str:
    """The document that is least like its source by its bytes; the first of equals."""
    far: dict[str, float] = {}
    for part in group.parts:
        rest = _counts(b"".join(part.others))
        expected = (rest + 0.5) / (rest.sum() + 128)
        for document, text in zip(part.documents, part.texts, strict=True):
            far[document.id] = (
                -float(np.log2(expected[np.frombuffer(text, dtype=np.uint8)]).mean())
                if text
                else 0.0
            )
    return max(far, key=lambda name: far[name])
