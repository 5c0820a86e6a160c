"""What one trial answered: its row for the incident, every rank's chain, and who the ranks were.

It never reads a file and never says what an answer means.
"""

from __future__ import annotations

from collections.abc import Iterable
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


def num_steps_executed(answers: Iterable[Answer]) -> int:
    """Steps that were executed for these answers now; those from the cache cost none."""
    return sum(answer.row.num_steps_executed for answer in answers if not answer.cached)


def num_cached(answers: Iterable[Answer]) -> int:
    """How many of the answers had been given before."""
    return sum(answer.cached for answer in answers)
