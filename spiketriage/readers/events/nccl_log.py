"""Reads what NCCL and PyTorch's watchdog print.

Warnings, collective timeouts, aborts, also in the middle of a line.

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
    _Rule(
        needle="terminated with exception", kind="watchdog-abort", severity="fatal"
    ),  # repeats the timeout
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


class NcclScanner:
    """Finds warnings and timeouts anywhere in a line and remembers which process is which rank."""

    def __init__(self, *, source: str) -> None:
        self._source = source
        self._members: defaultdict[_Process, set[_Member]] = defaultdict(set)
        self._origins: dict[
            int, _Process
        ] = {}  # by the identity of an event that this scanner made
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
        if (
            "atchdog" in text
            or "NCCL" in text
            or "collective timeout" in text
            or "Heartbeat" in text
        ):
            yield from self._watchdog(line)

    def _remember(self, text: str) -> None:
        told = _INIT.search(text)
        if "NCCL INFO" in text:
            before = _PREFIX.search(text[: text.find("NCCL INFO")][-MAX_BEFORE:])
        else:
            before = None
        if told is None or before is None or len(self._members) >= MAX_PROCESSES:
            return
        process = _Process(host=before["host"], pid=before["pid"], device=told["device"])
        pci = from_nccl(told["bus"]) if told["bus"] else ""
        self._members[process].add(
            _Member(rank=int(told["rank"]), num_ranks=int(told["nranks"]), pci=pci)
        )

    def _warnings(self, line: TextLine) -> Iterator[Event]:
        found = list(re.finditer("NCCL WARN ", line.text))
        starts = [match.start() for match in found] + [len(line.text)]
        begin = 0
        for match, until in zip(found, starts[1:], strict=True):
            before = _PREFIX.search(
                line.text[max(begin, match.start() - MAX_BEFORE) : match.start()]
            )
            begin = match.end()
            message = own_part(line.text[match.end() : min(until, match.end() + MAX_MESSAGE)])
            yield self._warning(message, before, line)

    def _warning(self, message: str, before: re.Match[str] | None, line: TextLine) -> Event:
        if before and before["device"]:
            device = before["device"]
        else:
            device = ""
        if before and before["file"]:
            place = f" at {before['file']}"
        else:
            place = ""
        event = Event(
            kind="nccl-warning",
            severity="warning",
            sentence=short(f"NCCL warns{place}: {message}"),
            source=line.source,
            line=line.number,
            at=(before["at"] or "") if before else "",
            host=before["host"] if before else "",
            device=f"cuda:{device}" if device else "",
        )
        if before and len(self._made) < MAX_EVENTS:
            self._origins[id(event)] = _Process(
                host=before["host"], pid=before["pid"], device=device
            )
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

        def checked(told: re.Match[str]) -> str:
            value = integer(told[2])
            if value is not None and -1 <= value < 1 << 53:
                return told[0]
            self._num_garbage += 1
            self._first_garbage = (
                self._first_garbage or f"line {number}: {told[1]} work {short(told[2])[:40]}"
            )
            return f"{told[1]} work: unknown (an uninitialised number is printed)"

        return _COUNTERS.sub(checked, message)

    def finish(self, events: list[Event], /) -> list[Event]:
        """Give warnings the rank and address of their process, where the whole log knows them."""
        most = max(
            (member.num_ranks for members in self._members.values() for member in members),
            default=0,
        )
        return [self._named(event, most) for event in events]

    def _named(self, event: Event, most: int) -> Event:
        process = self._origins.get(id(event))
        if process:
            members = self._members.get(process, set())
        else:
            members = set()
        ranks = {member.rank for member in members if member.num_ranks == most}
        addresses = {member.pci for member in members if member.pci}
        if len(ranks) == 1:
            event = replace(event, rank=ranks.pop())
        if len(addresses) == 1:
            return replace(event, device=addresses.pop())
        return event

    def identity(self) -> Mapping[str, str]:
        """The size of the largest communicator."""
        most = max(
            (member.num_ranks for members in self._members.values() for member in members),
            default=0,
        )
        if most:
            return {"num_ranks_of_largest_communicator": str(most)}
        return {}

    def problems(self) -> tuple[str, ...]:
        """How many counters were garbage."""
        told = (
            f"{self._source}: {self._num_garbage} counters of finished work are no counts, the "
            "first in "
        )
        if self._num_garbage:
            return (told + self._first_garbage,)
        return ()

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
    found = None
    for match in pattern.finditer(text):
        found = match
    return found


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
