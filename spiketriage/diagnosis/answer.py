"""What one trial answered: its row for the incident, every rank's chain, and who the ranks were.

It never reads a file and never says what an answer means.
"""

from __future__ import annotations

from dataclasses import dataclass

from spiketriage.nouns.incident import TrialRow
from spiketriage.nouns.telemetry import Identity, LoadRecord, StepRecord
from spiketriage.wire.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one trial.

    `cached` is set when the trial had been executed before; `not_testable` is why the harness could
    not do what was asked, empty where it could.
    """

    trial: Trial
    row: TrialRow
    cached: bool
    steps: tuple[StepRecord, ...]
    loads: tuple[LoadRecord, ...]
    identities: tuple[Identity, ...]
    not_testable: str

    def at(self, rank: int, step: int) -> StepRecord | None:
        """The record of `step` on `rank`."""
        for record in self.steps:
            if record.rank == rank and record.step == step:
                return record
        return None

    @property
    def num_steps_executed(self) -> int:
        """Steps that were executed now; none for an answer from the cache."""
        if self.cached:
            return 0
        return self.row.num_steps_executed
