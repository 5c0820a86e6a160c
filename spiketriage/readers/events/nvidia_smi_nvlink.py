"""Reads the text of `nvidia-smi nvlink` (-s: state and speed of each link; -e: its error counters).

This module never runs nvidia-smi; without a baseline it cannot say when a link changed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spiketriage.nouns.telemetry import Event, EventFacts, Severity
from spiketriage.readers.events.text_lines import TextLine, head_lines, integer, scan, short
from spiketriage.readers.look import Look

NAME = "nvidia-smi-nvlink"
TELLS = "State and speed of every NVLink of every GPU, and its error counters where -e was used."
CANNOT = "When a link went down, and what is at its other end."
MAX_GPUS = 4096
_GPU = re.compile(r"\A\s*GPU (\d{1,6}): (.{0,200}?) ?\(UUID: ([^)]{1,64})\)")
_LINK = re.compile(r"\A\s*Link (\d{1,4}): (.{1,100})$")
_SPEED = re.compile(r"([\d.]{1,12}) GB/s$")
_ERRORS = re.compile(r"\A([A-Za-z ]{0,60}Errors?[A-Za-z ]{0,60}): (\S{1,40})$")


@dataclass(slots=True)
class _Gpu:
    index: str
    name: str
    uuid: str
    speeds: dict[str, str] = field(default_factory=dict)


class NvlinkScanner:
    """Follows which GPU the link lines belong to."""

    def __init__(self, *, source: str) -> None:
        self._source = source
        self._gpus: list[_Gpu] = []
        self._problems: list[str] = []

    def feed(self, line: TextLine, /) -> Iterator[Event]:
        """The event of a link that is down or counts errors."""
        gpu = _GPU.match(line.text)
        if gpu and len(self._gpus) < MAX_GPUS:
            self._gpus.append(_Gpu(index=gpu[1], name=gpu[2], uuid=gpu[3]))
            return
        link = _LINK.match(line.text)
        if link and self._gpus:
            yield from self._link(self._gpus[-1], link[1], link[2].strip(), line)

    def _link(self, gpu: _Gpu, number: str, state: str, line: TextLine) -> Iterator[Event]:
        name = f"NVLink {number} of GPU {gpu.index}"
        speed, errors = _SPEED.match(state), _ERRORS.match(state)
        if speed:
            gpu.speeds[number] = speed[1]
        elif errors:
            what, written = errors[1].strip(), errors[2]
            count = integer(written)
            if count is None and written != "N/A" and len(self._problems) < MAX_GPUS:
                self._problems.append(
                    f"{self._source} line {line.number}: expected a count, found {written!r}"
                )
            if count:
                yield _event("nvlink-errors", "warning", f"{name}: {count} {what}", gpu, line)
        elif "inactive" in state.lower():
            gpu.speeds[number] = "inactive"
            yield _event("nvlink-inactive", "error", f"{name} is down", gpu, line)

    def finish(self, events: list[Event], /) -> list[Event]:
        """Add the GPUs that have fewer links than the others."""
        num_links = [len(gpu.speeds) for gpu in self._gpus if gpu.speeds]
        if not num_links:
            return events
        [(usual, _)] = Counter(num_links).most_common(1)
        for gpu in self._gpus:
            if 0 < len(gpu.speeds) < usual:
                seen = f"lists {len(gpu.speeds)} NVLinks where others list {usual}"
                sentence = f"GPU {gpu.index} {seen}"
                events.append(
                    Event(
                        kind="nvlink-missing",
                        severity="error",
                        sentence=sentence,
                        source=self._source,
                        device=f"gpu:{gpu.index}",
                    )
                )
        return events

    def identity(self) -> Mapping[str, str]:
        """Each GPU's name and UUID, and its links by speed in GB/s."""
        identity = {"num_gpus": str(len(self._gpus))}
        for gpu in self._gpus:
            speeds = Counter(gpu.speeds.values())
            links = ", ".join(f"{count} x {speed}" for speed, count in speeds.items())
            identity[f"gpu:{gpu.index} name"] = gpu.name
            identity[f"gpu:{gpu.index} uuid"] = gpu.uuid
            identity[f"gpu:{gpu.index} links"] = short(links)
        return identity

    def problems(self) -> tuple[str, ...]:
        """Counters that are no numbers, and a file without GPUs."""
        if self._gpus:
            return tuple(self._problems)
        expected = "expected lines 'GPU n: name (UUID: …)', found none"
        return (f"{self._source}: {expected}", *self._problems)

    def notes(self) -> tuple[str, ...]:
        """Nothing beyond `CANNOT`."""
        return ()


def _event(kind: str, severity: Severity, sentence: str, gpu: _Gpu, line: TextLine) -> Event:
    return Event(
        kind=kind,
        severity=severity,
        sentence=sentence,
        source=line.source,
        line=line.number,
        device=f"gpu:{gpu.index}",
    )


def claims(look: Look, /) -> float:
    """Sure of a GPU line that a link line follows."""
    lines = head_lines(look)
    if not lines or not _GPU.match(lines[0]):
        return 0.0
    if any(map(_LINK.match, lines)):
        return 0.95
    return 0.3


def read(path: Path, /) -> EventFacts:
    """The links that are down, count errors, or are missing.

    Raises:
        EvidenceError: it cannot be read.
    """
    return scan(path, NAME, (NvlinkScanner(source=path.name),))
