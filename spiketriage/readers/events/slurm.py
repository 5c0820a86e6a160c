"""Reads what Slurm says of a job.

`sacct --json`, `scontrol show job`, and its own lines in a job's output.

This module never asks a Slurm daemon and never takes a Slurm task for a rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from spiketriage.errors import CorruptFileError
from spiketriage.nouns.telemetry import Event, EventFacts, Severity
from spiketriage.readers.events.evidence_file import file_bytes
from spiketriage.readers.events.text_lines import (
    EventList,
    TextLine,
    head_lines,
    integer,
    scan,
    short,
)
from spiketriage.readers.events.untyped import mapping, sequence, whole
from spiketriage.readers.json_file import parse_object
from spiketriage.readers.look import Look, look_at_file

NAME = "slurm"
TELLS = (
    "Why the scheduler ended a job: node failure, preemption, memory, time limit or cancellation."
)
CANNOT = "Which rank failed first, and the time zone of scontrol's and slurmstepd's stamps."
MAX_JSON_BYTES = 256 << 20  # some 50,000 jobs
_STATES: Mapping[str, Severity] = {
    "NODE_FAIL": "fatal",
    "BOOT_FAIL": "fatal",
    "LAUNCH_FAILED": "fatal",
    "OUT_OF_MEMORY": "fatal",
    "FAILED": "error",
    "TIMEOUT": "error",
    "DEADLINE": "error",
    "CANCELLED": "warning",
    "PREEMPTED": "warning",
    "REQUEUED": "warning",
}
_STEPD = re.compile(
    r"\*\*\* (JOB|STEP) (\S{1,40}) ON (\S{1,255}) (CANCELLED|FAILED)(?: AT "
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d))?"
    r"(?: DUE TO (.{1,80}?))? ?\*\*\*"
)
_OOM = re.compile(r"Detected (\d{1,9}) oom[_-]kill event")
_SRUN = re.compile(r"srun: error: (\S{1,255}): (tasks? [\d,\-\[\]]{1,200}): (.{1,200})")
_NODE = re.compile(r"srun: error: Node failure on (\S{1,255})")
_REASONS = (
    ("TIME LIMIT", "TIMEOUT"),
    ("PREEMPT", "PREEMPTED"),
    ("NODE FAIL", "NODE_FAIL"),
    ("MEMORY", "OUT_OF_MEMORY"),
)
_PAIR = re.compile(r"(?:^|\s)([A-Z][A-Za-z:/]{1,40})=(\S*)")
_SAID = re.compile(r"JobId=(\d{1,18})")


def kind(state: str) -> str:
    """The kind of an event for a Slurm state: `slurm-node-fail` and the like."""
    return f"slurm-{state.lower().replace('_', '-')}"


class SlurmScanner:
    """Finds slurmstepd's and srun's lines, and the records of `scontrol show job`."""

    def __init__(self) -> None:
        self._record: dict[str, str] = {}
        self._line = 0
        self._source = ""
        self._identity: dict[str, str] = {}

    def feed(self, line: TextLine, /) -> Iterator[Event]:
        """The event of the line; a record's event comes when the next record begins."""
        if line.text.startswith("JobId=") and _SAID.match(line.text):
            yield from self._close()
            self._line, self._source = line.number, line.source
        if self._line and len(self._record) < 500 and "=" in line.text:
            self._record |= {key: value[:200] for key, value in _PAIR.findall(line.text[:4096])}
        yield from _job_line(line)

    def _close(self) -> Iterator[Event]:
        record, self._record = self._record, {}
        if "JobState" not in record:
            return
        for key in ("JobId", "JobName", "NodeList", "Restarts", "NumNodes"):
            if record.get(key):
                self._identity[f"{key} of job {record.get('JobId', '?')}"] = record[key]
        event = _ended(
            record["JobState"].split("+")[0],
            job=record.get("JobId", "?"),
            why=f"reason {record.get('Reason', 'None')}, exit code "
            f"{record.get('ExitCode', 'unknown')}",
            nodes=record.get("NodeList", ""),
            at=record.get("EndTime", ""),
            source=self._source,
            line=self._line,
            code=integer(record.get("ExitCode", "").split(":")[0]),
        )
        if event is not None:
            yield event

    def finish(self, events: list[Event], /) -> list[Event]:
        """The last record has no next one to close it."""
        return [*events, *self._close()]

    def identity(self) -> Mapping[str, str]:
        """Name, nodes and restarts of the jobs."""
        return self._identity

    def problems(self) -> tuple[str, ...]:
        """Nothing: a line that is not Slurm's is somebody else's."""
        return ()

    def notes(self) -> tuple[str, ...]:
        """Nothing beyond `CANNOT`."""
        return ()


def _job_line(line: TextLine) -> Iterator[Event]:
    text = line.text
    if "*** " in text and (told := _STEPD.search(text)):
        why = told[6] or ""
        state = next((state for needle, state in _REASONS if needle in why), told[4])
        ended = f"{told[1].lower()} {told[2]} {told[4].lower()}" + (
            f" due to {why.lower()}" if why else ""
        )
        yield _event(state, ended, line, told[3], at=told[5] or "")
    elif "oom" in text and (told := _OOM.search(text)):
        where = text[told.end() : told.end() + 200]
        yield _event("OUT_OF_MEMORY", f"{told[1]} out-of-memory kills{where}", line)
    elif "srun: error" in text and (told := _NODE.search(text)):
        yield _event("NODE_FAIL", f"node failure on {told[1]}", line, told[1])
    elif "srun: error" in text and (told := _SRUN.search(text)):
        state = "OUT_OF_MEMORY" if "Out Of Memory" in told[3] else "FAILED"
        yield _event(state, f"{told[2]}: {told[3]}", line, told[1])


