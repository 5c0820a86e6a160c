"""Reads records of tensor hashes, a JSON line a tensor and rank, as TrainCheck writes them.

This module never says which rank is right, and never takes a shard for a replica.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spiketriage.errors import EvidenceError
from spiketriage.nouns.listing import counted, listed
from spiketriage.nouns.telemetry import Event, EventFacts
from spiketriage.readers.events.text_lines import Damage, head_lines, lines, short
from spiketriage.readers.events.untyped import mapping, whole
from spiketriage.readers.look import Look, look

NAME = "tensor-hashes"
TELLS = (
    "The first step at which replicas of a tensor differ between ranks, which tensors, and whether "
    "they differed from the beginning."
)
CANNOT = "Which rank is right, and whether a tensor is a shard where no record says so."
DIFFER, DIFFER_AT_START = "replicas-differ", "replicas-differ-at-start"
MAX_RECORDS = 2_000_000
MAX_FILES = 4096  # one a rank
_NAMES = ("name", "var_name", "tensor", "param", "parameter")
_HASHES = ("hash", "tensor_hash", "data_hash", "digest", "attributes.data", "attributes.hash")
_STEPS = ("step", "meta_vars.step", "iteration", "global_step")
_RANKS = ("rank", "meta_vars.rank", "global_rank", "process_rank")
_SHAPES = ("shape", "attributes.shape")
_SHARDED = ("sharded", "tensor_model_parallel", "attributes.tensor_model_parallel")
_RANK_OF_NAME = re.compile(r"rank[-_=]?(\d{1,9})", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The hash of one tensor on one rank after one step."""

    name: str
    step: int
    digest: str
    shape: str
    rank: int
    is_shard: bool


Versions = dict[str, set[int]]  # by shape and hash, the ranks that hold it


class _Replicas:
    """What every rank held of every tensor at every step."""

    def __init__(self) -> None:
        self.num_records = 0
        self.by_step: dict[int, dict[str, Versions]] = {}

    def add(self, record: _Record) -> None:
        """Keep a record, unless there are too many."""
        self.num_records += 1
        if record.is_shard or self.num_records > MAX_RECORDS:
            return
        versions = self.by_step.setdefault(record.step, {}).setdefault(record.name, {})
        versions.setdefault(f"{record.shape} {record.digest}", set()).add(record.rank)

    def differing(self, step: int) -> dict[str, Versions]:
        """The tensors that are not equal on all ranks after `step`; other shapes are shards."""
        tensors: dict[str, Versions] = {}
        for name, versions in self.by_step[step].items():
            shapes = {version.rpartition(" ")[0] for version in versions}
            if len(versions) > 1 and len(shapes) == 1:
                tensors[name] = versions
        return tensors


def claims(look: Look, /) -> float:
    """Sure where the first line is an object with a tensor's name, step and hash."""
    first = next(iter(head_lines(look)), "")
    if not first.startswith("{") or _record(first, _rank_of(look.path)) is None:
        return 0.0
    return 0.95


def read(path: Path, /) -> EventFacts:
    """Where the replicas of this file, and of the files beside it, first differ.

    The first file of a folder tells it for all of them.

    Raises:
        EvidenceError: it cannot be read.
    """
    replicas, damage = _Replicas(), Damage()
    files = _beside(path)
    for file in files if path == files[0] else [path]:
        rank = _rank_of(file)
        for line in lines(file, damage):
            record = _record(line.text, rank)
            if record is not None:
                replicas.add(record)
    if path != files[0]:
        note = f"compared with the other ranks' records in {files[0].name}"
        return EventFacts(format=NAME, path=path, events=(), notes=(note,))
    problems = list(damage.sentences(path.name))
    if replicas.num_records > MAX_RECORDS:
        problems.append(f"{path.name}: only the first {MAX_RECORDS} records are compared")
    return EventFacts(
        format=NAME,
        path=path,
        events=tuple(_events(replicas, path.name)),
        identity={"records": str(replicas.num_records), "files": str(len(files))},
        problems=tuple(problems),
    )


def _beside(path: Path) -> list[Path]:
    """The files of this format in the folder of one of them, itself included."""
    files = [path]
    for other in sorted(path.parent.iterdir())[:MAX_FILES]:
        try:
            if other != path and other.suffix == path.suffix and claims(look(other)):
                files.append(other)
        except EvidenceError:
            continue  # whoever reads that file says so
    return sorted(files)


def _events(replicas: _Replicas, source: str) -> Iterator[Event]:
    """The tensors that differ from the first step on, then the first step that parts others."""
    steps = sorted(replicas.by_step)
    at_start = replicas.differing(steps[0]) if steps else {}
    if at_start:
        yield _event(steps[0], at_start, source, kind=DIFFER_AT_START)
    for step in steps[1:]:
        parted = {
            name: versions
            for name, versions in replicas.differing(step).items()
            if name not in at_start
        }
        if parted:
            yield _event(step, parted, source, kind=DIFFER)
            return


def _event(step: int, tensors: Mapping[str, Versions], source: str, *, kind: str) -> Event:
    name, versions = next(iter(tensors.items()))
    usual, *others = sorted(versions.values(), key=lambda ranks: (-len(ranks), min(ranks)))
    apart = sorted(set[int]().union(*others))
    from_the_start = (
        "already in the first record, so no recorded step parted them: another seed, another "
        "checkpoint, or shards" if kind == DIFFER_AT_START else "equal until then"
    )  # fmt: skip
    sides = f"ranks {listed([str(rank) for rank in apart])} hold another {name} than "
    return Event(
        kind=kind,
        severity="warning" if kind == DIFFER_AT_START else "error",
        sentence=short(
            f"step {step}: replicas differ in {counted(len(tensors), 'tensor')} "
            f"({listed(list(tensors))}): {sides}{counted(len(usual), 'rank')} ({from_the_start})"
        ),
        source=source,
        rank=apart[0] if len(apart) == 1 and len(usual) > 1 else None,
        step=step,
    )


def _record(text: str, rank: int | None) -> _Record | None:
    """The record of a line; None if it is none."""
    try:
        values = _flat(mapping(json.loads(text)))
    except (ValueError, RecursionError):
        return None
    name, digest = _first(values, _NAMES), _first(values, _HASHES)
    step, stated = whole(_first(values, _STEPS)), whole(_first(values, _RANKS))
    rank = rank if stated is None else stated
    if not isinstance(name, str) or not isinstance(digest, (str, int)):
        return None
    if step is None or rank is None:
        return None
    return _Record(
        name=name,
        step=step,
        digest=str(digest),
        shape=str(_first(values, _SHAPES)).replace(" ", ""),
        rank=rank,
        is_shard=any(values.get(key) is True for key in _SHARDED),
    )


def _flat(values: Mapping[Any, Any]) -> dict[str, Any]:
    """The values of an object and of the objects right in it, as `outer.inner`."""
    flat = dict(values)
    for outer, inside in values.items():
        for inner, value in mapping(inside).items():
            flat[f"{outer}.{inner}"] = value
    return flat


def _first(values: Mapping[str, Any], names: Iterable[str]) -> object:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _rank_of(path: Path) -> int | None:
    """The rank in a file's name."""
    named = _RANK_OF_NAME.search(path.stem)
    return int(named[1]) if named else None
