"""Reads PyTorch flight-recorder dumps: the collectives that a rank had not finished.

A dump is a pickle or JSON.

This module never imports what a pickle names: a dump names nothing, so one that does is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import Any

from spiketriage.errors import CorruptFileError
from spiketriage.nouns.telemetry import Event, EventFacts
from spiketriage.readers.events.evidence_file import file_bytes
from spiketriage.readers.events.text_lines import EventList, short
from spiketriage.readers.events.untyped import mapping, sequence, whole
from spiketriage.readers.inert import plain_text
from spiketriage.readers.json_file import parse_object
from spiketriage.readers.limited import limited
from spiketriage.readers.look import Look
from spiketriage.readers.pickles import load_here

NAME = "flight-recorder"
TELLS = (
    "Collectives that a rank had started or only scheduled, with sizes, types and the line of code."
)
CANNOT = "What the tensors held: it proves that ranks disagreed, never that data was corrupt."
MAX_BYTES = 256 << 20  # 2,000 entries with their frames take some 2 MB
MAX_ENTRIES = 100_000  # the recorder's ring has 2,000 by default
MAX_GROUPS = 100_000
MAX_PROBLEMS = 20
_SCALARS = (str, int, float, bool, type(None))
_KEYS = (b"pg_config", b"comm_lib_version", b"entries")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective as a rank recorded it; `finished` is retired or completed.

    Gloo only ever retires.
    """

    group: str
    description: str
    sequence: int
    record: int
    name: str
    sizes: str
    dtypes: str
    state: str
    finished: bool
    created_s: float | None
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """One rank's dump; `ranks` are the members of each process group by its name.

    `rank` is from the file's name.
    """

    path: Path
    rank: int | None
    version: str
    calls: tuple[Call, ...]
    ranks: Mapping[str, tuple[int, ...]]
    enqueued: Mapping[str, int]
    problems: tuple[str, ...]


def rank_of(path: Path) -> int | None:
    """The global rank that PyTorch puts at the end of the name: `nccl_trace_rank_7.json` or so."""
    match = re.search(r"(\d{1,9})(?:\.(?:json|pkl|pickle))?$", path.name)
    if match is None:
        return None
    return int(match[1])


@limited
def read_dump(path: Path) -> Dump:
    """One dump in either variant.

    Raises:
        EvidenceError: it cannot be read, names a class, or is no flight-recorder dump.
    """
    data = file_bytes(path, MAX_BYTES)
    if data.lstrip()[:1] == b"{":
        content: Mapping[Any, Any] = parse_object(path, data)
    else:
        content = _unpickled(path, data)
    entries = content.get("entries")
    if not isinstance(entries, (list, tuple)) or "version" not in content:
        raise CorruptFileError(
            path, "content", expected="a flight-recorder dump", seen=f"keys {_keys(content)}"
        )
    calls: list[Call] = []
    problems: list[str] = []
    num_left = max(0, len(entries) - MAX_ENTRIES)
    if num_left:
        problems.append(
            f"{path.name}: only the last {MAX_ENTRIES} of {len(entries)} entries are read"
        )
    for position, entry in enumerate(entries[num_left:], start=num_left):
        call = _call(mapping(entry))
        if call is not None:
            calls.append(call)
        elif mapping(entry).get("is_p2p") is not True and len(problems) < MAX_PROBLEMS:
            problems.append(
                f"{path.name}: entry {position}: expected a collective with a sequence number"
            )
    return Dump(
        path=path,
        rank=rank_of(path),
        version=plain_text(content["version"])[:40],
        calls=tuple(calls),
        ranks=_members(mapping(content.get("pg_config"))),
        enqueued=_enqueued(mapping(content.get("pg_status"))),
        problems=tuple(problems),
    )


def _unpickled(path: Path, data: bytes) -> Mapping[Any, Any]:
    dump = load_here(data, where=path)
    if dump.globals:
        raise CorruptFileError(
            path,
            "pickle",
            expected="no class or function: a dump holds plain values",
            seen=dump.globals[0][:200],
        )
    if not isinstance(dump.value, dict):
        raise CorruptFileError(path, "pickle", expected="a dict", seen=type(dump.value).__name__)
    return dump.value


def _keys(content: Mapping[Any, Any]) -> str:
    return ", ".join(plain_text(key)[:40] for key in list(content)[:8]) or "none"


def _call(entry: Mapping[Any, Any]) -> Call | None:
    group = sequence(entry.get("process_group"))
    sequence_number = whole(entry.get("collective_seq_id"))
    if entry.get("is_p2p") is True or not group or sequence_number is None:
        return None
    created_ns, state = whole(entry.get("time_created_ns")), plain_text(entry.get("state"))[:40]
    return Call(
        group=intern(
            plain_text(group[0])[:200]
        ),  # 1,024 dumps of 2,000 entries repeat the same few texts
        description=intern(plain_text(group[1])[:200] if len(group) > 1 else ""),
        sequence=sequence_number,
        record=whole(entry.get("record_id")) or 0,
        name=intern(plain_text(entry.get("profiling_name"))[:200]),
        sizes=intern(_plain(entry.get("input_sizes"))),
        dtypes=intern(_plain(entry.get("input_dtypes"))),
        state=intern(state),
        finished=entry.get("retired") is True or state == "completed",
        created_s=created_ns / 1e9 if created_ns else None,
        where=intern(_where(sequence(entry.get("frames")))),
    )


