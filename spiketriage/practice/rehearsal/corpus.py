"""Short documents of several kinds, cut from the public-domain texts that ship with the package.

It never reads anything outside the package; `texts/PROVENANCE.md` says where each text comes from.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from importlib import resources

MIN_BYTES, MAX_BYTES = 24, 63
MIN_DISTINCT_BYTES = 10
RARE_SOURCE = "table"

# Fixed mixture weights of an ordinary run, by source.
WEIGHTS: dict[str, float] = {
    "scripture": 0.36,
    "jargon": 0.29,
    "code": 0.22,
    "law": 0.10,
    RARE_SOURCE: 0.03,
}


@dataclass(slots=True, kw_only=True)
class PlannedDocument:
    """One document before it is written: its source and its bytes."""

    source: str
    data: bytes


def cut(text: str, chooser: random.Random) -> list[bytes]:
    """`text` cut at white space into pieces of `MIN_BYTES..MAX_BYTES` bytes, in order."""
    pieces: list[bytes] = []
    piece, goal = b"", chooser.randint(MIN_BYTES, MAX_BYTES)
    for word in text.split(" "):
        grown = (piece + b" " if piece else b"") + word.encode()
        if len(grown) > goal and len(piece) >= MIN_BYTES:
            if is_text(piece):
                pieces.append(piece)
            grown, goal = word.encode(), chooser.randint(MIN_BYTES, MAX_BYTES)
        piece = grown[:MAX_BYTES]
    return pieces


def is_text(piece: bytes) -> bool:
    """Whether a piece is text; rulers and ASCII art are clean, but spikes of their own."""
    letters = sum(byte > 127 or chr(byte).isalpha() for byte in piece)
    return len(set(piece)) >= MIN_DISTINCT_BYTES and 2 * letters >= len(piece)


class Corpus:
    """Documents of every source, handed out in order from a place that the seed chooses."""

    def __init__(self, seed: int) -> None:
        self.chooser = random.Random(f"{seed}/corpus")
        folder = resources.files("spiketriage.practice.rehearsal") / "texts"
        self.pieces = {
            source: cut((folder / f"{source}.txt").read_text(encoding="utf-8"), self.chooser)
            for source in WEIGHTS
        }
        self.next = {}
        for source, pieces in self.pieces.items():
            self.next[source] = self.chooser.randrange(len(pieces))

    def take(self, source: str) -> PlannedDocument:
        """The next document of `source`."""
        pieces = self.pieces[source]
        data = pieces[self.next[source] % len(pieces)]
        self.next[source] += 1
        return PlannedDocument(source=source, data=data)

    def mix(self, number: int) -> list[PlannedDocument]:
        """`number` documents drawn by `WEIGHTS`, in the order in which they will be consumed.

        The rare source is spread evenly: two of its documents in one small batch would be a spike
        of their own.
        """
        common = {source: weight for source, weight in WEIGHTS.items() if source != RARE_SOURCE}
        sources = self.chooser.choices(tuple(common), weights=tuple(common.values()), k=number)
        stride = round(1 / WEIGHTS[RARE_SOURCE])
        for start in range(0, number, stride):
            sources[min(number - 1, start + self.chooser.randrange(stride // 2))] = RARE_SOURCE
        return [self.take(source) for source in sources]

    def fill(self, source: str, length_bytes: int) -> bytes:
        """Exactly `length_bytes` of the next text of `source`."""
        data = b""
        while len(data) < length_bytes:
            data += (b" " if data else b"") + self.take(source).data
        return data[:length_bytes]
