"""Takes the credentials out of a copy while it is written: in which files, and piece by piece.

This module never opens a file, and lets no byte pass that it has not searched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from spiketriage.digests import Sink
from spiketriage.evidence import config_text
from spiketriage.redaction import HINTS, PEM_BEGIN, PEM_END, Patterns, Redacted, shapes

PIECE_BYTES = 4 << 20  # searched at once: a configuration is smaller, a log is cut between lines
MAX_PEM_BYTES = 1 << 16  # a private key is not cut in two: the largest has 13,000 bytes
CONFIGS = frozenset(
    {".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".env", ".properties", ".args"}
    | {".sh", ".bash", ".sbatch", ".slurm"}
)
_TEXT = frozenset(b"\0\a\b\t\n\v\f\r\x1b") | frozenset(range(0x20, 0x100))
_ZEROS = bytes(1 << 20)
_HINTS = tuple(hint.encode() for hint in HINTS)

Rule = Callable[[str], Redacted]


def rule_of(kind: str, source: Path, head: bytes, patterns: Patterns) -> Rule | None:
    """How credentials are found in a file of this kind of evidence that begins with `head`.

    None for what only our own side writes, and for what is no text: it may carry checksums.
    """
    if kind in ("config", "settings"):
        return partial(config_text.redacted, patterns=patterns)
    if kind not in ("log", "telemetry", "code") or not _TEXT.issuperset(head):
        return None
    if (source.suffix or source.name).lower() in CONFIGS:
        return partial(config_text.redacted, patterns=patterns)
    if patterns.values:
        return partial(shapes, patterns=patterns)
    return _shapes


class Redactor:
    """Takes chunks of a file and hands it on without its credentials; `finish` hands on the last.

    A file that has none is handed on byte by byte as it is, whatever its encoding.
    """

    def __init__(self, rule: Rule, put: Sink) -> None:
        self._rule, self._put = rule, put
        self._held = bytearray()
        self.num_values = 0

    def update(self, chunk: memoryview) -> None:
        """The next bytes."""
        if not self._held and chunk == _ZEROS[: len(chunk)]:  # a hole
            self._put(chunk)
            return
        self._held += chunk
        if len(self._held) >= PIECE_BYTES:
            self._hand_on(_cut(self._held))

    def finish(self) -> None:
        """There is no more."""
        self._hand_on(len(self._held))

    def _hand_on(self, num_bytes: int) -> None:
        piece = bytes(self._held[:num_bytes])
        del self._held[:num_bytes]
        if self._rule is _shapes and not any(hint in piece for hint in _HINTS):
            self._put(memoryview(piece))
            return
        redacted = self._rule(piece.decode("utf-8", "surrogateescape"))
        self.num_values += redacted.num_values
        self._put(memoryview(redacted.text.encode("utf-8", "surrogateescape")))


def _shapes(text: str) -> Redacted:
    return shapes(text)


def _cut(held: bytearray) -> int:
    """Where `held` may be cut: behind its last line, or word, and before a key that goes on."""
    for end in (b"\n", b"\r", b" ", b",", b"\0"):
        cut = held.rfind(end) + 1
        if cut:
            break
    else:
        return len(held)
    begin = held.rfind(PEM_BEGIN.encode(), max(0, cut - MAX_PEM_BYTES), cut)
    if begin >= 0 and held.find(PEM_END.encode(), begin, cut) < 0:
        return begin
    return cut
