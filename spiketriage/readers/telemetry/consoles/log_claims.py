"""How sure a text format can be of a file, by its lines in the head and in a few probes further in.

This module never reads more than four megabytes of a file and never raises.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from functools import lru_cache

from spiketriage.readers.look import HEAD_BYTES, Look
from spiketriage.readers.telemetry.consoles.text_lines import TextLine, peel
from spiketriage.readers.telemetry.series.lines import MAX_LINE_CHARS, clean, encoding_of

PROBE_BYTES = 1 << 20
NUM_PROBES = 4
SURE = 0.95
LIKELY = 0.8
NUM_SURE_LINES = 3
# have readers of their own: no need to look at every line
_DATA = (".json", ".jsonl", ".ndjson", ".csv")


def claim(
    seen: Look,
    anchors: tuple[str, ...],
    is_line: Callable[[TextLine], object],
    *,
    sure: float = SURE,
) -> float:
    """`sure` from three lines of the format on, less for one or two, 0 where there is none."""
    if seen.is_folder or seen.is_lfs_pointer or seen.is_source or seen.path.suffix.lower() in _DATA:
        return 0.0
    if encoding_of(seen.head) is None:
        return 0.0
    num_lines = 0
    for line in sample(seen):
        if any(anchor in line.text for anchor in anchors) and is_line(line):
            num_lines += 1
            if num_lines >= NUM_SURE_LINES:
                return sure
    return min(sure, LIKELY) if num_lines else 0.0


@lru_cache(maxsize=1)  # every format asks about the same file
def sample(seen: Look) -> tuple[TextLine, ...]:
    """Lines from the beginning, from two places in the middle, and from the end of a file."""
    encoding = encoding_of(seen.head) or "utf-8"
    if encoding == "utf-16":  # a probe in the middle has no byte order mark
        is_big = seen.head.startswith(codecs.BOM_UTF16_BE)
        encoding = "utf-16-be" if is_big else "utf-16-le"
    lines: list[TextLine] = []
    for data in _probes(seen):
        text = clean(data.decode(encoding, errors="replace")).removeprefix("\ufeff")
        for line in text.replace("\r", "\n").split("\n"):
            if line and len(line) <= MAX_LINE_CHARS:
                lines.append(peel(line))
    return tuple(lines)


def _probes(seen: Look) -> list[bytes]:
    if seen.size_bytes <= HEAD_BYTES:
        return [seen.head]
    last = max(seen.size_bytes - PROBE_BYTES, 0)
    # even places, so that UTF-16 stays whole
    starts = sorted({at * last // (NUM_PROBES - 1) & ~1 for at in range(NUM_PROBES)})
    try:
        with seen.path.open("rb", buffering=0) as stream:
            probes = []
            for start in starts:
                stream.seek(start)
                probes.append(stream.read(PROBE_BYTES))
            return probes
    except OSError:
        return [seen.head]
