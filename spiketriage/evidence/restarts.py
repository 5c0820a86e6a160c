"""How far behind a restart an anomaly lies: the first thing that is said of it.

This module never judges whether the restart is to blame.
"""

from __future__ import annotations

from spiketriage.nouns.listing import counted
from spiketriage.readers.telemetry.run.lineage import Telemetry


def behind_restart(telemetry: Telemetry, step: int, sentence: str) -> str:
    """`sentence`, which begins with `step N: `, with the restart before that step named first."""
    attempt = telemetry.attempt_of(step)
    if attempt is None or attempt == telemetry.attempts[0]:
        return sentence
    start = _start(telemetry, attempt)
    if start is None:
        return sentence
    head = f"step {step}: "
    return f"{head}{counted(step - start, 'step')} after a restart from {start}, " + (
        sentence.removeprefix(head)
    )


def _start(telemetry: Telemetry, attempt: int) -> int | None:
    """The step that an attempt went on from: that of what it loaded, else the last one before it.

    A log that others wrote does not say what was loaded.
    """
    loaded = [load.step for load in telemetry.loads if load.attempt == attempt]
    if loaded:
        return max(loaded)
    begins = [step for step in telemetry.steps if telemetry.attempt_of(step) == attempt]
    before = [step for step in telemetry.steps if step < begins[0]]
    if before:
        return before[-1]
    return None
