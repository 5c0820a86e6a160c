"""Check: all ranks called the same collectives in the same order.

It sees as far as PyTorch's flight recorder kept them, names the first call on which the ranks
disagree, and never says which rank is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spiketriage.diagnosis.findings import agrees, ranks_text, untestable
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import RankDumps, View
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted

if TYPE_CHECKING:
    from spiketriage.readers.events.desync import Disagreement

NAME = "collectives"
EMITS = {NAME: Emission(role=AGAINST_THE_RUN, dates_onset=True)}
UNKNOWN = "no-dump"  # somebody waits for a rank that left none: a hang or a copy that was left out


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first disagreement of the first folder of dumps that has one.

    None without dumps.
    """
    if not view.dumps:
        return ()
    doubtful = [dumps for dumps in view.dumps if dumps.disagreement is not None]
    apart = [dumps for dumps in doubtful if _disagreement(dumps).aspect != UNKNOWN]
    if apart:
        return (_differs(apart[0], len(apart)),)
    if doubtful:
        first = doubtful[0]
        reason = f"{first.folder}: {_disagreement(first).sentence}"
        return (untestable(NAME, reason, where=_where(first)),)
    num_dumps = sum(dumps.num_dumps for dumps in view.dumps if dumps.num_dumps > 1)
    if not num_dumps:
        reason = f"{view.dumps[0].folder}: there is the dump of one rank only"
        return (untestable(NAME, reason),)
    text = f"the flight-recorder dumps of {counted(num_dumps, 'rank')} show no disagreement"
    return (agrees(NAME, text),)


def _disagreement(dumps: RankDumps) -> Disagreement:
    assert dumps.disagreement is not None, "only folders with a disagreement come here"
    return dumps.disagreement


def _differs(dumps: RankDumps, num_folders: int) -> Finding:
    disagreement = _disagreement(dumps)
    others = ""
    if num_folders > 1:
        others = f" ({counted(num_folders, 'folder')} of dumps disagree in all)"
    usual, *odd = disagreement.versions
    seen = [f"{ranks_text(version.ranks)}: {version.what}" for version in odd]
    if disagreement.absent:
        seen.append(f"{ranks_text(disagreement.absent)}: never called it")
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"{dumps.folder}: {disagreement.sentence}{others}",
        where=_where(dumps),
        expected=usual.what,
        seen="; ".join(seen),
        magnitude=float(len(_odd_ranks(disagreement))),
    )


def _odd_ranks(disagreement: Disagreement) -> list[int]:
    """Ranks that did not call what most ranks called."""
    ranks: list[int] = []
    for version in disagreement.versions[1:]:
        ranks.extend(version.ranks)
    return [*ranks, *disagreement.absent]


def _where(dumps: RankDumps) -> Where:
    disagreement = _disagreement(dumps)
    odd = _odd_ranks(disagreement)
    rank = None
    if len(odd) == 1 and len(disagreement.versions[0].ranks) > 1:
        rank = odd[0]  # of two ranks, nobody knows which is the odd one
    return Where(
        stage="collective",
        key=f"{disagreement.process_group}/{disagreement.sequence}",
        rank=rank,
        path=dumps.folder,
    )
