"""Reads what NCCL and PyTorch's watchdog print: warnings, timeouts, aborts, also inside a line.

This module never takes NCCL's `[n]` for a rank, it is a device, and never believes a counter that
counts nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from spiketriage.nouns.telemetry import Event, EventFacts, Severity
from spiketriage.readers.events.pci import from_nccl
from spiketriage.readers.events.text_lines import (
    MAX_EVENTS,
    TextLine,
    head_lines,
    integer,
    scan,
    short,
)
from spiketriage.readers.look import Look

NAME = "nccl-log"
TELLS = (
    "NCCL warnings by host, process and device, and collectives that PyTorch's watchdog timed "
    "out, by rank."
)
CANNOT = (
    "Which rank was late (only which waited), and the rank behind a warning without "
    "NCCL_DEBUG=INFO's Init lines."
)
MAX_BEFORE = 700  # how far before `NCCL WARN` its own prefix may begin
MAX_MESSAGE = 4096
MAX_PROCESSES = 100_000
_PREFIX = re.compile(
    r"(?:\[(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?)\] )?"
    r"(?P<host>[^\s:\[\]]{1,255}):(?P<pid>\d{1,10}):\d{1,10}"
    r"(?: \[(?P<device>\d{1,4})\])? (?:\[[^\]]{1,80}\] )?(?:(?P<file>[\w./-]{1,200}:\d{1,6}) )?$"
)
_INIT = re.compile(
    r"rank (?P<rank>\d{1,9}) nranks (?P<nranks>\d{1,9}) cudaDev (?P<device>\d{1,4})(?: "
    r"nvmlDev \d{1,4})?"
    r"(?: busId (?P<bus>[0-9a-fA-F]{1,12}))?.{0,80}? Init (?:COMPLETE|START)"
)
_OTHER_MESSAGE = re.compile(
    r"\[rank\d{1,9}\]:\[|\[[EWI]\d{4} \d\d:\d\d|[^\s:]{1,255}:\d{1,10}:\d{1,10} \[\d{1,4}\] "
)
_RANK = re.compile(r"\[rank(\d{1,9})\]:")
_GLOG = re.compile(r"\[[EWIF](\d{4,8} \d\d:\d\d:\d\d\.\d{1,9})")
_WORK = re.compile(
    r"WorkNCCL\(SeqNum=(?P<number>\d+)?,? "
    r"?(?:OpType=(?P<operation>\w{1,64}))?(?P<rest>[^)]*\)[^)]*\))?"
)
_COUNTERS = re.compile(r"(last enqueued|last completed)(?: NCCL)? work: (-?\d+)", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    """The process and device that a warning came from; one process may drive several devices."""

    host: str
    pid: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A process's place in a communicator."""

    rank: int
    num_ranks: int
    pci: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """A sentence of PyTorch's that reports trouble; what comes first in the table wins."""

    needle: str
    kind: str
    severity: Severity


_RULES = (
    # It repeats the timeout, and so comes before it.
    _Rule(needle="terminated with exception", kind="watchdog-abort", severity="fatal"),
    _Rule(
        needle="Watchdog caught collective operation timeout",
        kind="collective-timeout",
        severity="fatal",
    ),
    _Rule(needle="Timeout at NCCL work", kind="collective-progress", severity="error"),
    _Rule(needle="detected by watchdog at work", kind="collective-progress", severity="error"),
    _Rule(
        needle="Received a dump signal due to a collective timeout",
        kind="dump-signal",
        severity="info",
    ),
    _Rule(needle="Heartbeat monitor timed out", kind="heartbeat-timeout", severity="fatal"),
    _Rule(needle="DistBackendError: NCCL error", kind="nccl-error", severity="fatal"),
    _Rule(needle="Watchdog caught exception", kind="watchdog-abort", severity="fatal"),
)


_WATCHDOG_WORDS = ("atchdog", "NCCL", "collective timeout", "Heartbeat")


