"""Compares the flight-recorder dumps of all ranks.

The first collective that they did not all call alike.

This module never claims which rank is right: it says which ranks agree with each other, most of
them first.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from spiketriage.errors import EvidenceError
from spiketriage.readers.events.flight_recorder import Call, Dump, claims, rank_of, read_dump
from spiketriage.readers.look import look

MAX_DUMPS = 16_384
Aspect = Literal["name", "sizes", "dtypes", "absent", "state", "no-dump"]
# Ranks may pass different sizes to these: only the root has input, or each rank has its own share.
_RAGGED = re.compile(
    r"all_?to_?all|(?<!reduce_)scatter|(?<!all_)gather|_v\b|coalesced|split|allgatherv", re.I
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One way in which a collective was called, and the ranks that called it so."""

    what: str
    ranks: tuple[int, ...]
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """The first collective on which ranks disagree.

    `versions` has the ranks that agree, most ranks first. `absent` are ranks whose dump ends before
    this collective, `without_dump` are members of the process group of which there is no dump.
    """

    process_group: str
    description: str
    sequence: int
    aspect: Aspect
    versions: tuple[Version, ...]
    absent: tuple[int, ...]
    without_dump: tuple[int, ...]
    sentence: str
    problems: tuple[str, ...] = ()


def first_disagreement(folder: Path) -> Disagreement | None:
    """The earliest disagreement over all process groups of the dumps in `folder`.

    None if there is none.

    Raises:
        EvidenceError: the folder holds no dump that can be read.
    """
    return disagreement_among(_candidates(folder), folder)


def disagreement_among(paths: Iterable[Path], where: Path) -> Disagreement | None:
    """As `first_disagreement`, of the dumps among `paths`, wherever they lie.

    `where` names them in errors.

    Raises:
        EvidenceError: none of them is a dump that can be read.
    """
    dumps, problems = _dumps(paths, where)
    recorded: defaultdict[str, dict[int, dict[int, Call]]] = defaultdict(dict)
    for rank, dump in dumps.items():
        for call in dump.calls:
            recorded[call.group].setdefault(rank, {})[call.sequence] = call
    found = [
        one
        for group in sorted(recorded)
        if (one := _in_group(group, recorded[group], dumps, problems)) is not None
    ]
    return min(
        found, key=lambda one: _created(recorded[one.process_group], one.sequence), default=None
    )


def _dumps(paths: Iterable[Path], where: Path) -> tuple[Mapping[int, Dump], tuple[str, ...]]:
    """The dump of each rank, and a sentence for each file that looks like one but cannot be used."""
    dumps: dict[int, Dump] = {}
    problems: list[str] = []
    for path in paths:
        try:
            if claims(look(path)) < 0.5:
                continue
            dump = read_dump(path)
        except EvidenceError as error:
            problems.append(str(error))
            continue
        rank = rank_of(path)
        if rank is None or rank in dumps:
            problems.append(f"{path.name}: expected a rank of its own at the end of the name")
        else:
            dumps[rank] = dump
    if not dumps:
        raise EvidenceError(f"{where}: holds no flight-recorder dump that can be read" + "".join(
            f"; {problem}" for problem in problems[:3]
        ))  # fmt: skip
    return dumps, tuple(problems)


def _candidates(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in islice(entries, MAX_DUMPS) if entry.is_file())
    except OSError as error:
        raise EvidenceError(f"{folder}: cannot be listed: {error.strerror or error}") from error
    return (folder / name for name in names)


