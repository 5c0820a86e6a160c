"""Check: a step that two attempts took has the loss and the gradient norm of its first time again.

It looks at the first steps behind a restart alone, and never says which attempt is right.
"""

from __future__ import annotations

import numpy as np

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.repeats import Repeat, repeats_of
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted

NAME = "repeated-steps"
EMITS = {NAME: Emission(role=AGAINST_THE_RUN, dates_onset=True)}
METRICS = {"loss/mean": "loss", "grad/norm": "gradient norm"}


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the first restart whose first steps are not those of the attempt before."""
    if not view.telemetry.logs:
        return ()  # what our recorder's attempts load is compared with what was saved, by digest
    repeats = list(repeats_of(view.telemetry, tuple(METRICS)))
    for repeat in repeats:
        if repeat.differs:
            return (_differs(repeat),)
    if not repeats:
        return (untestable(NAME, "no step is on record twice behind a restart"),)
    return (agrees(NAME, _agreement(repeats)),)


def _differs(repeat: Repeat) -> Finding:
    at = int(np.flatnonzero(repeat.is_apart)[0])
    step, before, after = int(repeat.steps[at]), float(repeat.before[at]), float(repeat.after[at])
    place = "the first step" if at == 0 else f"row {at + 1} of those"
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"step {step}: {place} that attempt {repeat.attempt} took again has the "
        f"{METRICS[repeat.metric]} {after:.6g}, and had {before:.6g}: {_meaning(repeat, at)}",
        where=Where(step=step, stage="loss", key=repeat.metric, path=str(repeat.source)),
        expected=f"{before:.6g}",
        seen=f"{after:.6g}",
        magnitude=abs(after - before),
        judged=at == 0 and repeat.is_same_data,
    )


def _meaning(repeat: Repeat, at: int) -> str:
    """What a difference says: of the first step, or only of those behind it."""
    if at:
        return (
            "those before it agree, so it is the optimizer's state, or kernels that are not exact"
        )
    if repeat.is_same_data:
        return "as much data had been read, so state, data or random state is not what was saved"
    if repeat.counters is None:
        return "state or data is not what was saved, unless data was left out on purpose"
    before, after = repeat.counters
    return f"other data was read ({before:.0f} consumed before, {after:.0f} now)"


def _agreement(repeats: list[Repeat]) -> str:
    """How well the worst of all first repeated steps agrees."""
    worst = 0.0
    for repeat in repeats:
        before, after = float(repeat.before[0]), float(repeat.after[0])
        if before != after:
            worst = max(worst, abs(after - before) / max(abs(before), abs(after)))
    num_restarts = len({repeat.attempt for repeat in repeats})
    how = f"to {worst:.1g}" if worst else "exactly"
    return f"the first repeated step of {counted(num_restarts, 'restart')} agrees {how}"
