"""Compares the flight-recorder dumps of all ranks for a collective that not all called alike.

This module never claims which rank is right: it says which ranks agree with each other, most of
them first.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from spiketriage.errors import EvidenceError
from spiketriage.readers.events.flight_recorder import Call, Dump, claims, rank_of, read_dump
from spiketriage.readers.look import look

MAX_DUMPS = 16_384
NEVER_ABSENT = 1 << 62  # beyond the number of any collective
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
    this collective. `problems` names the files that look like a dump and could not be compared.
    """

    process_group: str
    sequence: int
    aspect: Aspect
    versions: tuple[Version, ...]
    absent: tuple[int, ...]
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
    disagreements = []
    for group in sorted(recorded):
        disagreement = _in_group(group, recorded[group], dumps, problems)
        if disagreement is not None:
            disagreements.append(disagreement)

    def created(disagreement: Disagreement) -> float:
        return _created(recorded[disagreement.process_group], disagreement.sequence)

    return min(disagreements, key=created, default=None)


def _dumps(paths: Iterable[Path], where: Path) -> tuple[Mapping[int, Dump], tuple[str, ...]]:
    """The dump of each rank, and a sentence for each file that should be one and cannot be used."""
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
        sentence = f"{where}: holds no flight-recorder dump that can be read"
        raise EvidenceError("; ".join([sentence, *problems[:3]]))
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
    times_s = []
    for calls in recorded.values():
        call = calls.get(sequence)
        if call is not None and call.created_s is not None:
            times_s.append(call.created_s)
    return min(times_s, default=float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _History:
    """What one rank recorded of one group; `last` is the number of its newest collective."""

    rank: int
    calls: Mapping[int, Call]
    last: int


def _in_group(
    group: str,
    recorded: Mapping[int, Mapping[int, Call]],
    dumps: Mapping[int, Dump],
    problems: tuple[str, ...],
) -> Disagreement | None:
    """The first disagreement in one process group.

    A collective that some never finished is one too where a member of the group left no dump.
    """
    members = set(_members(group, dumps) or recorded)
    histories = []
    for rank in sorted(members & set(dumps)):
        histories.append(_history(rank, recorded.get(rank, {}), dumps[rank]))
    without_dump = sorted(members - set(dumps))
    for sequence in _sequences(histories):
        present, absent = {}, []
        for history in histories:
            if sequence in history.calls:
                present[history.rank] = history.calls[sequence]
            if sequence > history.last:
                absent.append(history.rank)
        aspect = _compare(present, is_absent=bool(absent))
        if aspect is None and without_dump:
            present = {rank: call for rank, call in present.items() if not call.finished}
            if present:
                aspect = "no-dump"
        if aspect is not None:
            versions = _versions(present, with_state=aspect == "state")
            return Disagreement(
                process_group=group,
                sequence=sequence,
                aspect=aspect,
                versions=versions,
                absent=tuple(absent),
                sentence=f"collective {sequence} of {_named(group, present)} is the first where "
                f"ranks disagree ({aspect}): {'; '.join(_sides(versions, absent, without_dump))}",
                problems=problems,
            )
    return None


def _sequences(histories: Iterable[_History]) -> list[int]:
    """The numbers of all collectives that anybody recorded, in order."""
    numbers: set[int] = set()
    for history in histories:
        numbers.update(history.calls)
    return sorted(numbers)


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
        return _History(rank=rank, calls=calls, last=max(calls))
    # Without a record of the group: either it never called, or the ring has lost it.
    has_all = min((call.record for call in dump.calls), default=0) == 0
    return _History(rank=rank, calls={}, last=-1 if has_all else NEVER_ABSENT)


_ASPECTS: tuple[tuple[Aspect, Callable[[Call], str]], ...] = (
    ("name", lambda call: call.name),
    ("sizes", lambda call: "" if _RAGGED.search(call.name) else call.sizes),
    ("dtypes", lambda call: call.dtypes if call.sizes else ""),
)


def _compare(present: Mapping[int, Call], *, is_absent: bool) -> Aspect | None:
    """In what way ranks disagree on one collective."""
    for aspect, of in _ASPECTS:
        if len({of(call) for call in present.values()}) > 1:
            return aspect
    if is_absent:
        return "absent"
    if len({call.finished for call in present.values()}) > 1:
        return "state"
    return None


def _named(group: str, calls: Mapping[int, Call]) -> str:
    description = next((call.description for call in calls.values()), "")
    if description:
        return f"group {group} ({description})"
    return f"group {group}"


def _sides(
    versions: Iterable[Version], absent: Sequence[int], without_dump: Sequence[int]
) -> Iterator[str]:
    """What each side did, a phrase a side."""
    for version in versions:
        where = ""
        if version.where:
            where = f" at {version.where}"
        yield f"{_ranks(version.ranks)}: {version.what}{where}"
    if absent:
        yield f"{_ranks(absent)}: never called it"
    if without_dump:
        yield f"{_ranks(without_dump)}: left no dump"


def _versions(calls: Mapping[int, Call], *, with_state: bool) -> tuple[Version, ...]:
    """The calls that differ, each with the ranks that made it, most ranks first."""
    by_what: defaultdict[str, list[int]] = defaultdict(list)
    for rank, call in sorted(calls.items()):
        what = f"{call.name} {call.sizes} {call.dtypes}".strip()
        if with_state:
            state = "finished" if call.finished else call.state
            what = f"{what}, {state}"
        by_what[what].append(rank)
    versions = []
    for what, ranks in by_what.items():
        versions.append(Version(what=what, ranks=tuple(ranks), where=calls[ranks[0]].where))
    return tuple(sorted(versions, key=lambda version: (-len(version.ranks), version.ranks)))


def _ranks(ranks: Iterable[int]) -> str:
    """`rank 3` or `ranks 0-6, 9`."""
    spans: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    texts = []
    for first, last in spans:
        texts.append(str(first) if first == last else f"{first}-{last}")
    is_one_rank = len(spans) == 1 and spans[0][0] == spans[0][1]
    noun = "rank" if is_one_rank or not spans else "ranks"
    return f"{noun} {', '.join(texts)}"
