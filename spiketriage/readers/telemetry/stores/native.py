"""Reads a segment of our own recorder: identity, loads and steps, up to the first damaged byte.

This module never raises for a torn tail, since the process that wrote it may have died at any byte.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from spiketriage import redaction
from spiketriage.errors import CorruptFileError
from spiketriage.nouns.series import LogFacts, Series
from spiketriage.nouns.telemetry import Identity, Link, LoadRecord, Notice, Segment, StepRecord
from spiketriage.readers.json_file import is_count, read_bytes
from spiketriage.readers.look import Look
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.wire import telemetry as wire

NAME = "spiketriage"
TELLS = (
    "All that our recorder wrote of one rank and start: metrics, the chain of every step, ids, "
    "loads, identity and notices."
)
CANNOT = "What was in flight when its process was killed, and whatever the job did not hand over."
SUFFIX = ".seg"
# how the problem of a segment begins whose writer merely died while it wrote
TORN_TAIL = "ends inside a record"
# a header that claims more is damage; nothing is ever allocated by this number
MAX_WORLD_SIZE = 1_000_000
_MALFORMED = (ValueError, KeyError, TypeError, RecursionError, struct.error)


@dataclass(slots=True, kw_only=True)
class _Content:
    attempt: int
    rank: int
    layouts: dict[int, tuple[Link, ...]] = field(default_factory=dict)
    loads: list[LoadRecord] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def claims(look: Look) -> float:
    """Certain for a file that begins with the magic of a segment."""
    if look.head.startswith(wire.MAGIC):
        return 0.98
    return 0.0


def read(path: Path, names: Names) -> LogFacts:
    """The metrics of a segment as series; its chain, ids and loads are `read_segment`'s to tell.

    Raises:
        CorruptFileError, EvidenceError: as `read_segment`.
    """
    del names  # every metric has its own name already
    segment = read_segment(path)
    problems = [segment.problem] if segment.problem else []
    return LogFacts(
        format=NAME,
        path=path,
        series=tuple(_metric(segment, metric) for metric in _metrics(segment)),
        num_lines=len(segment.steps),
        num_matched=len(segment.steps),
        problems=tuple(problems),
        notes=tuple(notice.text for notice in segment.notices),
    )


def _metrics(segment: Segment) -> list[str]:
    """The metrics that any step of the segment holds, in the order in which they came."""
    metrics: dict[str, None] = {}
    for step in segment.steps:
        metrics.update(dict.fromkeys(step.metrics))
    return list(metrics)


def _metric(segment: Segment, metric: str) -> Series:
    holders = [step for step in segment.steps if metric in step.metrics]
    return Series(
        source=segment.path.name,
        name=metric,
        written_as=metric,
        attempt=segment.attempt,
        rank=segment.rank,
        steps=np.array([step.step for step in holders], dtype=np.int64),
        values=np.array([step.metrics[metric] for step in holders], dtype=np.float64),
        times_s=np.array([step.wall_time_s for step in holders], dtype=np.float64),
        trust="as the recorder measured it",
    )


def read_segment(path: Path) -> Segment:
    """The segment at `path`; a torn tail or a malformed frame is named in `Segment.problem`.

    Raises:
        CorruptFileError: the file is not a segment, or ends inside its header.
        EvidenceError: the file cannot be read.
    """
    data = read_bytes(path)
    if not data.startswith(wire.MAGIC):
        raise CorruptFileError(
            path, "byte 0", expected=f"the magic {wire.MAGIC.decode()}", seen=data[:8]
        )
    frames = wire.iter_frames(data)
    head = next(frames, None)
    if head is None or head.kind != wire.HEADER:
        raise CorruptFileError(
            path, f"byte {len(wire.MAGIC)}", expected="a header frame", seen="none that is intact"
        )
    header, identity = _header(path, head.payload)
    content = _Content(attempt=header["attempt"], rank=header["rank"])
    end = longest = head.end
    for frame in frames:
        try:
            _take(content, frame)
        except _MALFORMED as error:
            content.problems.append(f"frame that ends at byte {frame.end}: {error}")
        longest = max(longest, frame.end - end)
        end = frame.end
    if end < len(data):
        content.problems.append(_torn(content, end, data, longest))
    return Segment(
        path=path,
        attempt=content.attempt,
        rank=content.rank,
        identity=identity,
        loads=tuple(content.loads),
        steps=tuple(content.steps),
        torn_bytes=len(data) - end,
        problem=f"{path.name}: {'; '.join(content.problems)}" if content.problems else "",
        notices=tuple(content.notices),
        num_dropped=_num_dropped(content),
    )


def is_torn_tail(segment: Segment) -> bool:
    """Whether a segment only ends in an unfinished record, which every crash may leave."""
    return segment.problem.startswith(f"{segment.path.name}: {TORN_TAIL}")


def _torn(content: _Content, end: int, data: bytes, longest: int) -> str:
    if content.steps:
        last = f"after step {content.steps[-1].step}"
    else:
        last = "before the first step"
    lost = f"{len(data) - end} of {len(data)} bytes lost"
    # A frame that would end behind the file and of which less than a whole one is left was being
    # written; twice the longest, since the next one may be longer than any before it.
    if len(data) - end < min(_stated(data, end), 2 * longest):
        return f"{TORN_TAIL}, {last}: {lost}"
    return f"unreadable from byte {end}, {last}: {lost}"


def _stated(data: bytes, start: int) -> int:
    """How many bytes the frame at `start` should have, by its own account.

    5 before its length is there.
    """
    prefix, trailer = struct.calcsize("<IB"), struct.calcsize("<Q")
    if len(data) - start < prefix:
        return prefix
    return prefix + int(struct.unpack_from("<I", data, start)[0]) + trailer


def _header(path: Path, payload: bytes) -> tuple[dict[str, Any], Identity]:
    try:
        header = _object(json.loads(payload))
        if header["schema"] != wire.SCHEMA:
            raise ValueError(f"schema {header['schema']!r}, expected {wire.SCHEMA!r}")
        if (
            not is_count(header["rank"])
            or not is_count(header["attempt"])
            or "started_at" not in header
        ):
            raise ValueError("rank and attempt must be counts, started_at must be given")
        identity = Identity(**_object(header["identity"]))
        if not is_count(identity.world_size) or not 0 < identity.world_size <= MAX_WORLD_SIZE:
            raise ValueError(f"world size {identity.world_size!r}")
    except _MALFORMED as error:
        raise CorruptFileError(
            path, "header frame", expected="a telemetry header", seen=error
        ) from error
    return header, replace(identity, hparams=redaction.settings(identity.hparams))


def _take(content: _Content, frame: wire.Frame) -> None:
    if frame.kind == wire.LAYOUT:
        layout = _object(json.loads(frame.payload))
        content.layouts[layout["id"]] = tuple(
            Link(str(stage), str(key)) for stage, key in layout["links"]
        )
    elif frame.kind == wire.STEP:
        record, digests = wire.decode_step(frame.payload, content.layouts)
        content.steps.append(
            step_from_json(_object(record), digests, attempt=content.attempt, rank=content.rank)
        )
    elif frame.kind == wire.LOAD:
        content.loads.append(_load(content, _object(json.loads(frame.payload))))
    elif frame.kind == wire.NOTICE:
        content.notices.append(_notice(_object(json.loads(frame.payload))))
    else:
        raise ValueError(f"unknown kind {frame.kind}")


def step_from_json(
    record: Mapping[str, Any], digests: Mapping[Link, bytes], *, attempt: int, rank: int
) -> StepRecord:
    """The step record from the JSON of a step frame; trial chains are read with the same function.

    Raises:
        ValueError, KeyError, TypeError: the record is not one of this schema.
    """
    return StepRecord(
        attempt=attempt,
        rank=rank,
        step=_step(record),
        metrics={
            str(name): wire.number(value) for name, value in _object(record["metrics"]).items()
        },
        digests=digests,
        nonfinite=tuple(Link(str(stage), str(key)) for stage, key in record["nonfinite"]),
        ids=record["ids"],
        content=_texts(record["content"]),
        series=_series(_object(record["series"])),
        wall_time_s=wire.number(record["wall_time_s"]),
        rng=str(record.get("rng", "")),
        cursor=record.get("cursor"),
        num_dropped=_count(record.get("num_dropped", 0)),
    )


def _notice(record: Mapping[str, Any]) -> Notice:
    return Notice(
        kind=str(record["kind"]),
        step=None if record["step"] is None else _step(record),
        text=str(record["text"]),
        data=_object(record["data"]),
        wall_time_s=wire.number(record["wall_time_s"]),
    )


def _num_dropped(content: _Content) -> int:
    """Records that the writer lost, by its last word on it; the counter only grows."""
    most = 0
    for notice in content.notices:
        if notice.kind == "dropped":
            most = max(most, _count(notice.data.get("num_dropped")))
    for step in content.steps:
        most = max(most, step.num_dropped)
    return most


def _count(value: object) -> int:
    if is_count(value):
        return value
    return 0


def _load(content: _Content, record: Mapping[str, Any]) -> LoadRecord:
    return LoadRecord(
        attempt=content.attempt,
        rank=content.rank,
        step=_step(record),
        generation=str(record["generation"]),
        fields=_texts(record["fields"]),
        tensors={
            str(group): _texts(tensors) for group, tensors in _object(record["tensors"]).items()
        },
        wall_time_s=wire.number(record["wall_time_s"]),
    )


def _step(record: Mapping[str, Any]) -> int:
    step = record["step"]
    if not is_count(step):
        raise ValueError(f"step {step!r} is not a count")
    return int(step)


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {type(value).__name__}")
    return value


def _texts(value: object) -> dict[str, str]:
    return {str(name): str(text) for name, text in _object(value).items()}


def _series(value: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    series: dict[str, tuple[float, ...]] = {}
    for name, numbers in value.items():
        series[str(name)] = tuple(wire.number(number) for number in numbers)
    return series
