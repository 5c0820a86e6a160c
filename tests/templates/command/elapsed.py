"""`spiketriage elapsed`: how long the commands on an incident took, by the journal.

This module never takes the lease and never writes.
"""

from __future__ import annotations

from pathlib import Path

from spiketriage.incident.query import query
from spiketriage.incident.store import find
from spiketriage.nouns.incident import StepResult


def run(run_folder: Path, *, incidents: Path | None, incident: str | None) -> StepResult:
    """Sum the durations of the journal.

    Raises:
        EvidenceError, RefusedError: the database cannot be read, or there is no incident.
    """
    place = find(run_folder, incidents=incidents, wanted=incident)
    result = query(place, "SELECT count(*), sum(duration_s) FROM journal")
    num_commands, seconds = result.rows[0]
    return StepResult(
        incident=place.name,
        exit_code=0,
        verdict="elapsed",
        lines=(f"{num_commands} commands took {seconds or 0.0:.1f} s",),
        data={"num_commands": num_commands, "seconds": seconds},
        next_commands=(),
    )
