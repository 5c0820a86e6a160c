"""Reads a worker's `error.json`, and the failure block that torchrun prints when a worker dies.

This module never takes a local rank for a rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from spiketriage.nouns.telemetry import Event, EventFacts, Severity
from spiketriage.readers.events.evidence_file import file_bytes
from spiketriage.readers.events.text_lines import TextLine, head_lines, integer, scan, short
from spiketriage.readers.events.untyped import mapping, whole
from spiketriage.readers.json_file import parse_object
from spiketriage.readers.look import Look, look_at_file

NAME = "torchrun-error"
TELLS = (
    "Exception of a worker, and whose death torchrun saw first, with host and exit code or signal."
)
CANNOT = (
    "Whether the first death seen is the cause, and the rank behind an error.json, which "
    "exists only with @record."
)
MAX_JSON_BYTES = 16 << 20  # one traceback
ROOT_CAUSE = "Root Cause (first observed failure)"
_FIELD = re.compile(r"(?:^|\s)(time|host|rank|exitcode|error_file|traceback)\s{0,6}: (.*)$")
_ENTRY = re.compile(r"\[\d{1,6}\]:\s*$")
_RANK = re.compile(r"(\d{1,9}) \(local_rank: (\d{1,9})\)")
_EXIT = re.compile(r"(-?\d{1,9})\s*\(pid: (\d{1,10})\)")


_FATAL: Severity = "fatal"
_ERROR: Severity = "error"


class FailureScanner:
    """Follows torchrun's failure block field by field."""

    def __init__(self) -> None:
        self._section = ""
        self._fields: dict[str, str] = {}
        self._line = 0
        self._source = ""

    def feed(self, line: TextLine, /) -> Iterator[Event]:
        """The event of the worker whose fields this line ends."""
        text = line.text
        if ROOT_CAUSE in text or text.rstrip().endswith("Failures:"):
            yield from self._close()
            self._section = "root" if ROOT_CAUSE in text else "other"
        elif not self._section:
            return
        elif "======" in text:
            yield from self._close()
            self._section = ""
        elif _ENTRY.search(text[-64:]):
            yield from self._close()
            self._line, self._source = line.number, line.source
        else:
            field = _FIELD.search(text[:4096])
            if field is not None:
                self._fields.setdefault(field[1], field[2].strip())

    def _close(self) -> Iterator[Event]:
        fields, self._fields = self._fields, {}
        rank, code = _RANK.match(fields.get("rank", "")), _EXIT.match(fields.get("exitcode", ""))
        if rank is None and code is None:
            return
        what, severity = "died", _ERROR
        if self._section == "root":
            what, severity = "died first, as far as torchrun saw", _FATAL
        who = f"rank {rank[1]} (local rank {rank[2]})" if rank else "a worker"
        exit_code = code[1] if code else "unknown"
        why = fields.get("traceback", "")
        yield Event(
            kind="worker-failure",
            severity=severity,
            sentence=short(f"{who} {what}: exit code {exit_code}; {why}"),
            source=self._source,
            line=self._line or None,
            at=fields.get("time", "")[:40],
            host=fields.get("host", "")[:255],
            rank=int(rank[1]) if rank else None,
            code=int(code[1]) if code else None,
        )

    def finish(self, events: list[Event], /) -> list[Event]:
        """A torn log ends inside the block."""
        return [*events, *self._close()]

    def identity(self) -> Mapping[str, str]:
        """Nothing."""
        return {}

    def problems(self) -> tuple[str, ...]:
        """Nothing: a line outside the block is somebody else's."""
        return ()

    def notes(self) -> tuple[str, ...]:
        """Nothing beyond `CANNOT`."""
        return ()


def _from_json(path: Path, content: Mapping[str, Any]) -> EventFacts:
    raised: Mapping[str, Any] = content
    if isinstance(content.get("message"), dict):
        raised = content["message"]
    message = raised.get("message")
    problems = []
    if not isinstance(message, str):
        problems.append(f"{path.name}: expected a message, found none")
    extra = mapping(raised.get("extraInfo"))
    stamp = str(extra.get("timestamp", ""))[:40]
    seconds = integer(stamp)
    event = Event(
        kind="worker-exception",
        severity="fatal",
        sentence=short(f"a worker raised {message or 'something that it did not name'}"),
        source=path.name,
        at=stamp,
        time_s=float(seconds) if seconds is not None else None,
        code=whole(raised.get("errorCode")),
    )
    identity = {}
    where = re.search(r"attempt_(\d{1,6})/(\d{1,6})/[^/]*$", path.as_posix())
    if where:
        identity = {"attempt": where[1], "local_rank": where[2]}
    if "py_callstack" in extra:
        identity["traceback"] = str(extra["py_callstack"])[-4000:]
    return EventFacts(
        format=NAME,
        path=path,
        events=(event,),
        identity=identity,
        problems=tuple(problems),
        notes=("error.json names no rank: the folder's number is the local rank on one node",),
    )


def claims(look: Look, /) -> float:
    """Sure of the shape of error.json and of torchrun's block."""
    lines = head_lines(look)
    if not lines:
        return 0.0
    start = look.head.lstrip()
    has_message = start.startswith(b"{") and b'"message"' in start[:64]
    if has_message and (b"py_callstack" in start or b"extraInfo" in start):
        return 0.97
    if any(ROOT_CAUSE in text for text in lines):
        return 0.9
    if start.startswith(b'{"message"') and look.path.name == "error.json":
        return 0.3
    return 0.0


def scanners() -> Iterable[FailureScanner]:
    """What has to see the lines of a launcher's output."""
    return (FailureScanner(),)


def read(path: Path, /) -> EventFacts:
    """The failures of workers.

    Raises:
        EvidenceError: it cannot be read, or is JSON without an object.
    """
    if not look_at_file(path).head.lstrip().startswith(b"{"):
        return scan(path, NAME, scanners())
    return _from_json(path, parse_object(path, file_bytes(path, MAX_JSON_BYTES)))