class NcclScanner:
    """Finds warnings and timeouts anywhere in a line and remembers which process is which rank."""

    def __init__(self, *, source: str) -> None:
        self._source = source
        self._members: defaultdict[_Process, set[_Member]] = defaultdict(set)
        # By the identity of an event that this scanner made.
        self._origins: dict[int, _Process] = {}
        self._made: list[Event] = []  # keeps those identities taken
        self._num_garbage = 0
        self._first_garbage = ""

    def feed(self, line: TextLine, /) -> Iterator[Event]:
        """Every warning and watchdog sentence of the line."""
        text = line.text
        if " Init " in text and "nranks" in text:
            self._remember(text)
        if "NCCL WARN " in text:
            yield from self._warnings(line)
        if any(word in text for word in _WATCHDOG_WORDS):
            yield from self._watchdog(line)

    def _remember(self, text: str) -> None:
        head, mark, _ = text.partition("NCCL INFO")
        if not mark or len(self._members) >= MAX_PROCESSES:
            return
        init, before = _INIT.search(text), _PREFIX.search(head[-MAX_BEFORE:])
        if init is None or before is None:
            return
        process = _Process(host=before["host"], pid=before["pid"], device=init["device"])
        pci = from_nccl(init["bus"]) if init["bus"] else ""
        member = _Member(rank=int(init["rank"]), num_ranks=int(init["nranks"]), pci=pci)
        self._members[process].add(member)

    def _warnings(self, line: TextLine) -> Iterator[Event]:
        head, *messages = line.text.split("NCCL WARN ")
        for message in messages:
            before = _PREFIX.search(head[-MAX_BEFORE:])
            yield self._warning(own_part(message[:MAX_MESSAGE]), before, line)
            head = message

    def _warning(self, message: str, before: re.Match[str] | None, line: TextLine) -> Event:
        event = Event(
            kind="nccl-warning",
            severity="warning",
            sentence=short(f"NCCL warns: {message}"),
            source=line.source,
            line=line.number,
        )
        if before is None:
            return event
        at, host, pid, device, file = before.group("at", "host", "pid", "device", "file")
        event = replace(event, at=at or "", host=host)
        if file:
            event = replace(event, sentence=short(f"NCCL warns at {file}: {message}"))
        if device:
            event = replace(event, device=f"cuda:{device}")
        if len(self._made) < MAX_EVENTS:
            self._origins[id(event)] = _Process(host=host, pid=pid, device=device or "")
            self._made.append(event)
        return event

    def _watchdog(self, line: TextLine) -> Iterator[Event]:
        rule = next((rule for rule in _RULES if rule.needle in line.text), None)
        if rule is None:
            return
        begin = 0
        while (start := line.text.find(rule.needle, begin)) >= 0:
            before = line.text[max(begin, start - MAX_BEFORE) : start]
            begin = start + len(rule.needle)
            after = line.text.find(rule.needle, begin)
            until = min(len(line.text) if after < 0 else after, start + MAX_MESSAGE)
            message = own_part(line.text[start:until])
            rank, stamp = last(_RANK, before), last(_GLOG, before)
            work = _WORK.search(message)
            yield Event(
                kind=rule.kind,
                severity=rule.severity,
                sentence=short(self._without_garbage(message, line.number)),
                source=line.source,
                line=line.number,
                at=stamp[1] if stamp else "",
                rank=int(rank[1]) if rank else None,
                code=integer(work["number"]) if work else None,
            )

    def _without_garbage(self, message: str, number: int) -> str:
        """The message with counters that are no counts (uninitialised memory) marked as such."""

        def checked(counter: re.Match[str]) -> str:
            value = integer(counter[2])
            if value is not None and -1 <= value < 1 << 53:
                return counter[0]
            if not self._num_garbage:
                text = short(counter[2])[:40]
                self._first_garbage = f"line {number}: {counter[1]} work {text}"
            self._num_garbage += 1
            return f"{counter[1]} work: unknown (an uninitialised number is printed)"

        return _COUNTERS.sub(checked, message)

    def finish(self, events: list[Event], /) -> list[Event]:
        """Give warnings the rank and address of their process, where the whole log knows them."""
        num_ranks = self._num_ranks()
        return [self._named(event, num_ranks) for event in events]

    def _num_ranks(self) -> int:
        """The size of the largest communicator; 0 where none is known."""
        most = 0
        for members in self._members.values():
            for member in members:
                most = max(most, member.num_ranks)
        return most

    def _named(self, event: Event, num_ranks: int) -> Event:
        process = self._origins.get(id(event))
        if process is None:
            return event
        members = self._members.get(process, set())
        ranks = {member.rank for member in members if member.num_ranks == num_ranks}
        addresses = {member.pci for member in members if member.pci}
        if len(ranks) == 1:
            event = replace(event, rank=ranks.pop())
        if len(addresses) == 1:
            return replace(event, device=addresses.pop())
        return event

    def identity(self) -> Mapping[str, str]:
        """The size of the largest communicator."""
        num_ranks = self._num_ranks()
        if num_ranks:
            return {"num_ranks_of_largest_communicator": str(num_ranks)}
        return {}

    def problems(self) -> tuple[str, ...]:
        """How many counters were garbage."""
        if not self._num_garbage:
            return ()
        return (
            f"{self._source}: {self._num_garbage} counters of finished work are no counts, the "
            f"first in {self._first_garbage}",
        )

    def notes(self) -> tuple[str, ...]:
        """Where ranks come from."""
        if self._members:
            return (
                "ranks of NCCL warnings are those in the largest communicator that the log shows",
            )
        if self._origins:
            return ("the log has no NCCL Init lines, so NCCL warnings name a device and no rank",)
        return ()


def own_part(message: str) -> str:
    """`message` up to where another process's message begins in the middle of it."""
    other = _OTHER_MESSAGE.search(message)
    if other:
        return message[: other.start()]
    return message


def last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last match in `text`: the prefix nearest to a message is its own."""
    nearest = None
    for match in pattern.finditer(text):
        nearest = match
    return nearest


def claims(look: Look, /) -> float:
    """Sure where most lines are NCCL's or the watchdog's."""
    lines = head_lines(look)
    num_own = sum(" NCCL " in text or "ProcessGroupNCCL" in text for text in lines)
    if not num_own:
        if lines and "nccl" in look.path.name.lower():
            return 0.3
        return 0.0
    if num_own * 2 >= len(lines):
        return 0.9
    return 0.4


def scanners(source: str) -> Iterable[NcclScanner]:
    """What has to see the lines of such a log."""
    return (NcclScanner(source=source),)


def read(path: Path, /) -> EventFacts:
    """Every warning and timeout.

    Raises:
        EvidenceError: it cannot be read.
    """
    return scan(path, NAME, scanners(path.name))
