"""Reads kernel logs for what befell GPUs, processes, PCIe and memory.

A kernel log is the output of dmesg, of journalctl as text or JSON, or a syslog.

This module never decides which training rank a device belongs to: the kernel does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from spiketriage.nouns.telemetry import Event, EventFacts
from spiketriage.readers.events.kernel_rules import RULES, Finding, fallen, finding
from spiketriage.readers.events.kernel_stamp import JOURNAL_MARK, KernelLine, kernel_line
from spiketriage.readers.events.pci import ADDRESS, pci_device
from spiketriage.readers.events.text_lines import TextLine, head_lines, scan, short
from spiketriage.readers.look import Look

NAME = "kernel-log"
TELLS = (
    "Xid and SXid errors with their documented meaning, GPUs off the bus, OOM kills, crashes, "
    "PCIe and MCE errors."
)
CANNOT = "Which rank a device belonged to, and the time zone of relative and ctime stamps."
MAX_PROBLEMS = 20
MAX_MESSAGE = 8192  # the kernel itself cuts a message at about 1,000 characters
# Lines over which the driver spreads 'GPU … installed in this system has fallen off the bus'.
_MULTILINE = 5
_NEEDLES = (*RULES, "NVRM", JOURNAL_MARK)  # a line without any of these is not worth taking apart
_NAMED_GPU = re.compile(rf"NVRM: The NVIDIA GPU (?:PCI:)?({ADDRESS})")
_UUID = re.compile(rf"NVRM: GPU at (?:PCI:)?({ADDRESS}): (GPU-[0-9a-fA-F-]{{36}})")


class KernelScanner:
    """Finds events in kernel messages."""

    def __init__(self, *, source: str) -> None:
        self._source = source
        self._named: str = ""
        self._named_on = -_MULTILINE
        self._uuids: dict[str, str] = {}
        self._unread: list[str] = []
        self._num_zoneless = 0

    def feed(self, line: TextLine, /) -> Iterator[Event]:
        """The event of this line, if it reports one."""
        if not any(needle in line.text for needle in _NEEDLES):
            return
        kernel = kernel_line(line.text)
        message = kernel.message[:MAX_MESSAGE]
        if "NVRM" in message:
            self._remember(message, line.number)
        reported = finding(message) or self._multiline(message, line.number)
        if reported is not None:
            self._num_zoneless += kernel.time_s is None
            yield _event(reported, kernel, line)
        elif "NVRM: Xid" in message and len(self._unread) < MAX_PROBLEMS:
            self._unread.append(
                f"{self._source} line {line.number}: expected an Xid and its device, found "
                f"{short(message)}"
            )

    def _remember(self, message: str, number: int) -> None:
        named = _NAMED_GPU.search(message)
        if named:
            self._named, self._named_on = pci_device(named[1]), number
        uuid = _UUID.search(message)
        if uuid and len(self._uuids) < 1024:
            self._uuids[f"uuid of GPU {pci_device(uuid[1])}"] = uuid[2]

    def _multiline(self, message: str, number: int) -> Finding | None:
        if "fallen off the bus" not in message:
            return None
        return fallen(self._named if number - self._named_on <= _MULTILINE else "")

    def finish(self, events: list[Event], /) -> list[Event]:
        """Nothing of a kernel log depends on its end."""
        return events

    def identity(self) -> Mapping[str, str]:
        """The UUIDs of the GPUs by their address."""
        return self._uuids

    def problems(self) -> tuple[str, ...]:
        """The Xid lines that could not be read."""
        return tuple(self._unread)

    def notes(self) -> tuple[str, ...]:
        """That stamps without a zone are no points in time."""
        if not self._num_zoneless:
            return ()
        return (
            f"{self._source}: {self._num_zoneless} events have a stamp without a time zone, so "
            "no UNIX time",
        )


def _event(reported: Finding, kernel: KernelLine, line: TextLine) -> Event:
    return Event(
        kind=reported.kind,
        severity=reported.severity,
        sentence=reported.sentence,
        source=line.source,
        line=line.number,
        at=kernel.at,
        time_s=kernel.time_s,
        host=kernel.host,
        device=reported.device,
        code=reported.code,
    )


def claims(look: Look, /) -> float:
    """Sure of driver messages and journal entries, convinced by the kernel's stamps."""
    lines = head_lines(look)
    parsed = list(map(kernel_line, lines))
    if any("NVRM: " in kernel.message and kernel.stamped for kernel in parsed):
        return 0.95
    if any(JOURNAL_MARK in text and text.startswith("{") for text in lines):
        return 0.95
    num_stamped = num_reported = 0
    for kernel, text in zip(parsed, lines, strict=True):
        num_stamped += kernel.stamped and _is_kernel(text)
        num_reported += finding(kernel.message) is not None
    if num_stamped and num_stamped * 2 >= len(lines):
        return 0.8
    if num_reported * 2 >= len(lines) > 0:
        return 0.6
    if num_reported:
        return 0.4  # among others' lines: it is a job's whole output
    if lines and re.search(r"dmesg|kern\.log|journal|syslog", look.path.name):
        return 0.3
    return 0.0


def _is_kernel(text: str) -> bool:
    return (
        re.match(r"\[\s*\d{1,10}\.\d{6}\] |kern\s*:|\[[A-Z][a-z]{2} [A-Z]", text) is not None
        or " kernel: " in text
    )


def scanners(source: str) -> Iterable[KernelScanner]:
    """What has to see the lines of a kernel log."""
    return (KernelScanner(source=source),)


def read(path: Path, /) -> EventFacts:
    """Every event of the log.

    Raises:
        EvidenceError: it cannot be read.
    """
    return scan(
        path,
        NAME,
        scanners(path.name),
        notes=("the kernel does not know ranks: match devices instead",),
    )