def _event(state: str, sentence: str, line: TextLine, host: str = "", at: str = "") -> Event:
    return Event(
        kind=kind(state),
        severity=_STATES.get(state, "warning"),
        sentence=short(f"Slurm: {sentence}"),
        source=line.source,
        line=line.number,
        host=host.rstrip(":,"),
        at=at,
    )


def _ended(
    state: str,
    *,
    job: str,
    why: str,
    nodes: str,
    source: str,
    at: str = "",
    time_s: float | None = None,
    line: int | None = None,
    code: int | None = None,
) -> Event | None:
    """The event of a job or step that did not end well; None for one that did, or has not ended."""
    if state not in _STATES:
        return None
    if nodes and not re.search(r"[\[,]|^\(null\)$|None", nodes):
        one_host = nodes
    else:
        one_host = ""
    return Event(
        kind=kind(state),
        severity=_STATES[state],
        sentence=short(f"Slurm job {job} ended as {state}: {why}; nodes {nodes or 'unknown'}"),
        source=source,
        line=line,
        at=at,
        time_s=time_s,
        host=one_host,
        code=code,
    )


def _number(value: Any) -> int | None:
    """A count in either of Slurm's spellings: a number, or an object with `set` and `number`."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) else None
    return whole(value)


def _states(job: Mapping[str, Any]) -> tuple[str, ...]:
    """The states of a job or step.

    A text, or a list of flags, in `state.current`, `state` or `job_state`.
    """
    state = job.get("state", job.get("job_state"))
    if isinstance(state, dict):
        current = state.get("current")
    else:
        current = state
    return tuple(str(one)[:40] for one in (current if isinstance(current, list) else [current])[:8])


def _from_json(job: Mapping[str, Any], name: str, source: str) -> Iterator[Event]:
    end_s = _number(mapping(job.get("time")).get("end")) or _number(job.get("end_time"))
    exit_code, state = mapping(job.get("exit_code")), mapping(job.get("state"))
    for one in _states(job):
        event = _ended(
            one,
            job=name,
            why="reason "
            f"{short(str(state.get('reason', job.get('state_reason', 'unknown'))))[:80]}",
            nodes=str(mapping(job.get("nodes")).get("range") or job.get("nodes") or "")[:200],
            source=source,
            at=str(end_s) if end_s else "",
            time_s=float(end_s) if end_s else None,
            code=_number(exit_code.get("return_code")),
        )
        if event is not None:
            yield event


def _read_json(path: Path, data: bytes) -> EventFacts:
    jobs = parse_object(path, data).get("jobs")
    if not isinstance(jobs, list):
        raise CorruptFileError(path, "jobs", expected="a list", seen=type(jobs).__name__)
    found, problems = EventList(), []
    for position, job in enumerate(jobs):
        if not isinstance(job, dict):
            problems.append(
                f"{path.name}: job {position}: expected an object, found {type(job).__name__}"
            )
            continue
        name = str(job.get("job_id", "?"))[:40]
        for event in _from_json(job, name, path.name):
            found.add(event)
        for step in map(mapping, sequence(job.get("steps"))):
            label = str(mapping(step.get("step")).get("id", "?"))[:60]
            for event in _from_json(step, f"{name} step {label}", path.name):
                found.add(event)
    return EventFacts(
        format=NAME,
        path=path,
        events=tuple(found.kept),
        identity={"num_jobs": str(len(jobs))},
        problems=(*problems[:100], *found.sentences(path.name)),
        notes=("Slurm's task numbers are ranks only where the launcher makes them so",),
    )


def claims(look: Look, /) -> float:
    """Sure of sacct's and scontrol's shapes, less so of a log with a line of Slurm's."""
    lines = head_lines(look)
    if not lines:
        return 0.0
    if _SAID.match(lines[0]):
        return 0.95
    head = look.head
    if (
        head.lstrip().startswith(b"{")
        and b'"jobs"' in head
        and (b"slurm" in head.lower() or b"job_id" in head)
    ):
        return 0.9
    num_own = sum(
        any(True for _ in _job_line(TextLine(number=0, text=text, source=""))) for text in lines
    )
    if not num_own:
        return 0.0
    return (
        0.6 if num_own * 2 >= len(lines) else 0.4
    )  # among others' lines it is a job's whole output


def scanners() -> Iterable[SlurmScanner]:
    """What has to see the lines of a job's output."""
    return (SlurmScanner(),)


def read(path: Path, /) -> EventFacts:
    """Every job, step and line that did not end well.

    Raises:
        EvidenceError: it cannot be read, or is JSON that is not Slurm's.
    """
    if not look_at_file(path).head.lstrip().startswith(b"{"):
        return scan(path, NAME, scanners())
    return _read_json(path, file_bytes(path, MAX_JSON_BYTES))
