"""The setting of an incident's experiments: its anchors, its batches, and the trials to ask for.

It states questions; it never reads evidence and never runs a trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spiketriage.diagnosis.band import Band
from spiketriage.diagnosis.compare import Chain
from spiketriage.nouns.incident import Anchors
from spiketriage.nouns.telemetry import LoadRecord
from spiketriage.wire.trial import Factors, Trial

STEPS_AFTER = 2  # a replay goes on for two steps, in which a spike shows whether it lasts


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What every experiment of one incident starts from.

    The steps:
        `suspect` is the step of the batch tests, `first_bad` the earliest anchor, which the replay
        must cover, and `clean` are steps whose batches looked ordinary. `alarmed` says that an
        alarm or a person pointed at the suspect step, `spiked` that its loss or gradient norm is
        anomalous. `threshold` is how many scales of `band` count as anomalous.

    The states:
        `known_good` and `older_good` are generations before the incident, `later_good` is a
        complete one after it, to be replayed for a step.

    The evidence:
        `production` is the recorded chain, `loads` are those with which production itself began
        the window, if it began there, `ids` names production's batches by step and rank,
        `run_key` ties a trial to the generations, the code and the config that it was asked for
        with, and `reference_code` is the code folder of the older generations.

    `unreplayable` is why no step of this run can be executed, empty where one can.
    """

    anchors: Anchors
    alarmed: bool
    spiked: bool
    suspect: int
    first_bad: int
    known_good: str
    known_good_step: int
    older_good: str | None
    older_good_step: int | None
    clean: tuple[int, ...]
    ids: Mapping[int, Mapping[str, Any]]
    band: Band
    threshold: float
    production: Chain
    loads: tuple[LoadRecord, ...]
    later_good: str | None
    later_good_step: int
    run_key: str
    reference_code: str | None
    unreplayable: str = ""

    @property
    def last_step(self) -> int:
        """Last step of the replay window; never beyond what production recorded."""
        return min(max(self.suspect, self.first_bad) + STEPS_AFTER, max(self.ids))

    def replay(self, *, last: int | None = None) -> Trial:
        """A replay from the known-good generation over the suspect window."""
        return Trial(
            kind="replay",
            purpose="replay",
            factors=Factors(state=f"{self.known_good}@{self.known_good_step}"),
            first_step=self.known_good_step + 1,
            last_step=last or self.last_step,
            run_key=self.run_key,
        )

    def later_replay(self) -> Trial | None:
        """One step from the first complete generation after the window."""
        if self.later_good is None:
            return None
        return Trial(
            kind="replay",
            purpose="replay",
            factors=Factors(state=f"{self.later_good}@{self.later_good_step}"),
            first_step=self.later_good_step + 1,
            last_step=self.later_good_step + 1,
            run_key=self.run_key,
        )

    def probe(self, *, batch: int, older: bool = False) -> Trial:
        """One pass of the batch of step `batch`.

        It runs on the state before the suspect step, or on the older good state.
        """
        if older:
            state = f"{self.older_good}@{self.older_good_step}"
        else:
            state = f"{self.known_good}@{self.suspect - 1}"
        return Trial(
            kind="probe",
            purpose="probe",
            factors=Factors(state=state, batch=f"step {batch}"),
            first_step=batch,
            last_step=batch,
            ids={rank: {str(batch): ids} for rank, ids in self.ids[batch].items()},
            run_key=self.run_key,
        )
