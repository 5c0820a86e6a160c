"""Reads what Slurm says of a job: in `sacct`, in `scontrol show job`, in the job's own output.

This module never asks a Slurm daemon and never takes a Slurm task for a rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    """The event of a line of slurmstepd's or srun's; the first rule that fits wins."""
    for needle, pattern, event_of in _JOB_LINES:
        if needle in line.text:
            match = pattern.search(line.text)
            if match is not None:
                yield event_of(match, line)
                return


def _step_ended(match: re.Match[str], line: TextLine) -> Event:
    what, name, host, ended, at, why = match.groups()
    sentence, state = f"{what.lower()} {name} {ended.lower()}", ended
    if why:
        sentence = f"{sentence} due to {why.lower()}"
        state = next((state for needle, state in _REASONS if needle in why), ended)
    return _event(state, sentence, line, host, at=at or "")


def _out_of_memory(match: re.Match[str], line: TextLine) -> Event:
    where = line.text[match.end() : match.end() + 200]
    return _event("OUT_OF_MEMORY", f"{match[1]} out-of-memory kills{where}", line)


def _node_failed(match: re.Match[str], line: TextLine) -> Event:
    return _event("NODE_FAIL", f"node failure on {match[1]}", line, match[1])


def _task_failed(match: re.Match[str], line: TextLine) -> Event:
    host, tasks, why = match.groups()
    state = "OUT_OF_MEMORY" if "Out Of Memory" in why else "FAILED"
    return _event(state, f"{tasks}: {why}", line, host)


# What a line must hold to be looked at, what it looks like, and what it says.
_JOB_LINES: tuple[tuple[str, re.Pattern[str], Callable[[re.Match[str], TextLine], Event]], ...] = (
    ("*** ", _STEPD, _step_ended),
    ("oom", _OOM, _out_of_memory),
    ("srun: error", _NODE, _node_failed),
    ("srun: error", _SRUN, _task_failed),
)


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
    host = ""
    if nodes and not re.search(r"[\[,]|^\(null\)$|None", nodes):
        host = nodes  # a single one, and no list of them
    return Event(
        kind=kind(state),
        severity=_STATES[state],
        sentence=short(f"Slurm job {job} ended as {state}: {why}; nodes {nodes or 'unknown'}"),
        source=source,
        line=line,
        at=at,
        time_s=time_s,
        host=host,
        code=code,
    )


def _number(value: Any) -> int | None:
    """A count in either of Slurm's spellings: a number, or an object with `set` and `number`."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) else None
    return whole(value)


def _states(job: Mapping[str, Any]) -> tuple[str, ...]:
    """The states of a job or step: a text or a list, in `state.current`, `state` or `job_state`."""
    current = job.get("state", job.get("job_state"))
    if isinstance(current, dict):
        current = current.get("current")
    if not isinstance(current, list):
        current = [current]
    return tuple(str(state)[:40] for state in current[:8])


def _from_json(job: Mapping[str, Any], name: str, source: str) -> Iterator[Event]:
    end_s = _number(mapping(job.get("time")).get("end")) or _number(job.get("end_time"))
    stated = job.get("state_reason", "unknown")
    reason = mapping(job.get("state")).get("reason", stated)
    nodes = mapping(job.get("nodes")).get("range") or job.get("nodes") or ""
    for state in _states(job):
        event = _ended(
            state,
            job=name,
            why=f"reason {short(str(reason))[:80]}",
            nodes=str(nodes)[:200],
            source=source,
            at=str(end_s) if end_s else "",
            time_s=float(end_s) if end_s else None,
            code=_number(mapping(job.get("exit_code")).get("return_code")),
        )
        if event is not None:
            yield event


def _read_json(path: Path, data: bytes) -> EventFacts:
    jobs = parse_object(path, data).get("jobs")
    if not isinstance(jobs, list):
        raise CorruptFileError(path, "jobs", expected="a list", seen=type(jobs).__name__)
    events, problems = EventList(), []
    for position, job in enumerate(jobs):
        if not isinstance(job, dict):
            problems.append(
                f"{path.name}: job {position}: expected an object, found {type(job).__name__}"
            )
            continue
        name = str(job.get("job_id", "?"))[:40]
        for event in _from_json(job, name, path.name):
            events.add(event)
        for step in map(mapping, sequence(job.get("steps"))):
            label = str(mapping(step.get("step")).get("id", "?"))[:60]
            for event in _from_json(step, f"{name} step {label}", path.name):
                events.add(event)
    return EventFacts(
        format=NAME,
        path=path,
        events=tuple(events.kept),
        identity={"num_jobs": str(len(jobs))},
        problems=(*problems[:100], *events.sentences(path.name)),
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
    is_json = head.lstrip().startswith(b"{") and b'"jobs"' in head
    if is_json and (b"slurm" in head.lower() or b"job_id" in head):
        return 0.9
    num_own = 0
    for text in lines:
        num_own += len(list(_job_line(TextLine(number=0, text=text, source=""))))
    if not num_own:
        return 0.0
    if num_own * 2 >= len(lines):
        return 0.6
    return 0.4  # among others' lines: it is a job's whole output


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
