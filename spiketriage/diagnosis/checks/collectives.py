"""Check: all ranks called the same collectives in the same order.

It sees as far as PyTorch's flight recorder kept them, names the first call on which the ranks
disagree, and never says which rank is right.
"""

from __future__ import annotations

from spiketriage.diagnosis.findings import agrees, counted, ranks_text, untestable
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import RankDumps, View
from spiketriage.nouns.incident import Finding, Where

NAME = "collectives"
EMITS = {NAME: Emission(role=AGAINST_THE_RUN, dates_onset=True)}
UNKNOWN = "no-dump"  # somebody waits for a rank that left none: a hang or a copy that was left out


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first disagreement of the first folder of dumps that has one.

    None without dumps.
    """
    apart = [
        one
        for one in view.dumps
        if one.disagreement is not None and one.disagreement.aspect != UNKNOWN
    ]
    if apart:
        return (_differs(apart[0], len(apart)),)
    for one in view.dumps:
        if one.disagreement is not None:
            return (
                untestable(NAME, f"{one.folder}: {one.disagreement.sentence}", where=_where(one)),
            )
    several = [one for one in view.dumps if one.num_dumps > 1]
    if several:
        num_dumps = sum(one.num_dumps for one in several)
        return (
            agrees(
                NAME,
                f"the flight-recorder dumps of {counted(num_dumps, 'rank')} show no disagreement",
            ),
        )
    if view.dumps:
        return (untestable(NAME, f"{view.dumps[0].folder}: there is the dump of one rank only"),)
    return ()


def _differs(dumps: RankDumps, num_folders: int) -> Finding:
    found = dumps.disagreement
    assert found is not None, "only folders with a disagreement come here"
    if num_folders > 1:
        others = f" ({counted(num_folders, 'folder')} of dumps disagree in all)"
    else:
        others = ""
    most, *rest = found.versions
    if found.absent:
        never = [f"{ranks_text(found.absent)}: never called it"]
    else:
        never = []
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"{dumps.folder}: {found.sentence}{others}",
        where=_where(dumps),
        expected=most.what,
        seen="; ".join([f"{ranks_text(one.ranks)}: {one.what}" for one in rest] + never),
        magnitude=float(sum(len(one.ranks) for one in rest) + len(found.absent)),
    )


def _where(dumps: RankDumps) -> Where:
    found = dumps.disagreement
    assert found is not None, "only folders with a disagreement come here"
    odd = [rank for one in found.versions[1:] for rank in one.ranks] + list(found.absent)
    is_one = len(odd) == 1 and len(found.versions[0].ranks) > 1  # of two, nobody knows which is odd
    return Where(
        stage="collective",
        key=f"{found.process_group}/{found.sequence}",
        rank=odd[0] if is_one else None,
        path=dumps.folder,
    )