def _created(recorded: Mapping[int, Mapping[int, Call]], sequence: int) -> float:
    """When the first rank called a collective of a group."""
    calls = (of_rank[sequence] for of_rank in recorded.values() if sequence in of_rank)
    return min(
        (call.created_s for call in calls if call.created_s is not None), default=float("inf")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _History:
    """What one rank recorded of one group.

    The recorder is a ring, so what is older than `first` is unknown.
    """

    rank: int
    calls: Mapping[int, Call]
    first: int
    last: int


def _in_group(
    group: str,
    recorded: Mapping[int, Mapping[int, Call]],
    dumps: Mapping[int, Dump],
    problems: tuple[str, ...],
) -> Disagreement | None:
    members = _members(group, dumps) or tuple(recorded)
    histories = [
        _history(rank, recorded.get(rank, {}), dumps[rank])
        for rank in sorted(set(members) & set(dumps))
    ]
    without_dump = tuple(sorted(set(members) - set(dumps)))
    for sequence in sorted({number for history in histories for number in history.calls}):
        present = {one.rank: one.calls[sequence] for one in histories if sequence in one.calls}
        absent = tuple(one.rank for one in histories if sequence > one.last)
        compared = _compare(present, absent)
        if compared is not None:
            return _told(group, sequence, compared, present, absent, without_dump, problems)
        unfinished = {rank: call for rank, call in present.items() if not call.finished}
        if unfinished and without_dump:
            return _told(group, sequence, "no-dump", unfinished, (), without_dump, problems)
    return None


def _members(group: str, dumps: Mapping[int, Dump]) -> tuple[int, ...]:
    """The ranks of a group.

    Gloo's default group has an empty name in the list of groups, another in the entries.
    """
    for dump in dumps.values():
        if group in dump.ranks:
            return dump.ranks[group]
        if len(dump.ranks) == 1 and len({call.group for call in dump.calls}) == 1:
            return next(iter(dump.ranks.values()))
    return ()


def _history(rank: int, calls: Mapping[int, Call], dump: Dump) -> _History:
    if calls:
        return _History(rank=rank, calls=calls, first=min(calls), last=max(calls))
    # Without a record of the group: either it never called, or the ring has lost it.
    has_all = min((call.record for call in dump.calls), default=0) == 0
    return _History(rank=rank, calls={}, first=0, last=-1 if has_all else 1 << 62)


_ASPECTS: tuple[tuple[Aspect, Callable[[Call], str]], ...] = (
    ("name", lambda call: call.name),
    ("sizes", lambda call: "" if _RAGGED.search(call.name) else call.sizes),
    ("dtypes", lambda call: call.dtypes if call.sizes else ""),
)


def _compare(present: Mapping[int, Call], absent: tuple[int, ...]) -> Aspect | None:
    """In what way ranks disagree on one collective."""
    for aspect, of in _ASPECTS:
        if len({of(call) for call in present.values()}) > 1:
            return aspect
    if absent:
        return "absent"
    if len({call.finished for call in present.values()}) > 1:
        return "state"
    return None


def _told(
    group: str,
    sequence: int,
    aspect: Aspect,
    present: Mapping[int, Call],
    absent: tuple[int, ...],
    without_dump: tuple[int, ...],
    problems: tuple[str, ...],
) -> Disagreement:
    versions = _versions(present, with_state=aspect == "state")
    description = next((call.description for call in present.values()), "")
    parts = []
    for one in versions:
        parts.append(f"{_ranks(one.ranks)}: {one.what}" + (f" at {one.where}" if one.where else ""))
    parts += [f"{_ranks(absent)}: never called it"] if absent else []
    parts += [f"{_ranks(without_dump)}: left no dump"] if without_dump else []
    named = f"group {group}" + (f" ({description})" if description else "")
    return Disagreement(
        process_group=group,
        description=description,
        sequence=sequence,
        aspect=aspect,
        versions=versions,
        absent=absent,
        without_dump=without_dump,
        sentence=f"collective {sequence} of {named} is the first where ranks disagree ({aspect}): "
        f"{'; '.join(parts)}",
        problems=problems,
    )


def _versions(present: Mapping[int, Call], *, with_state: bool) -> tuple[Version, ...]:
    by_what: defaultdict[str, list[int]] = defaultdict(list)
    for rank, call in sorted(present.items()):
        if with_state:
            state = f", {'finished' if call.finished else call.state}"
        else:
            state = ""
        by_what[f"{call.name} {call.sizes} {call.dtypes}".strip() + state].append(rank)
    told = []
    for what, ranks in by_what.items():
        told.append(Version(what=what, ranks=tuple(ranks), where=present[ranks[0]].where))
    return tuple(sorted(told, key=lambda one: (-len(one.ranks), one.ranks)))


def _ranks(ranks: Iterable[int]) -> str:
    """`rank 3` or `ranks 0-6, 9`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    told = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"{'ranks' if len(runs) > 1 or (runs and runs[0][0] != runs[0][1]) else 'rank'} {told}"
