"""Check: no rank recorded a loss below zero, which a sum of negative log-likelihoods cannot be.

It never looks at the size of a loss, only at its sign.
"""

from __future__ import annotations

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted

NAME = "negative-loss"
EMITS = {NAME: Emission(role=AGAINST_THE_RUN)}


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first step and rank with a loss below zero."""
    num_steps = 0
    for step, records in sorted(view.history().items()):
        for rank, record in sorted(records.items()):
            loss = record.metrics.get("loss/sum")
            if loss is None:
                continue
            num_steps += 1
            if loss < 0:
                return (_negative(step, rank, loss),)
    if not num_steps:
        return (untestable(NAME, "no loss is on record"),)
    return (agrees(NAME, f"no loss of {counted(num_steps, 'record')} is below zero"),)


def _negative(step: int, rank: int, loss: float) -> Finding:
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"step {step}: rank {rank} recorded a loss of {loss:.4g}, which no likelihood gives",
        where=Where(step=step, stage="loss", rank=rank),
        expected="at least 0",
        seen=f"{loss:.4g}",
    )