def _plain(value: object) -> str:
    """Sizes or types as text, the same from a pickle and from JSON; bounded, and never a cycle."""
    parts = []
    for member in sequence(value)[:64]:
        parts.append(json.dumps(member) if _is_flat(member) else "?")
    return short(" ".join(parts))


def _is_flat(value: object) -> bool:
    """Whether a value is a scalar or a short list of scalars, as sizes and types are."""
    if not isinstance(value, (list, tuple)):
        return type(value) in _SCALARS
    return len(value) <= 64 and all(type(member) in _SCALARS for member in value)


def _where(frames: object) -> str:
    """The first frame outside torch itself: the user's line."""
    for frame in map(mapping, sequence(frames)[:64]):
        file = plain_text(frame.get("filename", ""))[:300]
        if file and "/torch/" not in file:
            return f"{file}:{whole(frame.get('line'))} in {plain_text(frame.get('name'))[:100]}"
    return ""


def _members(config: Mapping[Any, Any]) -> Mapping[str, tuple[int, ...]]:
    """The ranks of each process group; PyTorch writes them as text."""
    members: dict[str, tuple[int, ...]] = {}
    for key, group in list(config.items())[:MAX_GROUPS]:
        ranks = mapping(group).get("ranks")
        if not isinstance(ranks, str):
            ranks = _plain([ranks])
        if re.fullmatch(r"\[[\d, ]*\]", ranks):
            name = plain_text(mapping(group).get("name", key))[:200]
            members[name] = tuple(map(int, re.findall(r"\d{1,9}", ranks)))
    return members


def _enqueued(status: Mapping[Any, Any]) -> Mapping[str, int]:
    """The last collective that each group (by its number) enqueued.

    JSON writes the counts as text.
    """
    last: dict[str, int] = {}
    for key, group in list(status.items())[:MAX_GROUPS]:
        written = plain_text(mapping(group).get("last_enqueued_collective"))
        if re.fullmatch(r"\d{1,18}", written):
            last[plain_text(key)[:200]] = int(written)
    return last


def claims(look: Look, /) -> float:
    """Sure of the keys that only such a dump has.

    They stand in the first bytes, or at the end of a long one.
    """
    if look.is_folder or look.is_lfs_pointer:
        return 0.0
    num_keys = sum(key in look.head for key in _KEYS)
    is_pickle = look.head[:1] == b"\x80"
    is_json = look.head.lstrip()[:1] == b"{"
    if (is_pickle or is_json) and num_keys >= 2:
        return 0.95
    if not is_pickle:
        return 0.0
    if num_keys or b"collective_seq_id" in look.head:
        return 0.9
    if re.search(r"(?:trace_rank_|comm_traces|flight|rank_)\d+", look.path.name):
        return 0.5
    return 0.0


def read(path: Path, /) -> EventFacts:
    """The collectives that this rank had not finished.

    Raises:
        EvidenceError: it cannot be read, names a class, or is no flight-recorder dump.
    """
    dump, unfinished = read_dump(path), EventList()
    for call in dump.calls:
        if not call.finished:
            unfinished.add(_event(call, dump))
    identity = {"version": dump.version, "num_collectives": str(len(dump.calls))}
    for group, count in list(dump.enqueued.items())[:1000]:
        identity[f"last_enqueued of group {group}"] = str(count)
    notes = ["holds no data values"]
    if dump.rank is None:
        notes.append("the file's name ends in no rank")
    else:
        identity["rank"] = str(dump.rank)
    return EventFacts(
        format=NAME,
        path=path,
        events=tuple(unfinished.kept),
        identity=identity,
        problems=(*dump.problems, *unfinished.sentences(path.name)),
        notes=tuple(notes),
    )


def _event(call: Call, dump: Dump) -> Event:
    group = f"group {call.group}"
    if call.description:
        group = f"{group} ({call.description})"
    operation = f"{call.name} {call.sizes} {call.dtypes}".rstrip()
    sentence = f"collective {call.sequence} of {group}, {operation}, is {call.state}"
    if call.where:
        sentence = f"{sentence}; called at {call.where}"
    return Event(
        kind="unfinished-collective",
        severity="error",
        sentence=short(sentence),
        source=dump.path.name,
        at="" if call.created_s is None else f"{call.created_s:.6f}",
        time_s=call.created_s,
        rank=dump.rank,
        code=call.sequence,
    )
